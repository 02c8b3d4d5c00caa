package control

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// asked is a Verification that records what it was asked for.
type asked struct {
	mu   sync.Mutex
	all  []string
	away error // it cannot store anything
}

func (a *asked) Ask(_ context.Context, sourceNS []oplog.Namespace, why string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.away != nil {
		return a.away
	}
	for _, ns := range sourceNS {
		a.all = append(a.all, string(ns))
	}
	a.all = append(a.all, why)
	return nil
}

func (a *asked) set(away error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}

// TestVerifyAsked: a request to compare collections again goes to the verification of the link; a process that
// does not verify it refuses the request.
func TestVerifyAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, v := newDesk(), &asked{}
		became := d.becoming(t)
		begin := func(v Verification) *desked {
			p := &desked{Controller: New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }, Cuts: &cutmaker{}, Verification: v})}
			p.end = lead(p.Controller, 1)
			return p
		}
		p := begin(v)
		v.set(servererr.New(servererr.NotWritablePrimary, "planted"))
		d.ask(request.Verify, `{"namespaces":["d.a","d.b"]}`)
		pass(listEvery)
		became(0, "asked ") // It is not stored that they have to be compared.
		v.set(nil)
		d.ask(request.Verify, `{}`)
		pass(listEvery)
		const next = ` is compared next, after the round that runs, if one does; "verified as of" in the status says when that is done`
		became(0, "done d.a, d.b"+next)
		became(1, "done everything"+next)
		p.end()
		v.mu.Lock()
		if len(v.all) != 4 || !slices.Equal(v.all[:2], []string{"d.a", "d.b"}) {
			t.Errorf("asked for %q", v.all)
		}
		v.mu.Unlock()
		p = begin(nil)
		d.ask(request.Verify, `{}`)
		pass(listEvery)
		became(2, "refused the process that runs the link does not compare it: start it with --verify=continuous, or run replicator verify")
		p.end()
	})
}

// TestHeldUp: a request that cannot be carried out fails, and holds up none of those that follow; neither do
// requests to copy again that cannot be read, and a history that cannot be cut.
func TestHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, v := newDesk(), &asked{}
		became := d.becoming(t)
		c := New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }, Cuts: &cutmaker{}, Verification: v})
		end := lead(c, 1)
		level := func(n int, level string) {
			t.Helper()
			d.ask(request.LogLevel, `{"level":"`+level+`"}`)
			pass(listEvery)
			became(n, "done logs from level "+level+" on")
		}
		v.set(errors.New("not allowed"))
		d.ask(request.Verify, `{}`)
		level(1, "info")
		became(0, "failed act on a request to compare again: not allowed")

		v.set(context.DeadlineExceeded) // that may pass
		d.ask(request.Verify, `{}`)
		level(3, "warn")
		became(2, "asked ")
		pass(markFor)
		became(2, "failed act on a request to compare again: context deadline exceeded")
		v.set(nil)

		for n, unread := range []bool{true, false} {
			d.set(func() {
				d.unread, d.uncut = nil, errors.New("planted")
				if unread {
					d.unread, d.uncut = errors.New("planted"), nil
				}
			})
			level(4+n, []string{"error", "debug"}[n])
			if s := c.Status(); s.UnreadSince.IsZero() || !strings.Contains(s.UnreadWhy, "planted") || len(s.Records) != 5+n {
				t.Errorf("%t: it is not said: %+v", unread, s)
			}
		}
		d.set(func() { d.uncut = nil })
		pass(2 * time.Second)
		if s := c.Status(); !s.UnreadSince.IsZero() {
			t.Errorf("%+v", s)
		}
		end()
	})
}
