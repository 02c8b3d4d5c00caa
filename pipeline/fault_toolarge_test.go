package pipeline_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
)

// TestTooLargeForCache: an operation that never fits the storage cache of the target ends the link, and is named.
func TestTooLargeForCache(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	must.Succeed(t, w.start("a", pipeline.Config{Writers: 2, TooLargeFor: time.Second}, scope.Config{}))
	w.play("await running\nsource run shop {\"create\": \"a\"}\nawait applied")
	w.refusing("insert", 388, -1)
	w.play("source insert shop.a 7..7")
	l := w.links["a"]
	w.awaitEnd(l)
	e, is := errors.AsType[*failure.TooLargeError](l.err)
	if !is || e.Tried < time.Second || !strings.Contains(l.err.Error(), "insert to shop.a, _id 7") {
		t.Errorf("it ended with: %v", l.err)
	}
	if v := failure.Classify(l.err); v.Code != failure.ExitUnsupported {
		t.Errorf("%+v", v)
	}
}
