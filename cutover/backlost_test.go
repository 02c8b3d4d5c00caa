package cutover_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// suspends is a set at which a process is suspended before it reads the oplog for the last time, as long as do takes.
type suspends struct {
	mongo.Caller
	reads int
	do    func()
}

// Call implements mongo.Caller.
func (s *suspends) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	_, err := cmd.Body.LookupErr("filter", "ts", "$lte")
	if cmd.DB == "local" && cmd.Body.Index(0).Key() == "find" && err == nil {
		if s.reads++; s.reads == 2 {
			s.do()
		}
	}
	return s.Caller.Call(ctx, cmd)
}

// TestBackOverwritten: a way back does not begin if the oplog of its target was overwritten while the process that
// examines it was suspended: it may have had writes.
func TestBackOverwritten(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{
		Members: 1, Seed: 3, Dialect: "7.0", OplogBytes: 64 << 10, Moods: mongosim.GentleMoods("the oplog is overwritten at one moment"),
	})
	s := sidesOf(t, client.Open(t, driver.Config{URI: sim.URI()}), open(t, "7.0"))
	last := &suspends{Caller: s.last, do: func() {
		insert(t, s.last, "shop", "c", 2)
		for range 40 {
			must.Get(s.last.Call(t.Context(), mongo.Command{DB: "admin", Body: must.Get(bson.Marshal(bson.D{
				{Key: "appendOplogNote", Value: 1}, {Key: "data", Value: bson.D{{Key: "msg", Value: strings.Repeat("x", 4<<10)}}},
			}))(t)}))(t)
		}
	}}
	err := s.begin(last)
	if !errors.Is(err, cutover.ErrTouched) || !errors.Is(err, guard.ErrNotReached) {
		t.Errorf("it begins over a write that it has not seen: %v", err)
	}
	s.is("overwritten", 3600)
}
