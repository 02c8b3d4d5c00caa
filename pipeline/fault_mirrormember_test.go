package pipeline_test

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// TestStaleWithMirrorMember: members of the source that represent a mirror have no oplog to
// wait for: a link that is too stale for all other members ends.
func TestStaleWithMirrorMember(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"its own": true, "another link's": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, TTLInterval: -1, OplogBytes: 30_000}, mongosim.Options{Members: 1, Seed: 2, TTLInterval: -1})
			member := w.addMember()
			start := func() {
				cfg := pipeline.Config{Writers: 2}
				if own {
					cfg.Feedback, cfg.MemberID = feedback.Member, member
				}
				must.Succeed(t, w.start("a", cfg, scope.Config{}))
			}
			start()
			w.play("source insert shop.a 1..10\nawait caught-up\ndrain\nsource insert shop.a 1000..1400 size=200")
			start()
			w.play("ended")
			err := w.links["a"].err
			if stale, ok := errors.AsType[*syncsource.TooStaleError](err); !ok || failure.Classify(err).Code != failure.ExitResync {
				t.Errorf("it ended with %v, %v", err, stale)
			}
		})
	}
}
