package fetcher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// inBubble hides that it is a *testing.T, whose deadline a bubble does not know.
type inBubble struct{ *testing.T }

// shaky is a member that writes, commits, loses and rolls back between any two
// things that it does, and breaks off commands before and after carrying them out.
type shaky struct {
	rt *rapid.T
	// log ends with entries that only this member may have; committed is how many
	// are for good.
	log       []oplog.OpTime
	committed int
	rbid      int64
	term      int64
	tick      uint32
	// budget is how many more things may happen; then everything is committed.
	budget int

	cursor int64
	next   oplog.OpTime // the cursor's last entry
	finish func(committed []oplog.OpTime)
}

// happen lets time go by.
func (m *shaky) happen() {
	for m.budget > 0 && rapid.IntRange(0, 2).Draw(m.rt, "more") > 0 {
		m.budget--
		switch rapid.SampledFrom([]string{"write", "write", "commit", "rollback", "kill"}).Draw(m.rt, "what") {
		case "write":
			m.tick++
			m.log = append(m.log, oplog.NewOpTime(1000, m.tick, m.term))
		case "commit":
			m.committed = rapid.IntRange(m.committed, len(m.log)).Draw(m.rt, "committed")
		case "rollback":
			// The new history may have the timestamps of the old one, in a newer term.
			m.log = m.log[:rapid.IntRange(m.committed, len(m.log)).Draw(m.rt, "kept")]
			if rapid.Bool().Draw(m.rt, "same timestamps") {
				m.tick = m.log[len(m.log)-1].TS.I
			}
			m.term++
			m.rbid++
			// A cursor need not die of it.
			if rapid.Bool().Draw(m.rt, "cursors die") {
				m.cursor = 0
			}
		case "kill":
			m.cursor = 0
		}
	}
	if m.budget == 0 {
		m.committed = len(m.log)
		m.finish(m.log)
	}
}

// shown is what a read sees after a timestamp.
func (m *shaky) shown(after bson.Timestamp, inclusive bool) []oplog.OpTime {
	log := m.log[:m.committed]
	i := slices.IndexFunc(log, func(at oplog.OpTime) bool {
		c := oplog.CompareTimestamps(at.TS, after)
		return c > 0 || c == 0 && inclusive
	})
	if i < 0 {
		return nil
	}
	log = log[i:]
	return slices.Clone(log[:rapid.IntRange(min(1, len(log)), len(log)).Draw(m.rt, "batch")])
}

func (m *shaky) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	m.happen()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	lost := m.budget > 0 && rapid.IntRange(0, 9).Draw(m.rt, "lost") == 0
	var page []oplog.OpTime
	batch := firstBatch
	elems, _ := cmd.Body.Elements()
	switch elems[0].Key() {
	case "find":
		from, inc, ok := cmd.Body.Lookup("filter", "ts", "$gte").TimestampOK()
		if !ok {
			page = m.log[:1]
			break
		}
		if level := cmd.Body.Lookup("readConcern", "level").StringValue(); level != "majority" {
			m.rt.Fatalf("it is read with read concern %s", level)
		}
		page = m.shown(bson.Timestamp{T: from, I: inc}, true)
		if _, err := cmd.Body.LookupErr("tailable"); err == nil {
			m.cursor++
			m.cursor = max(m.cursor, 1)
			m.next = oplog.NewOpTime(from, inc, 0)
		}
	case "getMore":
		batch = nextBatch
		if m.cursor == 0 || m.cursor != cmd.Body.Lookup("getMore").Int64() {
			return nil, servererr.New(servererr.QueryPlanKilled, "killed")
		}
		page = m.shown(m.next.TS, false)
	default:
		return marshal(bson.D{{Key: "ok", Value: 1}}), nil
	}
	if n := len(page); n > 0 {
		m.next = page[n-1]
	}
	m.happen() // between the read and the metadata
	if lost {
		return nil, &mongo.LostError{Host: host, Err: errors.New("reset")}
	}
	f := &fake{rbid: m.rbid, commit: m.log[m.committed-1], applied: m.log[len(m.log)-1]}
	docs := bson.A{}
	for _, at := range page {
		docs = append(docs, entry(at, ""))
	}
	return marshal(bson.D{
		{Key: "cursor", Value: bson.D{{Key: batch, Value: docs}, {Key: "id", Value: m.cursor}}},
		{Key: "ok", Value: 1.0},
		{Key: replData, Value: f.replData("")},
		{Key: oplogData, Value: f.oplogData("")},
	}), nil
}

// TestModel: whatever happens to a member, the reader hands on its committed history from
// the start on: nothing twice, nothing left out, nothing that was rolled back.
func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			from := oplog.NewOpTime(1000, 1, 1)
			var got []oplog.OpTime
			first := rapid.Bool().Draw(rt, "first")
			m := &shaky{rt: rt, log: []oplog.OpTime{from}, committed: 1, tick: 1, term: 1, rbid: 1, budget: rapid.IntRange(1, 60).Draw(rt, "budget")}
			m.finish = func(all []oplog.OpTime) {
				if !first {
					all = all[1:]
				}
				if len(got) >= len(all) {
					cancel(errOver)
				}
			}
			f, err := NewReader(ReaderConfig{restarts: rapid.SampledFrom([]int{-1, 1, 5}).Draw(rt, "restarts")})
			if err != nil {
				rt.Fatal(err)
			}
			at, inclusive := from, first
			for ctx.Err() == nil {
				var res Result
				res, err = f.Tail(ctx, host, m, at, inclusive, func(_ context.Context, r oplog.Reply) error {
					if len(r.Entries) == 0 || r.Bytes <= 0 {
						rt.Fatalf("a reply of %d entries, %d bytes", len(r.Entries), r.Bytes)
					}
					for i := range r.Entries {
						got = append(got, r.Entries[i].OpTime)
					}
					return nil
				})
				if ctx.Err() == nil && err != nil && !restartable(err) && !errors.Is(err, ErrSourceBehind) {
					rt.Fatalf("the tail ended with %v", err)
				}
				at, inclusive = res.Last, !res.Emitted
			}
			want := m.log
			if !first {
				want = want[1:]
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("handed on were %v, the history is %v", got, want)
			}
		})
	})
}
