package mongoboard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance: on the embedded set, one database for each test.
func TestConformance(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1})
	set := client.Open(t, driver.Config{URI: sim.URI()})
	sharetest.Run(t, time.Second, func(t *testing.T) share.Board { return New(set, strings.ReplaceAll(t.Name(), "/", "_")) })
}

// TestClockWithoutHello: servers before 4.4.2 know hello as isMaster.
func TestClockWithoutHello(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Dialect: "4.4", NoHello: true})
	if now, err := New(client.Open(t, driver.Config{URI: sim.URI()}), "replicator").clock(t.Context()); err != nil || now.IsZero() {
		t.Errorf("%s, %v", now, err)
	}
}

// one executes one command.
type one struct {
	mongo.Caller
	called bool
}

var errOne = errors.New("the second command")

func (o *one) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if o.called {
		return nil, errOne
	}
	o.called = true
	return o.Caller.Call(ctx, cmd)
}

// TestLeavesNothing: a member that is killed while it leaves does not stay on the board, where nothing would
// remove it.
func TestLeavesNothing(t *testing.T) {
	t.Parallel()
	set := client.Open(t, driver.Config{URI: mongosim.StartTest(t, mongosim.Options{Moods: mongosim.GentleMoods("one command is executed, and its effect examined"), Seed: 2}).URI()})
	board := New(set, "replicator")
	must.Get(board.Beat(t.Context(), "g", share.Member{Name: "m", Process: "p"}, time.Second))(t)
	must.Fail(t, New(&one{Caller: set}, "replicator").Leave(t.Context(), "g", "m", "p"), errOne)
	if list, _, err := board.Members(t.Context(), "g"); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v are on the board", list, err)
	}
}
