package initialsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

var errDead = errors.New("the process is dead")

// how long things take in a bubble.
const (
	commandTime = 100 * time.Millisecond
	flushTime   = time.Second
	indexTime   = 2500 * time.Millisecond
)

// world is a source, a target and its metadata, made of maps.
type world struct {
	t testing.TB

	mu sync.Mutex
	// calls counts the changes. At crashAt the process ends, after that change if late
	// is set.
	calls, crashAt int
	late, dead     bool
	slow           bool // in a bubble

	source []sourceCollection
	views  []string
	// refused are the indexes and views that the target refuses, and how; passing
	// those that are refused once, for another reason.
	refused, passing map[string]error

	target map[oplog.Namespace]*targetCollection
	held   map[string]bool
	link   checkpoint.Copy
	docs   map[oplog.UUID]progress.Collection
	ranges map[string]progress.Range
	begun  time.Time
	log    []string
}

type sourceCollection struct {
	name      string
	docs      int
	perRange  int // 0: all in one
	indexes   []string
	capped    bool
	goneAfter int // so many documents; 0: never
	goneFirst bool
}

type targetCollection struct {
	kind    string
	docs    map[string]int
	indexes []string
}

func newWorld(t testing.TB) *world {
	return &world{
		t: t, target: map[oplog.Namespace]*targetCollection{}, held: map[string]bool{},
		refused: map[string]error{}, passing: map[string]error{},
		link: checkpoint.Copy{Number: 2, Phase: checkpoint.Copying, Begin: oplog.OpTime{TS: bson.Timestamp{T: 100, I: 1}, Term: 1}},
		docs: map[oplog.UUID]progress.Collection{}, ranges: map[string]progress.Range{},
		begun: time.Now(),
	}
}

// raw marshals a document.
func raw(d any) bson.Raw {
	b, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return b
}

// change makes one change, or ends the process.
func (w *world) change(ctx context.Context, took time.Duration, what string, effect func() error) error {
	if w.slow && took > 0 {
		timer := time.NewTimer(took)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errDead
	}
	w.calls++
	if w.calls == w.crashAt {
		w.dead = true
		if w.late {
			_ = effect()
		}
		w.note("the process dies")
		return errDead
	}
	err := effect()
	if what != "" && err == nil {
		w.note(what)
	}
	return err
}

func (w *world) note(what string) {
	w.log = append(w.log, fmt.Sprintf("%5.1fs %s", time.Since(w.begun).Seconds(), what))
}

func uuidOf(name string) oplog.UUID {
	var u oplog.UUID
	copy(u[:], name)
	return u
}

// The link.

func (w *world) Copy() *checkpoint.Copy {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.link
	return &c
}

func (w *world) UpdateCopy(ctx context.Context, c checkpoint.Copy) error {
	return w.change(ctx, commandTime, fmt.Sprintf("  link: cleared %t listed %t", c.Cleared, c.Listed), func() error {
		if w.link.Cleared && !c.Cleared || w.link.Listed && !c.Listed || c.Number != w.link.Number {
			return errors.New("a copy does not go back")
		}
		w.link = c
		return nil
	})
}

func (w *world) Copies(context.Context) ([]progress.Collection, []progress.Range, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var docs []progress.Collection
	for _, d := range w.docs {
		d.Failed = slices.Clone(d.Failed)
		docs = append(docs, d)
	}
	return docs, slices.Collect(maps.Values(w.ranges)), nil
}

func (w *world) DropCopies(ctx context.Context, below int64) error {
	return w.change(ctx, commandTime, fmt.Sprintf("  drop copies below %d", below), func() error { return nil })
}

func (w *world) AddCollections(ctx context.Context, list []progress.Collection) error {
	return w.change(ctx, commandTime, fmt.Sprintf("  add %d collections", len(list)), func() error {
		for i := range list {
			if _, there := w.docs[list[i].UUID]; !there {
				w.docs[list[i].UUID] = list[i]
			}
		}
		return nil
	})
}

// worldLane is a lane that detects concurrent use.
type worldLane struct {
	*world
	used sync.Mutex
}

