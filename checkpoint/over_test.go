package checkpoint

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// TestEnd: once a link has ended nobody can acquire it, also a process that had read it before; the
// end is in the state, and in a format that earlier releases refuse.
func TestEnd(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1}, 2)
	if over := must.Get(s.Over(ctx))(t); over != nil {
		t.Errorf("a link that goes on: %+v", over)
	}
	o := Over{At: time.UnixMilli(1_700_000_000_123).UTC(), By: "ann@db1", Source: ot(100), Reverse: &Reverse{
		Start: ot(7), Wall: 7000, Target: Source{ReplicaSetID: bson.RawValue{Type: bson.TypeInt32, Value: []byte{1, 0, 0, 0}}, SetName: "b", RBID: -1},
		Filters: Filters{Include: []string{"a"}, Map: []string{"a=b"}, Reversed: true},
	}}
	must.Succeed(t, h.End(ctx, o))
	must.Succeed(t, h.End(ctx, o))
	if got := must.Get(s.Over(ctx))(t); got == nil || !cmp.Equal(*got, o) {
		t.Errorf("it has ended: %+v", got)
	}
	st, found, err := s.Load(ctx)
	if err != nil || !found || st.Over == nil || !cmp.Equal(*st.Over, o) || st.Writers != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	standing, found, err := s.Look(ctx, lease.NewWatch(""))
	if err != nil || !found || standing.Over == nil || !cmp.Equal(*standing.Over, o) {
		t.Errorf("%+v, %v", standing, err)
	}
	_, err = s.Acquire(ctx, 0)
	if gone, is := errors.AsType[*OverError](err); !is || !cmp.Equal(gone.Over, o) || !strings.Contains(err.Error(), "was cut over at 2023-11-14 22:13:20 UTC by ann@db1: applications use its target") {
		t.Errorf("acquired: %v", err)
	}
	doc := must.Get(metadata.FindOne(ctx, g, "replicator", metadata.Links, metadata.ByID(s.Link())))(t)
	if format, _ := doc.Lookup("version").AsInt64OK(); format <= keeping {
		t.Errorf("format %d, which earlier releases read", format)
	}
}

// TestEndWhileAcquired: a process that reads a link before its end, and raises its term after it,
// does not lead it.
func TestEndWhileAcquired(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1}, 1)
	late := must.Get(New(Config{Target: g, Link: s.Link()}))(t)
	before := must.Get(late.readLink(ctx))(t)
	must.Succeed(t, h.End(ctx, Over{At: time.UnixMilli(1).UTC(), By: "ann", Source: ot(100)}))
	_, err := late.acquire(ctx, before, 0, lease.Claim{})
	if _, is := errors.AsType[*OverError](err); !is {
		t.Errorf("got %v", err)
	}
}
