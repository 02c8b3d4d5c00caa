package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// errRival is how a link ends at its start while a process runs the link old, whose collections it would drop.
var errRival = errors.New("old, which a process runs, mirrors to shop.a, which would be dropped")

// TestReplacedLink: a link that must not start while another one runs, which the file does not have any more, is tried again until that one has
// drained, here or on another process. It is not if the file has the other one, or never had it: that it does not run for a moment, as
// its process is restarted, must not let this one drop its collections.
func TestReplacedLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 3)
		b.cfg.Explain = func(err error) Failure { return Failure{Code: 9, Error: err.Error(), Do: "Stop that link first."} }
		b.cfg.Until = func(err error) []string {
			if errors.Is(err, errRival) {
				return []string{"old"}
			}
			return nil
		}
		is := func(when, link string, state State) {
			t.Helper()
			if s := b.statusOf(link); s.State != state || s.LastFailure.Helps != (state == Retrying) ||
				strings.Contains(s.LastFailure.Do, "It is tried again until old has ended") != (state == Retrying) {
				t.Errorf("%s: %+v, %+v", when, s, s.LastFailure)
			}
		}
		b.fail("new", errRival)
		b.fail("broken", errLasting)
		b.set("new=1")
		_, result := b.work("new")
		is("another process's link", "new", Ended)
		b.set("old=1", "new=2")
		synctest.Wait()
		is("both in the file", "new", Ended)
		b.set("new=3", "broken=1")
		b.work("broken")
		is("replaced", "new", Retrying)
		is("another fault", "broken", Ended)
		time.Sleep(10 * time.Minute) // it drains elsewhere; to move would not help
		is("it drains for long", "new", Retrying)
		b.set("old=1", "new=3", "broken=1")
		time.Sleep(2 * time.Minute)
		is("in the file again", "new", Ended)
		b.set("new=4", "broken=1")
		synctest.Wait()
		is("replaced once more", "new", Retrying)
		b.fail("new", nil)
		time.Sleep(time.Minute)
		b.expect("it has drained", "new4")
		select {
		case err := <-result:
			t.Errorf("it no longer tries: %v", err)
		default:
		}
	})
}
