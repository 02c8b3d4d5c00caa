package client

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// ErrKilled is the error of each command of a process that was killed.
var ErrKilled = errors.New("killed")

// Chances decide which commands of several processes fail in a test, and keep a log for the message of a failure.
type Chances struct {
	Rand *rand.Rand
	Calm bool // nothing fails any more
	Log  []string
	// Fault is the first fault of the code that is tested, empty for none.
	Fault string
}

// Note adds a line to Log.
func (c *Chances) Note(format string, args ...any) {
	c.Log = append(c.Log, fmt.Sprintf(format, args...))
}

// Fail sets Fault, if there was none before.
func (c *Chances) Fail(format string, args ...any) {
	if c.Fault == "" {
		c.Fault = fmt.Sprintf(format, args...)
	}
}

// One reports true in one of n cases, unless it is calm.
func (c *Chances) One(n int) bool { return !c.Calm && c.Rand.IntN(n) == 0 }

// reporter is a *testing.T.
type reporter interface {
	T
	Errorf(format string, args ...any)
}

// Play makes so many steps and then settles, until there is a fault, and reports that.
func (c *Chances) Play(t reporter, steps int, step, settle func()) {
	t.Helper()
	for range steps {
		if c.Fault == "" {
			step()
		}
	}
	if c.Fault == "" {
		settle()
	}
	if c.Fault != "" {
		t.Errorf("%s\n%s", c.Fault, strings.Join(c.Log, "\n"))
	}
}

// Process is a process whose commands fail by chance: it dies before one of so many, and one of so many does not arrive, or its reply is lost.
type Process struct {
	Name        string
	Dead        bool
	Dies, Loses int
}

// Send has a process send a command.
func (c *Chances) Send(p *Process, command string, send func() (bson.Raw, error)) (bson.Raw, error) {
	if c.One(p.Dies) {
		p.Dead = true
		c.Note("%s dies before its %s", p.Name, command)
	}
	if p.Dead {
		return nil, ErrKilled
	}
	lost := &mongo.LostError{Host: "target", Err: errors.New("no answer")}
	if c.One(p.Loses) {
		c.Note("%s: its %s does not arrive", p.Name, command)
		return nil, lost
	}
	reply, err := send()
	if c.One(p.Loses) {
		c.Note("%s: the reply to its %s is lost", p.Name, command)
		return nil, lost
	}
	return reply, err
}
