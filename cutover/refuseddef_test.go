package cutover_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// unfenced is the fence of a link whose lease nobody else has.
type unfenced struct{ target mongo.Caller }

// Check implements ddl.Fence.
func (unfenced) Check(context.Context) error { return nil }

// Within implements ddl.Fence.
func (u unfenced) Within(_ context.Context, work func(txn mongo.Caller) error) error {
	return work(u.target)
}

// TestConvertRefusedDefinition: an index that the target does not have because it refuses its definition keeps neither a cutover nor a
// promotion from its end, as whoever begins it has waived that the target lacks it: it is named. The other indexes do not wait for it.
func TestConvertRefusedDefinition(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5.0", "7.0"} {
		target := open(t, version)
		m := newMoved(t, target, "d")
		coll := must.Get(catalog.Look(t.Context(), target, m.ns()))(t)
		spec := `{"v": 2, "key": {"a": "unknown"}, "name": "a_unknown", "unique": true, "expireAfterSeconds": 5}`
		must.Succeed(t, metadata.Run(t.Context(), target, metadata.Majority(metadata.Write("replicator", "insert", metadata.Deferred, "documents", reply(bson.D{
			{Key: "_id", Value: bson.D{{Key: "link", Value: m.link}, {Key: "ns", Value: string(m.ns())}, {Key: "index", Value: "a_unknown"}}},
			{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: coll.UUID[:]}},
			{Key: "deferred", Value: bson.A{"unique", "expireAfterSeconds"}},
			{Key: "absent", Value: true},
			{Key: "spec", Value: bson.Binary{Data: bsongen.FromJSON(t, spec)}},
		}))), 1))
		var said []string
		cfg := &cutover.ConvertConfig{
			Target: target, Fence: unfenced{target}, MetaDB: "replicator", Link: m.link, Said: func(what string) { said = append(said, what) },
		}
		names := func() bool {
			return slices.ContainsFunc(said, func(what string) bool {
				return strings.HasPrefix(what, "d.a: index a_unknown: is not built, as the target refuses it: ") && strings.Contains(what, "Unknown index plugin")
			})
		}
		const converted = "_id_, at_1, email_1 unique, late_1 unique"
		if _, err := cutover.Convert(t.Context(), cfg); err != nil || !names() || m.indexes() != converted {
			t.Fatalf("%s: %v; %q; %s", version, err, said, m.indexes())
		}
		if _, err := cutover.Revert(t.Context(), cfg); err != nil || m.indexes() != "_id_, at_1, email_1" {
			t.Fatalf("%s: put back: %v; %s", version, err, m.indexes())
		}
		if left := must.Get(ddl.ReadLacking(t.Context(), target, "replicator", m.link))(t); len(left.Indexes) != 2 {
			t.Fatalf("%s: put back, and lacking %v", version, left.Indexes)
		}
		said = nil
		if _, refused, err := cutover.Restore(t.Context(), cfg); err != nil || len(refused) > 0 || !names() || m.indexes() != restoredIndexes {
			t.Fatalf("%s: promoted: %v, %v; %q; %s", version, refused, err, said, m.indexes())
		}
		if left := must.Get(ddl.ReadDeferred(t.Context(), target, "replicator", m.link))(t); len(left) != 0 {
			t.Errorf("%s: deferred is %v", version, left)
		}
	}
}

// noIndexes is a target that refuses to build indexes.
type noIndexes struct{ mongo.Caller }

// Call implements mongo.Caller.
func (n noIndexes) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("createIndexes"); err == nil {
		return nil, servererr.New(servererr.CannotCreateIndex, "add index fails, too many indexes")
	}
	return n.Caller.Call(ctx, cmd)
}

// TestConvertLosesNoIndex: an index that the target had, and does not have any more as an earlier attempt has dropped it to build it again, is not passed
// over if the target refuses it then: nobody has accepted that it is lacking.
func TestConvertLosesNoIndex(t *testing.T) {
	t.Parallel()
	target := open(t, "5.0")
	m := newMoved(t, target, "d")
	m.run("d", `{"dropIndexes": "a", "index": "email_1"}`)
	refuses := noIndexes{target}
	cfg := &cutover.ConvertConfig{Target: refuses, Fence: unfenced{refuses}, MetaDB: "replicator", Link: m.link, Said: func(string) {}}
	if _, err := cutover.Convert(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "email_1") {
		t.Errorf("converted: %v; the indexes are %s", err, m.indexes())
	}
	cfg.Target, cfg.Fence = target, unfenced{target}
	if _, err := cutover.Convert(t.Context(), cfg); err != nil || !strings.Contains(m.indexes(), "email_1 unique") {
		t.Errorf("later: %v; the indexes are %s", err, m.indexes())
	}
}
