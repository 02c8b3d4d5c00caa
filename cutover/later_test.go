package cutover_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/status"
)

// TestStateOfLaterRelease: a cutover in a state that only a later release knows is neither begun anew, resumed nor
// cancelled, and is shown as one that is under way.
func TestStateOfLaterRelease(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	later := &record.Record{Link: m.link, ID: "1", State: "paused", By: "you", Started: time.Now(), Options: *byBlock, Steps: []record.Taken{}}
	later.Begin(record.Freeze, "you", time.Now())
	must.Succeed(t, m.records.Put(t.Context(), nil, later))
	for name, do := range map[string]func() (*record.Record, error){
		"begun":     func() (*record.Record, error) { return cutover.Run(t.Context(), m.whole(), byBlock) },
		"resumed":   func() (*record.Record, error) { return cutover.Resume(t.Context(), m.whole()) },
		"cancelled": func() (*record.Record, error) { return cutover.Cancel(t.Context(), m.whole()) },
	} {
		_, err := do()
		if e, is := errors.AsType[*record.StateError](err); !is || e.State != "paused" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if is := must.Get(m.records.Get(t.Context(), m.link))(t); is.Save != later.Save || len(m.source.commands) > 0 {
		t.Errorf("it was changed: %+v; the source was sent %v", is, m.source.commands)
	}
	shown := must.Get(status.Cutovers(t.Context(), m.target, "replicator", ""))(t)
	if c, ok := shown[m.link]; !ok || c.State != "paused" || !c.BlocksSource {
		t.Errorf("shown: %+v", shown)
	}
}

// TestFindBackOf: the way back of another link than the one that is named is not taken.
func TestFindBackOf(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	for of, found := range map[string]bool{"": true, "dr": true, "other": false} {
		_, err := cutover.FindBack(t.Context(), &cutover.BackConfig{Source: s.next, Target: s.last, MetaDB: "replicator", Of: of})
		if (err == nil) != found || errors.Is(err, cutover.ErrNoWayBack) == found {
			t.Errorf("of %q: %v", of, err)
		}
	}
}

// TestFindBackLater: a way back that only a later release can read is not taken for none.
func TestFindBackLater(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	must.Get(s.next.Call(t.Context(), mongo.Command{DB: "replicator", Body: must.Get(bson.Marshal(bson.D{
		{Key: "update", Value: "links"},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "dr"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: checkpoint.Version + 1}}}}},
		}}},
	}))(t)}))(t)
	for of, known := range map[string]bool{"": true, "dr": true, "other": false} {
		_, err := cutover.FindBack(t.Context(), &cutover.BackConfig{Source: s.next, Target: s.last, MetaDB: "replicator", Of: of})
		if _, is := errors.AsType[*checkpoint.VersionError](err); is != known || errors.Is(err, cutover.ErrNoWayBack) == known {
			t.Errorf("of %q: %v", of, err)
		}
	}
}

// TestDeferredByLaterRelease: options that only a later release restores keep a cutover from being ready, and nothing is
// restored, as their records would be deleted; a cutover can be cancelled all the same.
func TestDeferredByLaterRelease(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	before := m.indexes()
	m.run("replicator", `{"update": "deferred", "updates": [{"q": {"_id.index": "at_1"}, "u": {"$push": {"deferred": "hidden"}}}]}`)
	specs := must.Get(ddl.ReadDeferred(t.Context(), m.target, "replicator", m.link))(t)
	if p, _ := judge(t, m.target, nil, specs...); p.Standing != status.Unmet || !strings.Contains(p.Value, "hidden of index at_1 of dr.a") {
		t.Errorf("%s: %s", p.Standing, p.Value)
	}
	cfg := &cutover.ConvertConfig{Target: m.target, MetaDB: "replicator", Link: m.link, Fence: must.Get(m.store.Acquire(t.Context(), 0))(t)}
	for name, do := range map[string]func() (int, error){
		"convert": func() (int, error) { return cutover.Convert(t.Context(), cfg) },
		"expire":  func() (int, error) { return cutover.Expire(t.Context(), cfg) },
	} {
		if n, err := do(); n > 0 || !errors.Is(err, ddl.ErrUnknownDeferred) {
			t.Errorf("%s: %d changes, %v", name, n, err)
		}
	}
	if n, err := cutover.Revert(t.Context(), cfg); n > 0 || err != nil {
		t.Errorf("put back: %d changes, %v", n, err)
	}
	if after := must.Get(ddl.ReadDeferred(t.Context(), m.target, "replicator", m.link))(t); m.indexes() != before || len(after) != len(specs) {
		t.Errorf("%s, and %d records; before that %s, %d records", m.indexes(), len(after), before, len(specs))
	}
}
