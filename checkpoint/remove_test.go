package checkpoint

import (
	"context"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
)

// removals answers deletes, and records their collections.
type removals struct{ collections []string }

// Call implements mongo.Caller.
func (r *removals) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	if name, ok := cmd.Body.Lookup("delete").StringValueOK(); ok {
		r.collections = append(r.collections, name)
	}
	return bson.Marshal(bson.D{{Key: "n", Value: 0}, {Key: "ok", Value: 1}})
}

// TestRemovePart: a link's own document is removed first, so that an interrupted Remove
// leaves no link; that of a part is removed last, so that Parts still returns it.
func TestRemovePart(t *testing.T) {
	t.Parallel()
	for of, last := range map[string]bool{"": false, "mirror": true} {
		target := &removals{}
		s := must[*Store](t)(New(Config{Target: target, Link: "a", Of: of}))
		succeed(t, s.Remove(t.Context()))
		want := 0
		if last {
			want = len(target.collections) - 1
		}
		if slices.Index(target.collections, metadata.Links) != want || len(target.collections) < 2 {
			t.Errorf("of %q: removed from %v", of, target.collections)
		}
	}
}
