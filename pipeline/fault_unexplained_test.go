package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestRefusedUnexplained: a fault of the target's own, or a refusal with a code that is not known, does not end a link
// at once.
func TestRefusedUnexplained(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	w.play("source insert shop.a 1..50")
	for _, tt := range []struct {
		command string
		code    int
		passes  bool // no attempt ends with it
	}{{"find", 1, false}, {"update", 8, false}, {"listCollections", 96, false}, {"update", 4_567_890, false}, {"update", 204, true}} {
		met := fmt.Sprintf("%s refused with %d", tt.command, tt.code)
		before := len(w.attemptsEnded())
		w.refusing(tt.command, tt.code, 1)
		w.play(fmt.Sprintf("start copy link=%s%d flush=20 drop-existing", tt.command, tt.code))
		w.play("await caught-up\nequal\ndrain")
		if err := w.links["a"].err; err != nil && !errors.Is(err, failure.ErrStopped) {
			t.Errorf("%s: %v", met, err)
		}
		if w.refusing("", 0, 0) == 0 {
			t.Errorf("%s: it was not met", met)
		}
		if ended := w.attemptsEnded()[before:]; tt.passes && len(ended) > 0 {
			t.Errorf("%s: an attempt ended: %v", met, ended)
		}
	}
}

// TestRefusedUnexplainedForGood: such a refusal that lasts ends a link, and is what its error names.
func TestRefusedUnexplainedForGood(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	w.refusing("update", 8, -1)
	w.play("start copy\nended")
	err := w.links["a"].err
	if e, is := errors.AsType[*servererr.Error](err); !is || e.Code != servererr.UnknownError || !strings.Contains(err.Error(), "acquire its lease") {
		t.Errorf("it ended with: %v", err)
	}
	if n := len(w.attemptsEnded()); n != 7 {
		t.Errorf("%d attempts were followed by another one", n)
	}
}

// faulty is a target that refuses the next reads of one process.
type faulty struct {
	pipeline.Cluster
	refuses atomic.Int32
}

// Call implements mongo.Caller.
func (f *faulty) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if first, _ := cmd.Body.IndexErr(0); first.Key() == "find" && f.refuses.Add(-1) >= 0 {
		return nil, servererr.New(servererr.UnknownError, "a fault")
	}
	return f.Cluster.Call(ctx, cmd)
}

// TestLooksRefusedUnexplained: a process that stands by goes on to do so.
func TestLooksRefusedUnexplained(t *testing.T) {
	t.Parallel()
	opts := mongosim.Options{Members: 1, Moods: mongosim.NoMoods("it has refusals of its own")}
	w := newWorld(t, opts, opts)
	f := &faulty{}
	w.play("start a lease=20s\nawait running a")
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		f.Cluster = c
		return f
	}
	w.play("start b lease=20s\nawait standby b")
	w.asTarget = nil
	f.refuses.Store(2)
	if err := w.untilOf(w.links["b"], "looks", func() bool { return f.refuses.Load() < 0 }); err != nil {
		t.Fatal(err, w.links["b"].err)
	}
	w.play("drain a\nawait running b\ndrain b")
}
