package e2e

import (
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
)

// rarities checks on both sides what holds after rare writes, and that users and roles are mirrored if that was asked for, and only then.
func (l *live) rarities(t *testing.T) {
	t.Helper()
	from, to := connect(t, l.source.uriFor(admin)), connect(t, l.target.uriFor(admin))
	for name, c := range map[string]mongo.Caller{"source": from, "target": to} {
		if err := traffic.Check(t.Context(), c, "live"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if l.real {
		return
	}
	for _, coll := range []string{"system.users", "system.roles"} {
		want, got := writtenTo(t, from, coll), writtenTo(t, to, coll)
		if !l.users {
			want = nil
		}
		if !slices.Equal(want, got) {
			t.Errorf("admin.%s of the target has %s\nwant %s", coll, got, want)
		}
	}
}

// writtenTo returns the users or roles of the database that clients write to.
func writtenTo(t *testing.T, c mongo.Caller, coll string) (docs []string) {
	t.Helper()
	reply := command(t, c, "admin", bson.D{{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "db", Value: "live"}}}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}})
	for _, doc := range must.Get(mongo.ReadBatch(reply))(t).Docs {
		docs = append(docs, doc.String())
	}
	return docs
}