func (l *worldLane) own() func() {
	if !l.used.TryLock() {
		l.t.Error("two at once use a lane")
		return func() {}
	}
	return l.used.Unlock
}

func (*worldLane) Session() *mongo.Session { return nil }

func (*worldLane) MoveRange(context.Context, *mongo.Txn, *progress.Range, *progress.Range) error {
	return nil
}

func (l *worldLane) SaveCollection(ctx context.Context, c *progress.Collection, ranges []progress.Range) error {
	defer l.own()()
	what := fmt.Sprintf("  save %s %s", c.NS, c.State)
	if len(ranges) > 0 {
		what += fmt.Sprintf(", %d ranges", len(ranges))
	}
	if c.Gone {
		what += ", gone"
	}
	if len(c.Failed) > 0 {
		what += fmt.Sprintf(", failed %d", len(c.Failed))
	}
	return l.change(ctx, 0, what, func() error {
		d := *c
		d.Failed = slices.Clone(c.Failed)
		l.docs[c.UUID] = d
		for _, r := range ranges {
			l.ranges[rangeKey(&r)] = r
		}
		for _, r := range l.ranges {
			if r.UUID == c.UUID && !r.Done && !c.Gone && (c.State == progress.Filled || c.State == progress.Done) {
				l.t.Errorf("%s is saved as %s, range %d is not done", c.NS, c.State, r.Index)
			}
		}
		return nil
	})
}

func rangeKey(r *progress.Range) string { return fmt.Sprintf("%x/%d", r.UUID, r.Index) }

// The cloner.

func idOf(n int32) bson.RawValue {
	return bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, n)}
}

// worldCloner copies a document in each transaction.
type worldCloner struct {
	*world
	moved func(r *progress.Range, docs, bytes int64)
}

func (w *world) find(u oplog.UUID) *sourceCollection {
	for i := range w.source {
		if uuidOf(w.source[i].name) == u {
			return &w.source[i]
		}
	}
	return nil
}

func (c *worldCloner) Newest(_ context.Context, coll *progress.Collection) (int64, error) {
	src := c.find(coll.UUID)
	if !src.capped {
		c.t.Errorf("%s is not capped", coll.NS)
	}
	if src.goneFirst {
		return 0, fmt.Errorf("newest: %w", clone.ErrGone)
	}
	return int64(src.docs), nil
}

