package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify/standing"
)

// mostNested is how many verifications of one link run in one case, mostDepth how deep they are nested.
const mostNested, mostDepth = 5, 3

// nest is a link whose verifications are suspended at their writes, at random. Meanwhile others run, and the collections change.
type nest struct {
	t              *testing.T
	rand           *rand.Rand
	source, target mongo.Caller
	db, link       string
	// calm means that nothing happens at the writes any more.
	calm bool

	// lives are the collections by their names: one that is made again is another one.
	lives map[string]int
	mu    sync.Mutex // guards found, trace and fault
	// differs are the documents that only the source has, with their collections; found are those that verifications have reported.
	differs map[string]int
	found   map[string]bool
	// made numbers collections and documents, begun verifications.
	made, begun int
	trace       []string
	// fault is the first one, empty for none: all verifications are killed then.
	fault string
}

func (n *nest) log(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.trace = append(n.trace, fmt.Sprintf(format, args...))
}

func (n *nest) failed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fault != ""
}

func (n *nest) fail(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault == "" {
		n.fault = fmt.Sprintf(format, args...) + "\n" + strings.Join(n.trace, "\n")
	}
}

// do runs a command on the clusters.
func (n *nest) do(db string, cmd bson.D, on ...mongo.Caller) {
	for _, c := range on {
		reply, err := c.Call(n.t.Context(), mongo.Command{DB: db, Body: must.Marshal(n.t, cmd)})
		if err == nil {
			var faults []mongo.WriteError
			if faults, err = mongo.WriteErrors(reply); len(faults) > 0 {
				n.fail("%v: %v", cmd, faults)
			}
		}
		if err != nil {
			n.fail("%v: %v", cmd, err)
		}
	}
}

func (n *nest) insert(coll, id string, on ...mongo.Caller) {
	n.do(n.db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}}, on...)
}

// create makes a collection with a document.
func (n *nest) create(coll string) {
	n.made++
	n.lives[coll] = n.made
	n.do(n.db, bson.D{{Key: "create", Value: coll}}, n.source, n.target)
	n.insert(coll, fmt.Sprintf("same%d", n.made), n.source, n.target)
}

// drop drops a collection, if there is one of the name.
func (n *nest) drop(coll string) {
	life, is := n.lives[coll]
	if !is {
		return
	}
	maps.DeleteFunc(n.differs, func(_ string, of int) bool { return of == life })
	delete(n.lives, coll)
	n.do(n.db, bson.D{{Key: "drop", Value: coll}}, n.source, n.target)
}

// repair inserts the documents that differ, and records it.
func (n *nest) repair(coll string, record bool) {
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(n.differs)) {
		if n.differs[id] == n.lives[coll] {
			n.log("%s: %s is repaired, recorded %t", coll, id, record)
			n.insert(coll, id, n.target)
			delete(n.differs, id)
			texts = append(texts, IDText(must.Marshal(n.t, bson.D{{Key: "_id", Value: id}}).Lookup("_id")))
		}
	}
	if record && len(texts) > 0 {
		at := must.Get(mongo.OperationTime(n.t.Context(), n.target))(n.t)
		must.Succeed(n.t, n.store().Repaired(n.t.Context(), oplog.Namespace(n.db+"."+coll), texts, at))
	}
}

func (n *nest) store() *standing.Store {
	return &standing.Store{Target: n.target, DB: "replicator", Link: n.link}
}

// act changes a collection on both sides, or one of its documents on one.
func (n *nest) act() {
	names := []string{"a", "b"}
	which := n.rand.IntN(len(names))
	coll, other := names[which], names[1-which]
	_, is := n.lives[coll]
	switch act := n.rand.IntN(7); {
	case act == 0 || !is:
		n.log("%s is made again", coll)
		n.drop(coll)
		n.create(coll)
	case act == 1:
		n.log("%s is dropped", coll)
		n.drop(coll)
	case act == 2:
		n.log("%s is renamed to %s", coll, other)
		n.drop(other)
		n.do("admin", bson.D{{Key: "renameCollection", Value: n.db + "." + coll}, {Key: "to", Value: n.db + "." + other}}, n.source, n.target)
		n.lives[other] = n.lives[coll]
		delete(n.lives, coll)
	case act <= 4:
		n.repair(coll, act == 3)
	default:
		n.made++
		id := fmt.Sprintf("d%d", n.made)
		n.log("%s: %s is missing", coll, id)
		n.insert(coll, id, n.source)
		n.differs[id] = n.lives[coll]
	}
}

// process is a verification of a nest. Its target refuses everything once it is killed.
type process struct {
	mongo.Caller
	n      *nest
	name   string
	depth  int
	killed atomic.Bool
}

var errNestKilled = errors.New("killed")

