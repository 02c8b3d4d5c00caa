package control

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// repairer returns the outcomes of repairs.
type repairer struct {
	mu               sync.Mutex // guards the rest
	state, outcome   string
	terms            []int64
	namespaces       map[string]bool
	asked, forgotten int
}

func (r *repairer) Follow(term int64, _ string, args request.RepairArgs, _ string) (state, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	r.terms, r.namespaces[args.Namespace] = append(r.terms, term), true
	return r.state, r.outcome
}

func (r *repairer) Forget(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgotten++
}

// with changes or reads the answers, under the mutex.
func (r *repairer) with(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// TestRepairAsked: the leader follows a repair to its end; one that it did not end the next leader
// begins again.
func TestRepairAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		r := &repairer{state: request.Working, outcome: "1 of 2", namespaces: map[string]bool{}}
		begin := func(by term) *desked {
			p := &desked{Controller: New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }, Cuts: &cutmaker{}, Repairs: r})}
			p.end = lead(p.Controller, by)
			return p
		}
		became := d.becoming(t)
		p := begin(1)
		d.ask(request.Repair, `{"namespace":"d.a","ids":["DgAAABBfaWQAEQAAAAA="]}`)
		pass(listEvery)
		became(0, "working 1 of 2")
		p.end()
		p = begin(2)
		became(0, "working 1 of 2")
		r.with(func() { r.state, r.outcome = request.Done, "2 documents" })
		became(0, "done 2 documents")
		asked := 0
		r.with(func() {
			if last := r.terms[len(r.terms)-1]; last != 2 || r.terms[0] != 1 || r.forgotten != 1 || !r.namespaces["d.a"] {
				t.Errorf("terms %v, forgotten %d, %v", r.terms, r.forgotten, r.namespaces)
			}
			asked = r.asked
		})
		d.ask(request.Repair, `{"namespace":"d.a"}`)
		pass(listEvery)
		became(1, `refused not a valid request: repair: want either ids, or from and to; a whole collection is copied again by a request of the kind resync`)
		r.with(func() {
			if r.asked != asked {
				t.Error("a request without documents is begun")
			}
		})
		p.end()
	})
}
