package applier

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/race"
)

func TestMain(m *testing.M) {
	if race.Enabled { // the flag, where it is given, comes after this
		if err := flag.Set("rapid.checks", "40"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