func (c *worldCloner) Split(_ context.Context, coll *progress.Collection, to oplog.Namespace, since clone.Since) ([]progress.Range, error) {
	src := c.find(coll.UUID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.target[to] == nil {
		c.t.Errorf("%s is cut before it is created", to)
	}
	if src.goneFirst {
		return nil, fmt.Errorf("split: %w", clone.ErrGone)
	}
	if src.capped && (since.Newest != int64(src.docs) || !since.Has(idOf(int32(src.docs)))) {
		c.t.Errorf("%s is cut and it is not known what was inserted", to)
	}
	per := src.docs
	if src.perRange > 0 {
		per = src.perRange
	}
	var ranges []progress.Range
	for i := 0; i == 0 || i*per < src.docs; i++ {
		n := min(per, src.docs-i*per)
		ranges = append(ranges, progress.Range{UUID: coll.UUID, Index: i, Spec: raw(bson.D{{Key: "n", Value: n}})})
	}
	return ranges, nil
}

func (c *worldCloner) Copy(ctx context.Context, l clone.Lane, coll *progress.Collection, to oplog.Namespace, r progress.Range) (progress.Range, error) {
	defer l.(*worldLane).own()()
	src := c.find(coll.UUID)
	if r.Done {
		return r, nil
	}
	n := r.Spec.Lookup("n").AsInt64()
	for {
		what := ""
		if r.Docs < n {
			what = fmt.Sprintf("%s range %d: document %d", coll.NS, r.Index, r.Docs)
		}
		step := int64(0)
		err := c.change(ctx, flushTime, what, func() error {
			t := c.target[to]
			copied := 0
			for _, times := range t.docs {
				copied += times
			}
			if src.goneAfter > 0 && copied >= src.goneAfter {
				return fmt.Errorf("copy: %w", clone.ErrGone)
			}
			if was := c.ranges[rangeKey(&r)]; was.Steps != r.Steps || was.Done {
				return checkpoint.ErrAhead
			}
			if r.Docs < n {
				t.docs[fmt.Sprintf("%d/%d", r.Index, r.Docs)]++
				r.Docs++
				r.Bytes += 100
				step = 1
			}
			r.Steps++
			r.Done = r.Docs == n
			c.ranges[rangeKey(&r)] = r
			return nil
		})
		if err != nil {
			return r, err
		}
		c.moved(&r, step, step*100)
		if r.Done {
			return r, nil
		}
	}
}

// worldScope mirrors all but the server's own, under its name.
type worldScope struct{}

func (worldScope) Target(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, ns.DB() != "other" }

func (worldScope) Source(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, ns.DB() != "other" }
func (worldScope) TargetDBs(db string) []string                      { return []string{db} }

func (w *world) inventory(context.Context) (*inventory.Inventory, error) {
	inv := &inventory.Inventory{}
	for i := range w.source {
		s := &w.source[i]
		c := progress.Collection{
			UUID: uuidOf(s.name), NS: oplog.NewNamespace("db", s.name), State: progress.Planned,
			Docs: int64(s.docs), Bytes: int64(s.docs) * 100,
		}
		if s.capped {
			c.Options = raw(bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 4096}})
		}
		for _, name := range s.indexes {
			c.Indexes = append(c.Indexes, raw(bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: name, Value: 1}}}, {Key: "name", Value: name}}))
		}
		inv.Collections = append(inv.Collections, c)
	}
	for _, v := range w.views {
		inv.Views = append(inv.Views, raw(bson.D{{Key: "_id", Value: "db." + v}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}}))
	}
	return inv, nil
}

// start returns a process that resumes from the present state.
func (w *world) start(cfg Config, lanes int) *Copier {
	w.dead, w.calls = false, 0
	cfg.Source, cfg.Target, cfg.Scope, cfg.Link = w, w, worldScope{}, "link"
	cfg.NewCommands = func(context.Context) (Commands, error) { return &worldCommands{world: w}, nil }
	cfg.Observer = func(e event.Event) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.note(fmt.Sprintf("%s %v", e.Message(), e.LogValue().Group()))
	}
	cfg.setDefaults()
	var list []lane
	for range lanes {
		list = append(list, &worldLane{world: w})
	}
	c := newCopier(cfg, w, list)
	c.cloner = &worldCloner{world: w, moved: c.board.moved}
	c.take = w.inventory
	c.settled = func(context.Context) error { return nil }
	c.inserted = func(_ context.Context, colls []oplog.UUID) (map[oplog.UUID]inventory.IDs, error) {
		all := map[oplog.UUID]inventory.IDs{}
		for _, id := range colls {
			all[id] = inventory.IDs{}
			all[id].Add(idOf(int32(w.find(id).docs)))
		}
		return all, nil
	}
	return c
}

// state shows the target and the metadata.
func (w *world) state() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var lines []string
	for ns, coll := range w.target {
		times := 0
		for doc, n := range coll.docs {
			times += n
			if n != 1 {
				lines = append(lines, fmt.Sprintf("%s: document %s is there %d times", ns, doc, n))
			}
		}
		indexes := coll.indexes
		if w.docs[uuidOf(ns.Collection())].Gone {
			indexes = nil // It may have been built before that was known.
		}
		lines = append(lines, fmt.Sprintf("%s %s: %d documents, indexes %v", coll.kind, ns, times, indexes))
	}
	for _, d := range w.docs {
		lines = append(lines, fmt.Sprintf("metadata of %s: %s gone=%t failed=%v", d.NS, d.State, d.Gone, d.Failed))
	}
	for id := range w.held {
		lines = append(lines, "held "+id)
	}
	lines = append(lines, fmt.Sprintf("link cleared=%t listed=%t", w.link.Cleared, w.link.Listed))
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}
