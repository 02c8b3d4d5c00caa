package syncsource

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// probeTimeout is how long a member has for one question about its oplog.
const probeTimeout = 30 * time.Second

var errNoProbe = fmt.Errorf("no answer within %s", inSeconds(probeTimeout))

// denied is why a probed member cannot serve.
type denied struct {
	Denial
	// for is how long it is denied.
	lasts time.Duration
	err   error
}

// probed is what a member's oplog was found to be.
type probed struct {
	oldest oplog.OpTime
	rbid   int64
}

// probe asks a member whether it can serve: it must still have what was fetched
// last and, if required is not null, exactly that entry. The rollback id is from
// before the second question: as long as it stays the same the answer holds.
func probe(ctx context.Context, caller mongo.Caller, last, required oplog.OpTime) (probed, *denied) {
	reply, err := find(ctx, caller, oldestCommand())
	if err != nil {
		return probed{}, refusedProbe("could not be asked for its oldest entry", err)
	}
	oldest, problem := entryTime(reply)
	if problem != "" {
		return probed{}, &denied{Denial: Denial{Reason: problem}, lasts: DenyBadOplog}
	}
	// Terms of entries that the two may not share cannot be compared.
	if oplog.CompareTimestamps(last.TS, oldest.TS) < 0 {
		reason := fmt.Sprintf("has nothing before %s any more, %s was fetched", oldest, last)
		return probed{}, &denied{Denial: Denial{Reason: reason, Oldest: oldest}, lasts: denyTooStale}
	}
	p := probed{oldest: oldest, rbid: rollbackID(reply)}
	if required.IsNull() {
		return p, nil
	}
	if p.rbid < 0 {
		return probed{}, &denied{Denial: Denial{Reason: "does not tell its rollback id"}, lasts: DenyNetwork}
	}
	if reply, err = find(ctx, caller, entryCommand(required.TS)); err != nil {
		return probed{}, refusedProbe(fmt.Sprintf("could not be asked for the entry %s", required), err)
	}
	// An uninitialised term is a term of its own here: what is required must be the
	// same entry, not one that may be.
	if found, problem := entryTime(reply); problem != "" || found != required {
		reason := fmt.Sprintf("does not have the entry %s", required)
		if problem == "" {
			reason += ", but " + found.String()
		}
		return probed{}, &denied{Denial: Denial{Reason: reason}, lasts: denyRequired}
	}
	return p, nil
}

func refusedProbe(what string, err error) *denied {
	d := &denied{Denial: Denial{Reason: what + ": " + err.Error()}, lasts: DenyNetwork, err: err}
	if quiet, ok := QuietTime(err); ok {
		d.lasts = max(quiet, RetryInterval)
	}
	return d
}

func find(ctx context.Context, caller mongo.Caller, body bson.Raw) (bson.Raw, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errNoProbe)
	defer cancel()
	return caller.Call(ctx, mongo.Command{DB: "local", Body: body})
}

// oldestCommand asks for the oldest entry.
func oldestCommand() bson.Raw {
	return findCommand(func(doc []byte) []byte {
		i, doc := bsoncore.AppendDocumentElementStart(doc, "sort")
		doc = bsoncore.AppendInt32Element(doc, "$natural", 1)
		doc, _ = bsoncore.AppendDocumentEnd(doc, i)
		return doc
	})
}

// entryCommand asks for the entry with this timestamp. Bounds on both sides make
// the server go to it straight.
func entryCommand(ts bson.Timestamp) bson.Raw {
	return findCommand(func(doc []byte) []byte {
		i, doc := bsoncore.AppendDocumentElementStart(doc, "filter")
		j, doc := bsoncore.AppendDocumentElementStart(doc, "ts")
		doc = bsoncore.AppendTimestampElement(doc, "$gte", ts.T, ts.I)
		doc = bsoncore.AppendTimestampElement(doc, "$lte", ts.T, ts.I)
		doc, _ = bsoncore.AppendDocumentEnd(doc, j)
		doc, _ = bsoncore.AppendDocumentEnd(doc, i)
		return doc
	})
}

// findCommand asks for the optime of one entry. The empty read concern keeps a
// default of the set from applying.
func findCommand(which func(doc []byte) []byte) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "find", "oplog.rs")
	doc = which(doc)
	j, doc := bsoncore.AppendDocumentElementStart(doc, "projection")
	doc = bsoncore.AppendInt32Element(doc, "ts", 1)
	doc = bsoncore.AppendInt32Element(doc, "t", 1)
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	doc = bsoncore.AppendInt64Element(doc, "limit", 1)
	doc = bsoncore.AppendBooleanElement(doc, "singleBatch", true)
	j, doc = bsoncore.AppendDocumentElementStart(doc, "readConcern")
	doc, _ = bsoncore.AppendDocumentEnd(doc, j)
	doc = bsoncore.AppendInt32Element(doc, "$oplogQueryData", 1)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// entryTime returns the optime of the one entry in a reply, or what is wrong with
// it as something that follows the member's name.
func entryTime(reply bson.Raw) (o oplog.OpTime, problem string) {
	e, _ := rawbson.Lookup(reply, "cursor")
	cursor, _ := e.Document()
	e, _ = rawbson.Lookup(cursor, "firstBatch")
	batch, ok := e.Array()
	if !ok {
		return o, "answered without a batch"
	}
	it := rawbson.NewIter(batch)
	if !it.Next() {
		if err := it.Err(); err != nil {
			return o, "answered what cannot be read: " + err.Error()
		}
		return o, "has an empty oplog"
	}
	entry, ok := it.Document()
	if !ok {
		return o, "has an entry that is no document"
	}
	e, ok = rawbson.Lookup(entry, "ts")
	if !ok {
		return o, "has an entry without a timestamp"
	}
	if o.TS, ok = e.Timestamp(); !ok {
		return o, fmt.Sprintf("has an entry whose ts is %s", e.Type)
	}
	if o.IsNull() {
		return o, "has an entry whose timestamp is null"
	}
	// Entries of the oldest protocol have no term.
	o.Term = oplog.UninitializedTerm
	if e, ok = rawbson.Lookup(entry, "t"); ok {
		if o.Term, ok = e.Int64(); !ok {
			return o, fmt.Sprintf("has an entry whose term is %s", e.Type)
		}
	}
	return o, ""
}

// rollbackID returns the rollback id in a reply's metadata, -1 if there is none.
func rollbackID(reply bson.Raw) int64 {
	e, _ := rawbson.Lookup(reply, "$oplogQueryData")
	data, _ := e.Document()
	e, ok := rawbson.Lookup(data, "rbid")
	if rbid, isNumber := e.Int64(); ok && isNumber {
		return rbid
	}
	return -1
}
