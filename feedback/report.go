package feedback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
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
// receiving member knows, nil for none. Early reports that the limit makes the
// report less than p.
func (r report) of(p checkpoint.Progress, limit *moment) (next report, early bool) {
	applied := moment{p.Applied, p.AppliedWall}
	durable := moment{p.Durable, p.DurableWall}
	if durable.at.After(applied.at) {
		durable = applied
	}
	next.applied, early = r.applied.upTo(applied, limit)
	var earlyToo bool
	next.durable, earlyToo = r.durable.upTo(durable, limit)
	// Invariant: durable <= applied. Neither goes back. The limit can go back with a
	// change of the source; applied then keeps its value.
	if next.durable.at.After(next.applied.at) {
		next.durable = next.applied
	}
	return next, early || earlyToo
}

// upTo returns the moment to report after m: to, or the limit if that is earlier,
// but never one before m.
func (m moment) upTo(to moment, limit *moment) (next moment, early bool) {
	if limit != nil && to.at.After(limit.at) {
		to, early = *limit, true
	}
	if to.at.IsNull() || !to.valid() {
		return m, early
	}
	return later(m, to), early
}

func appendMoment(dst []byte, opTime, wall string, m moment) []byte {
	if m.at.IsNull() {
		m = null
	}
	dst = metadata.AppendOpTime(dst, opTime, m.at)
	return bsoncore.AppendDateTimeElement(dst, wall, m.wall)
}

// positionCommand returns replSetUpdatePosition. It has no $replData: a term in it
// could make a primary step down.
func positionCommand(member int, configVersion int64, r report) mongo.Command {
	body := metadata.Document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "replSetUpdatePosition", 1)
		i, dst := bsoncore.AppendArrayElementStart(dst, "optimes")
		dst = metadata.AppendDoc(dst, "0", func(dst []byte) []byte {
			dst = appendMoment(dst, "durableOpTime", "durableWallTime", r.durable)
			dst = appendMoment(dst, "appliedOpTime", "appliedWallTime", r.applied)
			dst = bsoncore.AppendInt64Element(dst, "memberId", int64(member))
			return bsoncore.AppendInt64Element(dst, "cfgver", configVersion)
		})
		return metadata.CloseDoc(dst, i)
	})
	return mongo.Command{DB: "admin", Body: body}
}

// documentCommand returns the write of the position document.
func documentCommand(cfg *Config, r report, now time.Time) mongo.Command {
	cmd := metadata.Update(cfg.DB, positions, metadata.Statement{
		Filter: metadata.ByID(cfg.Link),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = appendMoment(dst, "applied", "appliedWall", r.applied)
				dst = appendMoment(dst, "durable", "durableWall", r.durable)
				return bsoncore.AppendDateTimeElement(dst, "at", now.UnixMilli())
			})
		},
		Upsert: true,
	})
	return metadata.PrimaryOnly(cmd)
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
		_, err = mongo.Written(reply)
	}
	if err != nil {
		return fmt.Errorf("report applied %s to %s: %w", j.report.applied.at, j.host, err)
	}
	return nil
}

// lasting reports whether an error lasts until the source is reconfigured.
func lasting(err error) bool { return servererr.IsNoMember(err) || servererr.IsDenied(err) }
