package process

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// witness follows the link's documents in the target's oplog, up to its commit point: all
// that took effect, in the order in which it did. It finds what must not be there:
//
//   - two holders at one moment of the store's clock;
//   - a term that is used twice, or is not one more than before;
//   - a lane's document that goes back, or changes under a term that is older than its
//     own, or than that of the process which has fenced all lanes;
//   - data of the source in an entry that moves no lane, but for what no transaction can
//     write: capped collections, views, time series.
type witness struct {
	store   *memstore.Store
	grouper *memstore.Grouper
	after   oplog.OpTime
	// links are the leases as they are after the last entry, by the names of the links: a collection that is
	// copied again has a link of its own. lanes are the lanes' documents.
	links map[string]lease.Record
	lanes map[string]laneAt
	ids   map[bson.ObjectID]bool // of all grants
	// moved reports that the present group has changed a lane's document.
	moved bool
	// grants and renewals are how many there were, old the changes of a lane between
	// a grant and the moment when its holder had fenced the lane.
	grants, renewals, old int
	faults                []error
}

// laneAt is what a lane's document says.
type laneAt struct {
	term     int64
	position checkpoint.Position
}

func newWitness() (*witness, error) {
	w := &witness{links: map[string]lease.Record{}, lanes: map[string]laneAt{}, ids: map[bson.ObjectID]bool{}}
	w.store = memstore.New(memstore.Config{
		Ignore:   func(ns oplog.Namespace) bool { return ns.DB() != "replicator" },
		OnUpdate: func(_ bson.Raw, op *oplog.Op, post bson.Raw) { w.see(op.NS, post) },
	})
	var err error
	w.grouper, err = memstore.NewGrouper(txn.Config{})
	return w, err
}

// read reads the new entries in the oplog of a member that has all of it.
func (w *witness) read(m *mongosim.Member) error {
	status, _ := m.Status()
	for _, raw := range m.Oplog(w.after.TS) {
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			return err
		}
		switch {
		case !w.after.Before(e.OpTime):
			continue
		case status.CommitPoint.Before(e.OpTime):
			return errors.Join(w.faults...)
		}
		w.after = e.OpTime
		group, err := w.grouper.Add(&e)
		if err == nil {
			err = w.apply(&group)
		}
		if err != nil {
			return fmt.Errorf("the target's entry %s: %w", e.OpTime, err)
		}
	}
	return errors.Join(w.faults...)
}

func (w *witness) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Errorf("the target's entry after %s: "+format, slices.Insert(args, 0, any(w.after))...))
}

// apply applies the operations that take effect with one entry.
func (w *witness) apply(g *memstore.Group) error {
	w.moved = false
	if err := w.store.ApplyGroup(g, memstore.Steady); err != nil {
		return err
	}
	for i := range g.Ops {
		switch op := &g.Ops[i]; {
		case op.Kind == oplog.KindInsert && op.NS.DB() == "replicator":
			w.see(op.NS, op.O)
		case op.Kind.IsCRUD() && op.NS.DB() == "shop" && !w.moved && op.NS != "shop.log" && !strings.HasPrefix(op.NS.Collection(), "system."):
			w.fault("%s of %s in %s moves no lane", op.Kind, op.ID, op.NS)
			return nil
		}
	}
	return nil
}

// see takes a document as it is after a change.
func (w *witness) see(ns oplog.Namespace, doc bson.Raw) {
	switch ns {
	case "replicator." + metadata.Links:
		r := metadata.NewReader(doc)
		now := lease.ReadRecord(r)
		if r.Err() != nil {
			w.fault("%s: %w", ns, r.Err())
		}
		w.seeLink(doc.Lookup("_id").StringValue(), now)
	case "replicator." + metadata.Lanes:
		w.moved = true
		w.seeLane(doc)
	}
}

func (w *witness) seeLink(name string, now lease.Record) {
	was := w.links[name]
	w.links[name] = now
	switch {
	case now.Grant.ID.IsZero() || was.Instance != now.Instance: // a new document
	case now.Term == was.Term && now.Grant.ID == was.Grant.ID:
		if now.Grant.Duration != was.Grant.Duration {
			w.renewals++
		}
		if was.Grant.Released && !now.Grant.Released {
			w.fault("a lease that was given back goes on: %s", now)
		}
	default:
		if w.grants++; now.Term <= was.Term || w.ids[now.Grant.ID] {
			w.fault("term %d after %d, grant %s", now.Term, was.Term, now.Grant.ID)
		}
		w.ids[now.Grant.ID] = true
		if now.Holder != was.Holder && !was.Grant.ID.IsZero() && !was.Grant.Released && now.Grant.Granted < was.Grant.Expires {
			w.fault("two have the lease: %s was granted it while %s had it until %s", now, was, was.Grant.Expires.Time())
		}
	}
}

func (w *witness) seeLane(doc bson.Raw) {
	r := metadata.NewReader(doc)
	id := doc.Lookup("_id").StringValue()
	of, _, _ := strings.Cut(id, "/")
	term := w.links[of].Term
	ts := r.Timestamp("ts")
	now := laneAt{term: r.Int64("term"), position: checkpoint.Position{OpTime: oplog.OpTime{TS: ts, Term: r.Int64("t")}, Op: r.Int64("op")}}
	if r.Err() != nil {
		w.fault("lane %s: %w", id, r.Err())
	}
	was, found := w.lanes[id]
	w.lanes[id] = now
	switch {
	case found && now.term < was.term:
		w.fault("lane %s has term %d after %d", id, now.term, was.term)
	case found && now.position.Compare(was.position) < 0:
		w.fault("lane %s went back from %s to %s", id, was.position, now.position)
	case now.term > term:
		w.fault("lane %s has term %d, its link %d", id, now.term, term)
	case now.term < term && now.term == was.term:
		w.old++
	}
}

// terms are the terms of the lanes of the processes' link, each once.
func (w *witness) terms() []int64 {
	seen := map[int64]bool{}
	for id, l := range w.lanes {
		if strings.HasPrefix(id, link+"/") {
			seen[l.term] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestWitnessOfParts: the lease and the lanes of a collection that is copied again are its own, and so are those of the link.
func TestWitnessOfParts(t *testing.T) {
	t.Parallel()
	w, err := newWitness()
	if err != nil {
		t.Fatal(err)
	}
	lane := func(id string, term int64, at uint32) {
		doc, err := bson.Marshal(bson.D{
			{Key: "_id", Value: id},
			{Key: "term", Value: term},
			{Key: "ts", Value: bson.Timestamp{T: at, I: 1}},
			{Key: "t", Value: int64(1)},
			{Key: "op", Value: int64(0)},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.seeLane(doc)
	}
	const part = "resync-0123456789abcdef"
	w.seeLink(link, lease.Record{Term: 4})
	lane(link+"/0", 4, 100)
	w.seeLink(part, lease.Record{Term: 1})
	lane(part+"/0", 1, 90)
	lane(link+"/0", 4, 101)
	if len(w.faults) > 0 || !slices.Equal(w.terms(), []int64{4}) {
		t.Errorf("faults %v, terms %v", w.faults, w.terms())
	}
	lane(part+"/0", 2, 91)
	lane(link+"/0", 5, 102)
	if len(w.faults) != 2 {
		t.Errorf("terms that no link has are not found: %v", w.faults)
	}
}
