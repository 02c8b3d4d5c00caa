package control

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// cutmaker makes the cuts of a link that a test says.
type cutmaker struct {
	asked int

	mu     sync.Mutex // guards the rest
	newest checkpoint.Cut
	why    string
}

func (m *cutmaker) Cut() { m.asked++ }

func (m *cutmaker) NewestCut() (newest checkpoint.Cut, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest, m.why
}

// say sets the reason why there is no cut.
func (m *cutmaker) say(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.why = why
}

func (m *cutmaker) make(t uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest = checkpoint.Cut{Source: oplog.NewOpTime(t-1, 1, 1), Target: bson.Timestamp{T: t, I: 1}}
}

// deskTime is the desk's operationTime.
const deskTime = 50

func newCutting(d *desk, by term) (*desked, *cutmaker) {
	p, m := &desked{}, &cutmaker{}
	p.Controller = New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }, Cuts: m})
	p.end = lead(p.Controller, by)
	return p, m
}

// TestCutAsked: only a cut made after the request answers it, not an older one that is announced
// meanwhile; the outcome says why there is none.
func TestCutAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p, m := newCutting(d, 1)
		became := d.becoming(t)
		m.make(deskTime - 1)
		d.ask(request.Cut, `{}`)
		pass(listEvery)
		became(0, "working asked for")
		if m.asked == 0 {
			t.Error("no cut is asked for")
		}
		m.make(deskTime) // it was on its way
		m.say("the last cut is not committed by a majority of the target yet")
		became(0, "working "+m.why)
		m.say("")
		m.make(0)
		became(0, "working asked for")
		m.make(deskTime + 1)
		became(0, "done the target at 51:1 is the source as of "+oplog.NewOpTime(deskTime, 1, 1).String())

		// What nobody can make is given up, and asked for again before that: an attempt forgets it.
		d.ask(request.Cut, `{"withinSeconds": 100}`)
		before := m.asked
		m.make(deskTime - 1)
		m.say("the copy is not consistent yet")
		pass(listEvery)
		became(1, "working the copy is not consistent yet")
		pass(100 * time.Second)
		became(1, "failed none could be made within 1m40s: the copy is not consistent yet")
		if n := m.asked - before; n < 10 || n > 25 {
			t.Errorf("asked for %d times", n)
		}
		if len(p.cutting) != 0 {
			t.Errorf("kept: %v", p.cutting)
		}
		d.ask(request.Cut, `{"withinSeconds": 86401}`)
		pass(listEvery)
		became(2, "refused not a valid request: cut: withinSeconds: want 1 to 86400, it is 86401")
		p.end()
	})
}

// TestCutPaused: a link that is paused makes no cut, and says so at once.
func TestCutPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p, m := newCutting(d, 1)
		m.make(deskTime + 1)
		d.ask(request.Pause, `{}`)
		d.ask(request.Cut, `{}`)
		pass(listEvery + time.Second)
		if got := d.records[1]; got.State != request.Refused || !strings.HasPrefix(got.Outcome, "the link is paused, since ") || m.asked != 0 {
			t.Errorf("%+v, asked for %d times", got, m.asked)
		}
		p.end()
	})
}

// TestCutTakenOver: a process that takes a link over repeats a request that another one has begun.
func TestCutTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p, _ := newCutting(d, 1)
		d.ask(request.Cut, `{}`)
		pass(listEvery + time.Second)
		p.end()
		next, m := newCutting(d, 2)
		pass(time.Second)
		if d.states() != "working" || m.asked != 1 {
			t.Errorf("%s, asked for %d times", d.states(), m.asked)
		}
		m.make(deskTime + 1)
		pass(2 * time.Second)
		if d.states() != "done" {
			t.Errorf("%+v", d.records)
		}
		next.end()
	})
}
