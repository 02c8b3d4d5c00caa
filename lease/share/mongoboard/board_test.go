package mongoboard

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
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
