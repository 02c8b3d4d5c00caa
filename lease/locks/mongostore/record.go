package mongostore

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/lease/locks"
)

// The fields of a record. Those up to why are config.locks'.
const (
	fieldState    = "state"
	fieldProcess  = "process"
	fieldID       = "ts"
	fieldWhen     = "when"
	fieldWho      = "who"
	fieldWhy      = "why"
	fieldTerm     = "term"
	fieldRenewals = "termDuration"
	fieldTTL      = "ttl"
	fieldExpires  = "expires"
	fieldModified = "modified"
	fieldPing     = "ping"
)

// parse reads a record.
func parse(doc bson.Raw) (locks.Record, error) {
	r := metadata.NewReader(doc)
	record := locks.Record{
		Name: r.Text("_id"), State: locks.State(r.Int64(fieldState)), Process: r.Text(fieldProcess), Who: r.Text(fieldWho), Why: r.Text(fieldWhy),
		Term: r.Int64(fieldTerm), Renewals: r.Int64(fieldRenewals), TTL: time.Duration(r.Int64(fieldTTL)) * time.Millisecond,
		When: date(r, fieldWhen), Modified: date(r, fieldModified),
	}
	if record.TTL > 0 {
		record.Expires = date(r, fieldExpires)
	}
	id := r.Value(fieldID)
	var ok bool
	if record.ID, ok = id.ObjectIDOK(); !ok {
		r.Fault(fieldID, "an ObjectId")
	}
	if err := r.Err(); err != nil {
		return locks.Record{}, fmt.Errorf("the record of a lock is damaged: field %w", err)
	}
	return record, nil
}

func date(r *metadata.Reader, name string) time.Time {
	return time.UnixMilli(r.Date(name)).UTC()
}

// op is an expression: an operator with its arguments.
func op(name string, args ...any) bson.D { return bson.D{{Key: name, Value: bson.A(args)}} }

// literal is a string that is not evaluated as an expression, whatever it contains.
func literal(s string) bson.D { return bson.D{{Key: "$literal", Value: s}} }

// merged is the document with other fields.
func merged(fields bson.D) bson.D { return op("$mergeObjects", "$$ROOT", fields) }

// number is a field that may be absent.
func number(field string) bson.D { return op("$ifNull", "$"+field, int64(0)) }

// ended is true of a lock with a TTL that has ended.
func ended() bson.D {
	return op("$and", op("$gt", number(fieldTTL), int64(0)), op("$lte", "$"+fieldExpires, "$$NOW"))
}

// until is when a lock ends, null for one that has no end: $mergeObjects would keep the
// field if it were left out.
func until(ttl time.Duration) any {
	if ttl == 0 {
		return nil
	}
	return op("$add", "$$NOW", ttl.Milliseconds())
}

// acquiring is the update of Acquire.
func acquiring(c *locks.Claim) bson.D {
	taken := merged(bson.D{
		{Key: fieldState, Value: int32(locks.Locked)},
		{Key: fieldProcess, Value: literal(c.Process)},
		{Key: fieldID, Value: c.ID},
		{Key: fieldWhen, Value: "$$NOW"},
		{Key: fieldWho, Value: literal(c.Who)},
		{Key: fieldWhy, Value: literal(c.Why)},
		{Key: fieldTerm, Value: op("$add", number(fieldTerm), int64(1))},
		{Key: fieldRenewals, Value: int64(0)},
		{Key: fieldTTL, Value: c.TTL.Milliseconds()},
		{Key: fieldExpires, Value: until(c.TTL)},
		{Key: fieldModified, Value: "$$NOW"},
	})
	unlocked := op("$eq", number(fieldState), int64(locks.Unlocked))
	free := bson.A{unlocked, ended()}
	if !c.Overtake.IsZero() {
		free = append(free, op("$and", op("$eq", "$"+fieldID, c.Overtake), op("$eq", number(fieldRenewals), c.Renewals)))
	}
	next := op("$cond", bson.D{{Key: "$or", Value: free}}, taken, "$$ROOT")
	own := op("$and", op("$eq", "$"+fieldID, c.ID), op("$ne", number(fieldState), int64(locks.Unlocked)), op("$not", ended()))
	return op("$cond", own, renewed(), next)
}

// renewed is a record that is renewed. It never ends earlier than before: $$NOW is when the
// server began with the statement, which may wait long until it is executed.
func renewed() bson.D {
	next := op("$add", "$$NOW", "$"+fieldTTL)
	later := op("$cond", op("$gt", "$"+fieldExpires, next), "$"+fieldExpires, next)
	return merged(bson.D{
		{Key: fieldRenewals, Value: op("$add", number(fieldRenewals), int64(1))},
		{Key: fieldExpires, Value: op("$cond", op("$gt", "$"+fieldTTL, int64(0)), later, nil)},
		{Key: fieldModified, Value: "$$NOW"},
	})
}

// released is a record that is unlocked.
func released() bson.D {
	return merged(bson.D{{Key: fieldState, Value: int32(locks.Unlocked)}, {Key: fieldModified, Value: "$$NOW"}})
}
