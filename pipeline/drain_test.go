package pipeline

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/resync"
)

// TestEnded: after an attempt that has left an index build another one follows, except for a
// part whose link may wait for its end.
func TestEnded(t *testing.T) {
	t.Parallel()
	left, failed := fmt.Errorf("applier: %w", applier.ErrLeft), errors.New("no primary")
	until := oplog.NewOpTime(1000, 1, 1)
	for name, tt := range map[string]struct {
		part *part
		told bool
		err  error
		want error
	}{
		"link":                      {err: left},
		"link that is told to end":  {err: left, told: true},
		"part":                      {part: &part{}, err: left},
		"part that is told to end":  {part: &part{}, told: true, err: left, want: failure.ErrStopped},
		"part that is to be merged": {part: &part{of: resync.Part{Until: until}}, err: left, want: failure.ErrStopped},
		"failed":                    {err: failed, want: failed},
		"failed part":               {part: &part{of: resync.Part{Until: until}}, err: failed, want: failed},
		"part that has ended":       {part: &part{of: resync.Part{Until: until}}},
	} {
		p := &Pipeline{cfg: Config{part: tt.part}, monitor: monitor.New(monitor.Config{Waits: &mongo.Waits{}})}
		if err := p.ended(tt.err, p.monitor.Standing(), tt.told); !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
}

// TestStandsSince: that attempts advance nothing is over with the first one that has advanced,
// however it ends.
func TestStandsSince(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"in order": nil, "with a build": applier.ErrLeft, "with its lease": lease.ErrExpired} {
		m := monitor.New(monitor.Config{Waits: &mongo.Waits{}})
		p := &Pipeline{monitor: m, oplog: reading.New(reading.Config{Monitor: m})}
		p.oplog.Overflow().Stood(time.Unix(1000, 0))
		before := p.monitor.Standing()
		_ = p.ended(err, before, false)
		if !p.oplog.Overflow().Stands() {
			t.Errorf("ended %s: it has advanced nothing, and counts as if it had", name)
		}
		p.monitor.Moved(checkpoint.Progress{Applied: oplog.NewOpTime(1000, 1, 1)})
		_ = p.ended(err, before, false)
		if p.oplog.Overflow().Stands() {
			t.Errorf("ended %s: it has advanced, and counts as if it had not", name)
		}
	}
}

// TestSpooledIsNotDrained: a run with unapplied entries on disk, also those of a copy, does not
// end as drained, and does not drain them after an attempt that failed.
func TestSpooledIsNotDrained(t *testing.T) {
	t.Parallel()
	for name, copying := range map[string]bool{"steady": false, "copying": true} {
		m := monitor.New(monitor.Config{Waits: &mongo.Waits{}})
		p := &Pipeline{monitor: m, oplog: reading.New(reading.Config{
			Link: "l", Copy: initialsync.Options{SpoolDir: t.TempDir()}, Memory: func() int64 { return 0 }, Monitor: m,
		})}
		log := p.oplog.Log()
		check := func(when string, want bool) {
			t.Helper()
			lost := &mongo.LostError{Host: "a:1", Err: errors.New("no answer")}
			if p.oplog.HasSpooled() != want || errors.Is(p.notDrained(time.Now()), failure.ErrStopped) != want || p.drains(lost) == want {
				t.Errorf("%s, %s: on disk: %t, ends with %v, drains: %t", name, when, p.oplog.HasSpooled(), p.notDrained(time.Now()), p.drains(lost))
			}
		}
		check("without a spool", false)
		must.Succeed(t, log.Prepare(nil))
		p.monitor.SetGaps(checkpoint.Gaps{Copying: copying})
		check("with an empty one", copying)
		raw := must.Get(bson.Marshal(bson.D{
			{Key: "op", Value: "n"},
			{Key: "ns", Value: ""},
			{Key: "o", Value: bson.D{}},
			{Key: "ts", Value: bson.Timestamp{T: 1000, I: 2}},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "wall", Value: time.Unix(1000, 0)},
		}))(t)
		replies := make(chan oplog.Reply, 1)
		replies <- oplog.Reply{Entries: []oplog.Entry{must.Get(oplog.ParseEntry(raw))(t)}, Bytes: int64(len(raw))}
		close(replies)
		must.Succeed(t, log.Spool().Store(t.Context(), replies))
		check("with an entry", true)
		p.monitor.Moved(checkpoint.Progress{Applied: oplog.NewOpTime(1000, 2, 1)})
		check("with an entry that is applied", copying)
		must.Succeed(t, log.Remove())
	}
}

// TestWithheldNeedNotBeDrained: a drain with a delay is to apply the entries that were due when
// its last attempt began, not those that have become due since.
func TestWithheldNeedNotBeDrained(t *testing.T) {
	t.Parallel()
	m := monitor.New(monitor.Config{Waits: &mongo.Waits{}})
	p := &Pipeline{cfg: Config{Delay: time.Hour}, monitor: m, oplog: reading.New(reading.Config{
		Link: "l", Copy: initialsync.Options{SpoolDir: t.TempDir()}, Memory: func() int64 { return 0 }, Monitor: m,
	})}
	p.hasRead(oplog.NewOpTime(1000, 1, 1))
	due := time.Unix(1000, 0).Add(time.Hour)
	for _, tt := range []struct {
		began time.Time
		ends  bool
	}{{due.Add(-time.Second), true}, {due.Add(time.Second), false}} {
		if err := p.notDrained(tt.began); (err == nil) != tt.ends || err != nil && !errors.Is(err, failure.ErrStopped) {
			t.Errorf("begun at %s, due at %s: %v", tt.began, due, err)
		}
	}
}
