package checkpoint

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// stillLane is a lane that talks to nobody.
func stillLane() (l *Lane, next Position) {
	h := &Link{store: &Store{cfg: Config{DB: "replicator", Link: "link"}}}
	l = &Lane{link: h, id: "link/0", position: Position{OpTime: oplog.NewOpTime(1_700_000_000, 1, 3), Op: 7}}
	h.state.Term = 5
	return l, Position{OpTime: oplog.NewOpTime(1_700_000_000, 2, 3), Op: 9}
}

// TestAllocs: what the move of a lane costs in each transaction, beside its way to
// the target and back.
func TestAllocs(t *testing.T) {
	l, next := stillLane()
	var cmd mongo.Command
	if n := testing.AllocsPerRun(100, func() { cmd = l.update(l.forward(next)) }); n > 10 {
		t.Errorf("the command that moves a lane makes %g allocations, at most 10 are allowed", n)
	}
	if len(cmd.Docs) != 1 {
		t.Errorf("%d statements", len(cmd.Docs))
	}
	reply, err := bson.Marshal(bson.D{{Key: "n", Value: int32(1)}, {Key: "nModified", Value: int32(1)}, {Key: "ok", Value: 1.0}})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if n, err := metadata.Written(reply); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); n > 0 {
		t.Errorf("its reply makes %g allocations, none are allowed", n)
	}
}

// BenchmarkMove builds the command that moves a lane.
func BenchmarkMove(b *testing.B) {
	l, next := stillLane()
	b.ReportAllocs()
	for b.Loop() {
		l.update(l.forward(next))
	}
}
