package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
)

// mayRaise returns a *HeldError if another process has the lease. The write that raises
// the term has the same condition. But its transaction number would end what that process
// does on the session even if the condition is not met, so it must not be sent.
func (l *Lease) mayRaise(ctx context.Context, found Record) error {
	if l.cfg.TTL == 0 || l.cfg.TakeOver || found.Free(l.cfg.Holder, 0) || l.cfg.AcceptOffer && found.Grant.Offered ||
		l.cfg.Unmoved != nil && *l.cfg.Unmoved == found {
		return nil
	}
	now, err := storeTime(ctx, l.target)
	if err != nil {
		return err
	}
	if !found.Free(l.cfg.Holder, now) {
		return &HeldError{Record: found}
	}
	return nil
}

// storeTime returns the time of the store's clock, which is what its primary means by
// $$NOW.
func storeTime(ctx context.Context, target mongo.Caller) (bson.DateTime, error) {
	reply, err := mongo.Hello(ctx, target)
	if err != nil {
		return 0, fmt.Errorf("ask for the time: %w", err)
	}
	r := metadata.NewReader(reply)
	now := r.Date("localTime")
	if r.Err() != nil {
		return 0, fmt.Errorf("ask for the time: %w", r.Err())
	}
	return bson.DateTime(now), nil
}

// statement returns the compare-and-set that raises the term from the one in found.
func (l *Lease) statement(found Record) (s metadata.Statement, err error) {
	s.Filter = func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", l.cfg.ID)
		return bsoncore.AppendInt64Element(dst, "term", found.Term)
	}
	if l.cfg.TTL > 0 {
		s.Stage, err = l.grantStage()
		return s, err
	}
	s.Change = func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			dst = bsoncore.AppendInt64Element(dst, "term", l.term)
			return bsoncore.AppendStringElement(dst, "holder", l.cfg.Holder)
		})
	}
	return s, nil
}

// op is an expression: an operator with its arguments.
func op(name string, args ...any) bson.D { return bson.D{{Key: name, Value: bson.A(args)}} }

// literal is a string that is not evaluated as an expression, whatever it contains.
func literal(s string) bson.D { return bson.D{{Key: "$literal", Value: s}} }

// until is when a lease ends that is granted or renewed now, by the store's clock.
func until(ttl time.Duration) bson.D { return op("$add", "$$NOW", ttl.Milliseconds()) }

// grantStage returns the stage of an update that grants the lease if it is free, and
// otherwise changes nothing.
func (l *Lease) grantStage() (bson.Raw, error) {
	of := "$" + fieldLease + "."
	ours := op("$and", op("$eq", "$holder", literal(l.cfg.Holder)), op("$eq", of+fieldOf, "$term"))
	var next any = op("$mergeObjects", "$$ROOT", bson.D{
		{Key: "term", Value: l.term},
		{Key: "holder", Value: literal(l.cfg.Holder)},
		{Key: fieldLease, Value: bson.D{
			{Key: fieldOf, Value: l.term},
			{Key: fieldID, Value: l.grant},
			{Key: fieldDuration, Value: int64(0)},
			{Key: fieldTTL, Value: l.cfg.TTL.Milliseconds()},
			{Key: fieldGranted, Value: op("$cond", ours, of+fieldGranted, "$$NOW")},
			{Key: fieldExpires, Value: until(l.cfg.TTL)},
			{Key: fieldWhy, Value: literal(l.cfg.Why)},
		}},
	})
	if !l.cfg.TakeOver {
		free := bson.A{
			op("$eq", "$holder", ""),
			op("$eq", "$holder", literal(l.cfg.Holder)),
			op("$ne", of+fieldOf, "$term"),
			op("$eq", of+fieldReleased, true),
			op("$lte", of+fieldExpires, "$$NOW"),
		}
		if l.cfg.AcceptOffer {
			free = append(free, op("$eq", of+fieldOffered, true))
		}
		if seen := l.cfg.Unmoved; seen != nil {
			free = append(free, op("$and", op("$eq", of+fieldID, seen.Grant.ID), op("$eq", of+fieldDuration, seen.Grant.Duration)))
		}
		next = op("$cond", bson.D{{Key: "$or", Value: free}}, next, "$$ROOT")
	}
	return marshal(bson.D{{Key: "$replaceWith", Value: next}})
}

func marshal(doc bson.D) (bson.Raw, error) {
	raw, err := bson.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("build its statement: %w", err)
	}
	return raw, nil
}