// Call implements mongo.Caller.
func (p *process) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	n := p.n
	if n.failed() {
		p.killed.Store(true)
	}
	if p.killed.Load() {
		return nil, errNestKilled
	}
	name := simcaller.Name(cmd)
	coll, _ := rawbson.Lookup(cmd.Body, name)
	if text, _ := coll.Text(); n.calm || text != "verified" || name != "update" && name != "delete" {
		return p.Caller.Call(ctx, cmd)
	}
	switch draw := n.rand.IntN(12); {
	case draw < 2:
		p.killed.Store(true)
		n.log("%s is killed, before %t: %s %s", p.name, draw == 0, name, cmd.Docs)
		if draw == 1 {
			_, _ = p.Caller.Call(ctx, cmd)
		}
		return nil, errNestKilled
	case draw < 8:
		n.log("%s is suspended before: %s %s", p.name, name, cmd.Docs)
		for range 1 + n.rand.IntN(3) {
			if p.depth < mostDepth && n.begun < mostNested && n.rand.IntN(3) > 0 {
				n.verify(p.depth + 1) //nolint:contextcheck // the other one is not of this call
			} else {
				n.act() //nolint:contextcheck // as above
			}
		}
		n.check() //nolint:contextcheck // as above
		n.log("%s continues", p.name)
	}
	return p.Caller.Call(ctx, cmd)
}

// verify runs a verification.
func (n *nest) verify(depth int) {
	n.begun++
	p := &process{Caller: n.target, n: n, name: fmt.Sprintf("%s%d", strings.Repeat("  ", depth), n.begun), depth: depth}
	resume := !n.calm && n.rand.IntN(2) == 0
	n.log("%s begins, resumed %t", p.name, resume)
	_, err := must.Get(New(Config{
		Source: n.source, Target: p, Cuts: &rest{source: n.source, target: n.target}, Workers: 1,
		Scope: must.Get(scope.New(scope.Config{Include: []string{n.db + ".*"}}))(n.t),
		Found: func(d *Difference) error {
			if len(d.IDBSON) > 0 {
				n.log("%s finds %s in %s", p.name, d.id(), d.NS)
				n.found[d.id().StringValue()] = true
			}
			return nil
		},
		Progress: &Progress{Target: p, DB: "replicator", Link: n.link, Resume: resume},
	}))(n.t).Run(n.t.Context())
	n.log("%s ends: %v", p.name, err)
	if (err != nil) != p.killed.Load() {
		n.fail("%s: %v", p.name, err)
	}
	n.check()
}

// check checks that no difference is lost that was reported, unless the link does not count as verified.
func (n *nest) check() {
	st := must.Get(standing.Read(n.t.Context(), n.target, "replicator", n.link))(n.t)
	if st.AsOf == nil {
		return
	}
	listed := map[string]bool{}
	for i := range st.Differing {
		for _, f := range st.Differing[i].Found {
			listed[strings.Trim(f.ID, `"`)] = true
		}
	}
	for id := range n.differs {
		n.mu.Lock()
		found := n.found[id]
		n.mu.Unlock()
		if found && !listed[id] {
			n.fail("%s was found, and is lost: %+v", id, st)
		}
	}
}

// settle checks that a verification which nothing disturbs finds what differs, and that nothing else has remained.
func (n *nest) settle() {
	n.calm = true
	n.verify(0)
	st := must.Get(standing.Read(n.t.Context(), n.target, "replicator", n.link))(n.t)
	if st.AsOf == nil || st.New != 0 || st.Collections != len(n.lives) || int(st.Differences) != len(n.differs) || len(st.Unchecked) > 0 {
		n.fail("%d collections, %d differences: %+v", len(n.lives), len(n.differs), st)
	}
}

// newNest returns a nest whose database and link have names of their own, with two collections.
func newNest(t *testing.T, source, target *simcaller.Caller, prefix string, of rand.Source, seed uint64) *nest {
	t.Helper()
	name := fmt.Sprint(prefix, seed)
	n := &nest{
		t: t, rand: rand.New(of), source: source, target: target, db: name, link: name,
		lives: map[string]int{}, differs: map[string]int{}, found: map[string]bool{},
	}
	n.create("a")
	n.create("b")
	return n
}

// TestNested: a difference that was found stays known until it is repaired, or its collection is gone, however verifications of a link
// are suspended, killed and continued, and whatever happens to its collections meanwhile.
func TestNested(t *testing.T) {
	t.Parallel()
	source := &simcaller.Caller{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, TTLInterval: -1})}
	target := &simcaller.Caller{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, TTLInterval: -1})}
	for seed := range uint64(100) {
		n := newNest(t, source, target, "d", rand.NewPCG(1, seed), seed)
		for range 2 + n.rand.IntN(5) {
			if n.begun < mostNested && n.rand.IntN(2) == 0 {
				n.verify(0)
			} else {
				n.act()
			}
		}
		n.verify(0)
		if n.fault == "" {
			n.settle()
		}
		if n.fault != "" {
			t.Fatalf("seed %d: %s", seed, n.fault)
		}
		n.do(n.db, bson.D{{Key: "dropDatabase", Value: 1}}, source, target)
	}
}
