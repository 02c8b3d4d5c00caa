package plan_test

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// recording plans and applies a recorded log, in parts.
type recording struct {
	t    *testing.T
	mode plan.Mode
	opt  plan.Options
	p    *plan.Planner
	// docs are the documents, by collection and _id. A collection is identified by its
	// UUID, so that it keeps its documents when it is renamed.
	docs map[string][]byte
	ops  []plan.Op
	// sent counts statements, planned operations, and slow flushes that had to be
	// repeated one by one.
	sent, planned, flushes, slow int
}

func collectionOf(ns oplog.Namespace, uuid oplog.UUID) oplog.Namespace {
	if uuid.IsZero() {
		return ns
	}
	return oplog.Namespace("uuid." + uuid.String())
}

func docKey(op *plan.Op) string {
	return string(op.Target) + string(oplog.AppendIDKey([]byte{0}, op.ID))
}

// flush plans the pending operations, individually and together, and compares both
// results with the operations applied one by one.
func (r *recording) flush() {
	t := r.t
	if len(r.ops) == 0 {
		return
	}
	before := newTarget()
	seen := map[string]bool{}
	for i := range r.ops {
		key := docKey(&r.ops[i])
		if doc, ok := r.docs[key]; ok && !seen[key] {
			before.docs[r.ops[i].Target] = append(before.docs[r.ops[i].Target], doc)
		}
		seen[key] = true
	}
	want, got := before.clone(), before.clone()
	for i := range r.ops {
		if err := want.apply(&r.ops[i]); err != nil {
			t.Fatalf("%s: %v", r.ops[i].OpTime, err)
		}
		w, err := plan.One(r.ops[i], r.opt)
		if err != nil {
			t.Fatalf("%s alone: %v", r.ops[i].OpTime, err)
		}
		if err := got.run(&w, r.ops[i:i+1]); err != nil {
			t.Fatalf("%s alone: %v", r.ops[i].OpTime, err)
		}
	}
	if got.String() != want.String() {
		t.Fatalf("alone, from %s:\ngot\n%s\nwant\n%s", r.ops[0].OpTime, got, want)
	}
	p, err := r.p.Build(r.ops)
	if err != nil {
		t.Fatal(err)
	}
	got = before.clone()
	slow, err := got.flush(p, r.ops, r.opt)
	if err != nil {
		t.Fatalf("from %s: %v", r.ops[0].OpTime, err)
	}
	if got.String() != want.String() {
		t.Fatalf("from %s:\ngot\n%s\nwant\n%s", r.ops[0].OpTime, got, want)
	}
	for _, w := range p.Writes {
		r.sent += len(w.Ops)
	}
	r.planned += len(r.ops)
	r.flushes++
	if slow {
		r.slow++
	}
	for i := range r.ops {
		key := docKey(&r.ops[i])
		if doc, ok := want.get(r.ops[i].Target, r.ops[i].ID); ok {
			r.docs[key] = doc
		} else {
			delete(r.docs, key)
		}
	}
	r.ops = r.ops[:0]
}

func (r *recording) group(g *memstore.Group) {
	for i := range g.Ops {
		op := &g.Ops[i]
		if op.Kind == oplog.KindNoop {
			continue
		}
		if !op.Kind.IsCRUD() || op.NS.IsSystemViews() {
			r.flush()
			continue
		}
		o := plan.Op{
			Op: *op, At: checkpoint.Position{OpTime: op.OpTime, Op: int64(i)}, Mode: r.mode,
			Target: collectionOf(op.NS, op.UI), Grouped: g.Kind == txn.KindApplyOps,
		}
		o.Collection = &catalog.Collection{NS: o.Target, Type: catalog.TypeCollection, Direct: op.NS.IsBuckets()}
		if r.ops = append(r.ops, o); len(r.ops) == 100 {
			r.flush()
		}
	}
}

// Every recorded write, planned alone and with its neighbours, has its effect.
func TestCorpus(t *testing.T) {
	scenarios, err := corpus.Open("../../testdata/corpus")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		for name, r := range map[string]recording{
			"exact":    {mode: plan.ModeExact, opt: plan.Options{Coalesce: true}},
			"internal": {mode: plan.ModeExact, opt: plan.Options{Coalesce: true, InternalApply: true, NoGuards: true}},
			"copied":   {mode: plan.ModeCopied, opt: plan.Options{Coalesce: true}},
			"single":   {mode: plan.ModeExact},
		} {
			if s.Name == "fuzzy-clone" && r.mode == plan.ModeExact {
				continue // its data are a moving copy
			}
			t.Run(s.Name+"/"+name, func(t *testing.T) {
				r.t, r.docs, r.p = t, map[string][]byte{}, plan.NewPlanner(r.opt)
				state, err := s.Before()
				if err != nil {
					t.Fatal(err)
				}
				for _, c := range state.Collections {
					for _, doc := range c.Documents {
						op := plan.Op{Target: collectionOf(c.NS, c.UUID)}
						op.ID = idOf(doc)
						r.docs[docKey(&op)] = doc
					}
				}
				g, err := memstore.NewGrouper(txn.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { err = errors.Join(err, g.Close()) }()
				for e, err := range s.Oplog() {
					if err != nil {
						t.Fatal(err)
					}
					group, err := g.Add(e)
					if err != nil {
						t.Fatal(err)
					}
					r.group(&group)
				}
				r.flush()
				t.Logf("%d operations, %d statements, %d of %d flushes slow", r.planned, r.sent, r.slow, r.flushes)
			})
		}
	}
}
