package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

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

// TestVerifyAsked: what is to be compared again is asked of what compares the link; a process that does not
// compare it refuses the request.
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
		v.set(errors.New("planted"))
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
