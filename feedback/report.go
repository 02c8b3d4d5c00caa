package feedback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// moment is an entry: its optime, and its wall time in milliseconds since the
// epoch.
type moment struct {
	at   oplog.OpTime
	wall int64
}

// null is the null optime as the protocol encodes it.
var null = moment{at: oplog.OpTime{Term: oplog.UninitializedTerm}}

// valid reports whether m may be sent to a server, which aborts on an optime
// without a wall time.
func (m moment) valid() bool { return m.at.IsNull() || m.wall > 0 }

// later returns the later one of two moments.
func later(a, b moment) moment {
	if a.at.IsNull() || b.at.After(a.at) {
		return b
	}
	return a
}

// report is the content of a report.
type report struct {
	applied, durable moment
}

// of returns the report for p that may follow r. Limit is the commit point that the
// receiving member knows, nil for none. Held reports that the limit makes the
// report less than p.
func (r report) of(p checkpoint.Progress, limit *moment) (next report, held bool) {
	applied := moment{p.Applied, p.AppliedWall}
	durable := moment{p.Durable, p.DurableWall}
	if durable.at.After(applied.at) {
		durable = applied
	}
	next.applied, held = r.applied.upTo(applied, limit)
	var heldToo bool
	next.durable, heldToo = r.durable.upTo(durable, limit)
	// Invariant: durable <= applied. Neither goes back. The limit can go back with a
	// change of the source; applied then keeps its value.
	if next.durable.at.After(next.applied.at) {
		next.durable = next.applied
	}
	return next, held || heldToo
}

// upTo returns the moment to report after m: to, or the limit if that is earlier,
// but never one before m.
func (m moment) upTo(to moment, limit *moment) (next moment, held bool) {
	if limit != nil && to.at.After(limit.at) {
		to, held = *limit, true
	}
	if to.at.IsNull() || !to.valid() {
		return m, held
	}
	return later(m, to), held
}

func appendMoment(dst []byte, opTime, wall string, m moment) []byte {
	if m.at.IsNull() {
		m = null
	}
	dst = appendOpTime(dst, opTime, m.at)
	return bsoncore.AppendDateTimeElement(dst, wall, m.wall)
}

func appendOpTime(dst []byte, name string, o oplog.OpTime) []byte {
	return appendDoc(dst, name, func(dst []byte) []byte {
		dst = bsoncore.AppendTimestampElement(dst, "ts", o.TS.T, o.TS.I)
		return bsoncore.AppendInt64Element(dst, "t", o.Term)
	})
}

// appendDoc appends an embedded document; fill appends its elements.
func appendDoc(dst []byte, name string, fill func(dst []byte) []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, name)
	return closeDoc(fill(dst), i)
}

func document(fill func(dst []byte) []byte) bson.Raw {
	i, dst := bsoncore.AppendDocumentStart(nil)
	return closeDoc(fill(dst), i)
}

// closeDoc ends the document or array that was started at i. It cannot fail, since
// i is the index returned by the start.
func closeDoc(dst []byte, i int32) []byte {
	dst, err := bsoncore.AppendDocumentEnd(dst, i)
	if err != nil {
		panic("feedback: invariant broken: a document ends where it began: " + err.Error())
	}
	return dst
}

// positionCommand returns replSetUpdatePosition. It has no $replData: a term in it
// could make a primary step down.
func positionCommand(member int, configVersion int64, r report) mongo.Command {
	body := document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "replSetUpdatePosition", 1)
		i, dst := bsoncore.AppendArrayElementStart(dst, "optimes")
		dst = appendDoc(dst, "0", func(dst []byte) []byte {
			dst = appendMoment(dst, "durableOpTime", "durableWallTime", r.durable)
			dst = appendMoment(dst, "appliedOpTime", "appliedWallTime", r.applied)
			dst = bsoncore.AppendInt64Element(dst, "memberId", int64(member))
			return bsoncore.AppendInt64Element(dst, "cfgver", configVersion)
		})
		return closeDoc(dst, i)
	})
	return mongo.Command{DB: "admin", Body: body}
}

// documentCommand returns the write of the position document.
func documentCommand(cfg *Config, r report, now time.Time) mongo.Command {
	update := document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id", cfg.Link) })
		dst = appendDoc(dst, "u", func(dst []byte) []byte {
			return appendDoc(dst, "$set", func(dst []byte) []byte {
				dst = appendMoment(dst, "applied", "appliedWall", r.applied)
				dst = appendMoment(dst, "durable", "durableWall", r.durable)
				return bsoncore.AppendDateTimeElement(dst, "at", now.UnixMilli())
			})
		})
		return bsoncore.AppendBooleanElement(dst, "upsert", true)
	})
	body := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "update", cfg.Collection)
		return appendDoc(dst, "writeConcern", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "w", 1) })
	})
	return mongo.Command{DB: cfg.DB, Body: body, Sequence: "updates", Docs: []bson.Raw{update}}
}

// refusal returns the first error in a write's reply.
func refusal(reply bson.Raw) error {
	refused, err := mongo.WriteErrors(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return &refused[0].Error
	}
	return nil
}

// job is one report to send.
type job struct {
	report  report
	command mongo.Command
	to      mongo.Caller
	host    string
	timeout time.Duration
	config  int64 // version of the source's configuration
}

var errTimeout = errors.New("no answer in time")

// send sends one report.
func (j *job) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, j.timeout, errTimeout)
	defer cancel()
	reply, err := j.to.Call(ctx, j.command)
	if err == nil && j.command.Sequence != "" {
		err = refusal(reply)
	}
	if err != nil {
		return fmt.Errorf("report applied %s to %s: %w", j.report.applied.at, j.host, err)
	}
	return nil
}

// lasting reports whether an error lasts until the source is reconfigured.
func lasting(err error) bool { return servererr.IsNoMember(err) || servererr.IsDenied(err) }
