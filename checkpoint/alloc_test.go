package checkpoint

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// still is a target that accepts all commands, and has a link in term 5.
type still struct{}

func (still) Call(context.Context, mongo.Command) (bson.Raw, error) {
	doc := bson.D{{Key: "term", Value: int64(5)}, {Key: "holder", Value: "us"}, {Key: "instance", Value: "1"}}
	cursor := bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "replicator.links"}, {Key: "firstBatch", Value: bson.A{doc}}}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1.0}, {Key: "n", Value: int32(1)}, {Key: "cursor", Value: cursor}})
}

// stillLane returns a lane without a real target.
func stillLane(t testing.TB) (l *Lane, next Position) {
	held, _, err := lease.Acquire(t.Context(), lease.Config{Target: still{}, Holder: "us"}, lease.Record{Term: 4, Instance: "1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &Link{store: &Store{cfg: Config{DB: "replicator", Link: "link"}}, lease: held}
	l = &Lane{link: h, id: "link/0", position: Position{OpTime: oplog.NewOpTime(1_700_000_000, 1, 3), Op: 7}}
	return l, Position{OpTime: oplog.NewOpTime(1_700_000_000, 2, 3), Op: 9}
}

// TestAllocs limits the allocations of the move of a lane, without those of the network.
func TestAllocs(t *testing.T) {
	l, next := stillLane(t)
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
	l, next := stillLane(b)
	b.ReportAllocs()
	for b.Loop() {
		l.update(l.forward(next))
	}
}
