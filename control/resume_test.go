package control

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/oplogrep/replicator/request"
)

// TestResumes: a process has resumed the link, and its answer is lost, or it dies before it answers. The operator is told that
// the link was resumed.
func TestResumes(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk()
			p := newDesked(d, 4)
			d.ask(request.Pause, `{}`)
			pass(2 * listEvery)
			d.set(func() { d.after = errors.New("died") })
			d.ask(request.Resume, `{}`)
			pass(2 * listEvery)
			if d.settings.Paused != nil || d.states() == "done done" {
				t.Fatalf("%+v %s", d.settings.Paused, d.states())
			}
			by := term(4)
			if dies {
				p.end()
				by++
			}
			d.set(func() { d.after = nil })
			if dies {
				p = newDesked(d, by)
			}
			pass(2 * listEvery)
			if r := d.records[1]; r.State != request.Done || r.Outcome != "resumed" {
				t.Errorf("dies %t: %s %s", dies, r.State, r.Outcome)
			}
			p.end()
		})
	}
}