// keep gives a lease that the primary has granted to the Keeper, waits until the grant is
// majority-committed, and returns the document. The lease is renewed meanwhile: where a
// majority takes longer than the TTL, others would acquire it otherwise, and get no further
// either. Sent is when the grant was sent.
func (l *Lease) keep(ctx context.Context, sent time.Time) (bson.Raw, error) {
	if err := l.cfg.Keeper.hold(l, sent); err != nil {
		return nil, err
	}
	n, err := l.write(ctx, l.own, l.cfg.Collection, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "_id", l.cfg.ID)
			dst = bsoncore.AppendInt64Element(dst, "term", l.term)
			return bsoncore.AppendObjectIDElement(dst, fieldLease+"."+fieldID, l.grant)
		},
		Change: AppendCount,
	}, time.Time{}, true)
	if err != nil {
		return nil, fmt.Errorf("commit it by a majority: %w", Judge(err))
	}
	doc, now, err := l.read(ctx)
	if err == nil {
		err = l.Compare("it", now.Term)
	}
	if err == nil && (n != 1 || now.Grant.ID != l.grant) {
		err = fmt.Errorf("its grant is gone: %w", ErrRewound)
	}
	if err == nil {
		l.cfg.Keeper.acquired()
	}
	return doc, err
}

// Sighting is the lease as a process sees it that stands by.
type Sighting struct {
	Record Record
	// Free reports that it may be acquired. Unmoved is set if that is so although the
	// store's clock says that it has not ended: see Claim.
	Free    bool
	Unmoved *Record
	// Wait is the time until it ends, unless it is renewed.
	Wait time.Duration
}

// Watch decides when a process that stands by may acquire a lease. It is for one
// goroutine.
type Watch struct {
	process string
	last    Record
	since   time.Time
}

// NewWatch returns the Watch of a process.
func NewWatch(process string) *Watch { return &Watch{process: process} }

// quietFor is how long a document must not have changed for the lease to be free whose
// holder does not renew it, but took it from one that does. Such a process advances the
// checkpoint every few seconds, as even an idle source has entries.
const quietFor = time.Minute

// Blink forgets since when the record is the same: the store did not answer, and the holder
// could perhaps not renew its lease either.
func (w *Watch) Blink() { w.since = time.Time{} }

// Look judges a record that has just been read.
func (w *Watch) Look(ctx context.Context, target mongo.Caller, found Record) (Sighting, error) {
	now, err := storeTime(ctx, target)
	if err != nil {
		w.Blink()
		return Sighting{}, err
	}
	if w.since.IsZero() || w.last != found {
		w.last, w.since = found, time.Now()
	}
	s := found.sighting(w.process, now)
	quiet := quietFor
	switch {
	case found.Holder == w.process:
	case found.Superseded:
		s.Free = time.Since(w.since) > quiet
	case found.Grant.isGranted():
		if quiet = found.Grant.TTL * 3 / 2; !s.Free && time.Since(w.since) > quiet {
			s.Free, s.Unmoved = true, &found
		}
	}
	return s, nil
}

// Sight returns how leases are seen whose records have just been read, by a process that has none of
// them. It asks for the time of the store's clock once.
func Sight(ctx context.Context, target mongo.Caller, records []Record) ([]Sighting, error) {
	now, err := storeTime(ctx, target)
	if err != nil {
		return nil, err
	}
	list := make([]Sighting, len(records))
	for i := range records {
		list[i] = records[i].sighting("", now)
		if list[i].Wait > 2*records[i].Grant.TTL {
			list[i].Free = true // granted before the store's clock was set back, and not renewed since
		}
		if records[i].Superseded {
			list[i].Free = false // its holder may go on, as far as one look tells
		}
	}
	return list, nil
}

// sighting is a record as seen by a process at a time of the store's clock.
func (r *Record) sighting(process string, now bson.DateTime) Sighting {
	s := Sighting{Record: *r, Free: r.Free(process, now)}
	if r.Holder != process && !r.Superseded && r.Grant.isGranted() {
		s.Wait = time.Duration(r.Grant.Expires-now) * time.Millisecond
	}
	return s
}

// Lost reports whether an error means that a process does not have the lease any more, or
// did not get it.
func Lost(err error) bool {
	return errors.Is(err, ErrFenced) || errors.Is(err, ErrHeld) || errors.Is(err, ErrExpired)
}
