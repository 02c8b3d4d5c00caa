package main

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestCutoverSaysWhetherFrozen: writes to the source are not said to be stopped by a command that the source has refused, or
// of which no answer is known.
func TestCutoverSaysWhetherFrozen(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{linkFlags: linkFlags{Link: "dr"}}
	r := &record.Record{Link: "dr", State: record.Running, Options: record.Options{Freeze: record.Block}}
	r.Begin(record.Freeze, "me", time.Now())
	says := func(want string) {
		t.Helper()
		err := c.unmoved(t.Context(), r, &cutover.StepError{Step: record.Freeze, Err: servererr.New(servererr.Unauthorized, "not authorized")})
		if _, hint := explain(err); !strings.HasPrefix(hint, want) {
			t.Errorf("got %s, want %s", hint, want)
		}
	}
	says("Writes to the source may be stopped. ")
	r.End(record.Freeze, "writes of users are blocked", time.Now())
	says("Writes to the source are stopped. ")
}
