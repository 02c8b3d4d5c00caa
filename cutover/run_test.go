package cutover_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

var errBroken = errors.New("broken")

func ot(second uint32) oplog.OpTime { return oplog.NewOpTime(second, 1, 7) }

// open returns a connection to a set.
func open(t *testing.T, version string) mongo.Caller {
	t.Helper()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Dialect: version, Moods: mongosim.GentleMoods("each command is counted")})
	return client.Open(t, driver.Config{URI: sim.URI()})
}

// old is the source: whether its writes are blocked, the writes to it after second 100, and the cuts of
// the link, which has everything.
type old struct {
	mu      sync.Mutex // guards the rest
	blocked bool
	// cut is the target's time of the cuts.
	cut bson.Timestamp
	// commands are those that were sent, written the namespaces of entries after the drain.
	commands []string
	written  []string
	// held is a command that blocks writes which is not answered, nil if all are: it is executed by the
	// look after that many.
	held *int
	// limit is the limit of that command.
	limit time.Duration
}

// Call implements mongo.Caller.
func (o *old) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	name := cmd.Body.Index(0).Key()
	o.commands = append(o.commands, name)
	docs := bson.A{}
	switch {
	case name == "setUserWriteBlockMode" && o.held != nil && cmd.Body.Lookup("global").Boolean():
		ms, _ := cmd.Body.Lookup("maxTimeMS").AsInt64OK()
		o.limit = time.Duration(ms) * time.Millisecond
		return nil, errCrashed
	case name == "setUserWriteBlockMode":
		o.blocked = cmd.Body.Lookup("global").Boolean()
		return reply(bson.D{{Key: "ok", Value: 1}}), nil
	case name == "appendOplogNote":
		return reply(bson.D{{Key: "ok", Value: 1}, {Key: "operationTime", Value: bson.Timestamp{T: 100, I: 1}}}), nil
	case name == "find" && cmd.DB == "local":
		for i, ns := range o.written {
			docs = append(docs, bson.D{{Key: "ts", Value: bson.Timestamp{T: 101, I: uint32(i)}}, {Key: "op", Value: "i"}, {Key: "ns", Value: ns}})
		}
	case name == "find" && cmd.DB != "replicator" && o.looked():
		docs = bson.A{bson.D{{Key: "_id", Value: ""}, {Key: "blockUserWrites", Value: true}}}
	}
	return reply(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.y"}, {Key: "firstBatch", Value: docs}}}}), nil
}

// looked reports whether writes are blocked; o.mu is held.
func (o *old) looked() bool {
	if o.held != nil {
		if *o.held--; *o.held == 0 {
			o.blocked, o.held = true, nil
		}
	}
	return o.blocked
}

func reply(d bson.D) bson.Raw {
	raw, _ := bson.Marshal(d)
	return raw
}

// isBlocked reports whether it is.
func (o *old) isBlocked() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.blocked
}

func (o *old) setBlocked(to bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blocked = to
}

// write makes entries after the drain that write to namespaces, in place of earlier ones.
func (o *old) write(namespaces ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written = namespaces
}

// NextCut implements cutover.Cutter.
func (o *old) NextCut(context.Context, string, string, time.Duration, func(string)) (checkpoint.Cut, error) {
	return checkpoint.Cut{Source: ot(100), Target: o.cut}, nil
}

// moved is a link that is cut over: its target, its old source, and its documents in a database of its
// own.
type moved struct {
	t       *testing.T
	target  mongo.Caller
	source  *old
	link    string
	store   *checkpoint.Store
	records *record.Store
}

// newMoved creates a link at second 90 that has applied everything up to second 100. Its target has
// an index that is unique at the source, one that expires documents there, and lacks one.
func newMoved(t *testing.T, target mongo.Caller, link string) *moved {
	t.Helper()
	ctx := t.Context()
	m := &moved{t: t, target: target, source: new(old), link: link, records: &record.Store{Target: target, DB: "replicator"}}
	m.run(link, `{"create": "a"}`)
	m.run(link, `{"createIndexes": "a", "indexes": [{"v": 2, "key": {"email": 1}, "name": "email_1"}, {"v": 2, "key": {"at": 1}, "name": "at_1"}]}`)
	m.run(link, `{"insert": "a", "documents": [{"_id": 1, "email": "x"}, {"_id": 2, "email": "y"}]}`)
	m.store = must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: link}))(t)
	must.Succeed(t, m.store.Create(ctx, checkpoint.State{
		Writers: 1, Applied: ot(90), AppliedWall: 90_000, FetchFrom: ot(90), Source: checkpoint.Source{SetName: "rs0"},
		Filters: &checkpoint.Filters{Include: []string{link}},
	}))
	coll := must.Get(catalog.Look(ctx, target, m.ns()))(t)
	for index, def := range map[string]struct{ spec, deferred string }{
		"email_1": {`{"v": 2, "key": {"email": 1}, "name": "email_1", "unique": true}`, "unique"},
		"at_1":    {`{"v": 2, "key": {"at": 1}, "name": "at_1", "expireAfterSeconds": 3600}`, "expireAfterSeconds"},
		"late_1":  {`{"v": 2, "key": {"late": 1}, "name": "late_1", "unique": true, "sparse": true}`, ""},
	} {
		doc := bson.D{{Key: "_id", Value: bson.D{{Key: "link", Value: link}, {Key: "ns", Value: string(m.ns())}, {Key: "index", Value: index}}}}
		doc = append(doc, bson.E{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: coll.UUID[:]}}, bson.E{Key: "deferred", Value: bson.A{def.deferred}})
		if def.deferred == "" {
			doc[len(doc)-1].Value = bson.A{"unique"}
			doc = append(doc, bson.E{Key: "absent", Value: true})
		}
		doc = append(doc, bson.E{Key: "spec", Value: bson.Binary{Data: bsongen.FromJSON(t, def.spec)}})
		must.Succeed(t, metadata.Run(ctx, target, metadata.Majority(metadata.Write("replicator", "insert", metadata.Deferred, "documents", reply(doc))), 1))
	}
	h := must.Get(m.store.Acquire(ctx, 0))(t)
	l, next := h.Lane(0), checkpoint.Position{OpTime: ot(100)}
	txn := l.Session().Begin()
	must.Succeed(t, txn.End(ctx, true, l.Move(ctx, txn, next)))
	l.Moved(next)
	m.source.cut = must.Get(replset.NewestEntry(ctx, target, replset.Local))(t).OpTime.TS
	return m
}

func (m *moved) ns() oplog.Namespace { return oplog.NewNamespace(m.link, "a") }

func (m *moved) run(db, cmd string) {
	m.t.Helper()
	must.Get(m.target.Call(m.t.Context(), mongo.Command{DB: db, Body: bsongen.FromJSON(m.t, cmd)}))(m.t)
}

// config is that of a process that is cut off from its sets as given.
func (m *moved) config(target, source mongo.Caller) *cutover.Config {
	return &cutover.Config{
		Drain:  cutover.DrainConfig{Source: source, Cuts: m.source, Link: m.link, By: "me", Within: 30 * time.Second, OnWait: func(string) {}},
		Target: target, MetaDB: "replicator", Process: "the operator's", BlockWithin: time.Second,
	}
}

func (m *moved) whole() *cutover.Config { return m.config(m.target, m.source) }

var byBlock = &record.Options{Freeze: record.Block}

// indexes returns the indexes of the target in words.
func (m *moved) indexes() string { return m.indexesOf(m.ns().Collection()) }

func (m *moved) indexesOf(coll string) string {
	var all []string
	for _, spec := range must.Get(catalog.Indexes(m.t.Context(), m.target, oplog.NewNamespace(m.link, coll)))(m.t) {
		text := []string{spec.Lookup("name").StringValue()}
		for _, flag := range []string{"unique", "prepareUnique", "expireAfterSeconds"} {
			if _, err := spec.LookupErr(flag); err == nil {
				text = append(text, flag)
			}
		}
		all = append(all, strings.Join(text, " "))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

const (
	deferredIndexes = "_id_, at_1, email_1"
	restoredIndexes = "_id_, at_1 expireAfterSeconds, email_1 unique, late_1 unique"
)

// isDone checks a link that was cut over.
func (m *moved) isDone(what string) {
	m.t.Helper()
	ctx := m.t.Context()
	over, r := must.Get(m.store.Over(ctx))(m.t), must.Get(m.records.Get(ctx, m.link))(m.t)
	if over == nil || over.Source != ot(100) || r.State != record.Done || r.DowntimeSeconds < 0 || r.Frozen.IsZero() {
		m.t.Errorf("%s: done, and the end is %+v, the record %+v", what, over, r)
	}
	if got := m.indexes(); got != restoredIndexes {
		m.t.Errorf("%s: done, and the indexes are %s", what, got)
	}
	if left := must.Get(ddl.ReadDeferred(ctx, m.target, "replicator", m.link))(m.t); len(left) != 0 {
		m.t.Errorf("%s: done, and still deferred: %v", what, left)
	}
	if !m.source.isBlocked() {
		m.t.Errorf("%s: done, and the old source takes writes", what)
	}
	if _, err := m.store.Acquire(ctx, 0); !errors.As(err, new(*checkpoint.OverError)) {
		m.t.Errorf("%s: done, and acquired: %v", what, err)
	}
}

// isBack checks a link that goes on.
func (m *moved) isBack(what string) {
	m.t.Helper()
	ctx := m.t.Context()
	if over := must.Get(m.store.Over(ctx))(m.t); over != nil || m.source.isBlocked() {
		m.t.Errorf("%s: cancelled, and the end is %+v, the source blocked: %v", what, over, m.source.isBlocked())
	}
	if got := m.indexes(); got != deferredIndexes {
		m.t.Errorf("%s: cancelled, and the indexes are %s", what, got)
	}
	if left := must.Get(ddl.ReadDeferred(ctx, m.target, "replicator", m.link))(m.t); len(left) != 3 {
		m.t.Errorf("%s: cancelled, and deferred is %v", what, left)
	}
	if _, err := m.store.Acquire(ctx, 0); err != nil {
		m.t.Errorf("%s: cancelled, and acquired: %v", what, err)
	}
}

// isKnown checks that nothing is left behind without a word: a source that is blocked has a record
// that says by whom, and a link of which the options may be converted can be led by nobody.
func (m *moved) isKnown(what string) {
	m.t.Helper()
	ctx := m.t.Context()
	r := must.Get(m.records.Get(ctx, m.link))(m.t)
	if m.source.isBlocked() && (r == nil || !r.Blocks() && r.State != record.Done) {
		m.t.Errorf("%s: the source is blocked, and the record says %+v", what, r)
	}
	if got := m.indexes(); got != deferredIndexes {
		if _, err := m.store.Acquire(ctx, 0); err == nil {
			m.t.Errorf("%s: a process leads a link whose indexes are %s", what, got)
		}
	}
}

// TestRun: a cutover does all steps, in order, each with its time and outcome; it is not begun again.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5.0", "7.0"} {
		m := newMoved(t, open(t, version), "dr")
		var told []string
		cfg := m.whole()
		cfg.Told = func(s record.Taken) {
			if !s.Ended.IsZero() {
				told = append(told, string(s.Step))
			}
		}
		cfg.Verify = func(_ context.Context, cut checkpoint.Cut) (string, error) {
			return "as of " + cut.Source.String(), nil
		}
		r, err := cutover.Run(t.Context(), cfg, byBlock)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if got := strings.Join(told, " "); got != "freeze drain verify drain convert arm commit expire" {
			t.Errorf("%s: %s", version, got)
		}
		for _, s := range r.Steps {
			if s.Started.IsZero() || s.Ended.Before(s.Started) || s.By != "me" || s.Outcome == "" {
				t.Errorf("%s: %+v", version, s)
			}
		}
		m.isDone(version)
		if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.As(err, new(*checkpoint.OverError)) {
			t.Errorf("%s: again: %v", version, err)
		}
		if _, err := cutover.Cancel(t.Context(), m.whole()); !errors.Is(err, cutover.ErrCommitted) {
			t.Errorf("%s: cancelled afterwards: %v", version, err)
		}
		if _, err := cutover.Resume(t.Context(), m.whole()); !errors.Is(err, cutover.ErrNone) {
			t.Errorf("%s: resumed afterwards: %v", version, err)
		}
	}
}

// TestRunRefused: what stands in the way stops the cutover before anything is converted; it can be
// cancelled, or resumed once that is away.
func TestRunRefused(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, tt := range map[string]struct {
		spoil  func(m *moved, cfg *cutover.Config)
		repair func(m *moved)
		want   error
		step   record.Step
	}{
		"not-ready": {func(_ *moved, cfg *cutover.Config) {
			cfg.Check = func(context.Context) (string, error) { return "", errBroken }
		}, nil, errBroken, record.Check},
		"not-verified": {func(_ *moved, cfg *cutover.Config) {
			cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) { return "", errBroken }
		}, func(*moved) {}, errBroken, record.Verify},
		"ahead": {func(m *moved, _ *cutover.Config) {
			h := must.Get(m.store.Acquire(t.Context(), 0))(t)
			must.Succeed(t, h.KeepBack(t.Context(), []checkpoint.KeptBack{{NS: "shop.a", Since: checkpoint.Position{OpTime: ot(95)}}}))
		}, func(m *moved) {
			h := must.Get(m.store.Acquire(t.Context(), 0))(t)
			must.Succeed(t, h.KeepBack(t.Context(), nil))
		}, cutover.ErrWritten, record.Convert},
		"violated": {
			func(m *moved, _ *cutover.Config) {
				m.run(m.link, `{"insert": "a", "documents": [{"_id": 3, "email": "y"}]}`)
			},
			func(m *moved) { m.run(m.link, `{"delete": "a", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`) }, nil, record.Convert,
		},
		"written": {
			func(m *moved, _ *cutover.Config) { m.source.written = []string{"config.x", "shop.a"} },
			func(m *moved) { m.source.written = nil }, cutover.ErrWritten, record.Commit,
		},
	} {
		for _, cancels := range []bool{true, false} {
			m := newMoved(t, target, fmt.Sprintf("%s-%v", name, cancels))
			cfg := m.whole()
			tt.spoil(m, cfg)
			o := *byBlock
			if name == "violated" {
				o.Reverse = record.NoReverse // whoever repairs it writes to the target
			}
			_, err := cutover.Run(t.Context(), cfg, &o)
			failed, is := errors.AsType[*cutover.StepError](err)
			if !is || failed.Step != tt.step || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%s: %v", name, err)
			}
			m.isKnown(name)
			switch {
			case tt.repair == nil:
				if r := must.Get(m.records.Get(t.Context(), m.link))(t); r != nil || m.source.isBlocked() {
					t.Errorf("%s: there is a record: %+v", name, r)
				}
			case cancels:
				if _, err := cutover.Cancel(t.Context(), m.whole()); err != nil {
					t.Errorf("%s: cancelled: %v", name, err)
				}
				m.isBack(name)
			default:
				if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, cutover.ErrUnderWay) {
					t.Errorf("%s: begun again: %v", name, err)
				}
				tt.repair(m)
				if _, err := cutover.Resume(t.Context(), m.whole()); err != nil {
					t.Errorf("%s: resumed: %v", name, err)
				}
				m.isDone(name)
			}
		}
	}
}

// TestTooFar: a link that has applied more than was drained, or a source whose block was lifted, stops the
// cutover before the commit point.
func TestTooFar(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "further")
	h := must.Get(m.store.Acquire(t.Context(), 0))(t)
	l, next := h.Lane(0), checkpoint.Position{OpTime: ot(101)}
	txn := l.Session().Begin()
	must.Succeed(t, txn.End(t.Context(), true, l.Move(t.Context(), txn, next)))
	if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, cutover.ErrWritten) {
		t.Errorf("further than the drain: %v", err)
	}
	m.source.write("shop.b") // what the client that still writes has written is named
	_, err := cutover.Resume(t.Context(), m.whole())
	if e, is := errors.AsType[*cutover.SourceWrittenError](err); !is || e.NS != "shop.b" || !errors.Is(err, cutover.ErrWritten) {
		t.Errorf("further than the drain, and written to: %v", err)
	}
	if failed := must.Get(m.records.Get(t.Context(), m.link))(t).Failed; failed == nil || failed.Step != record.Convert || failed.OnlyCancel {
		t.Errorf("further than the drain, and written to: recorded as %+v", failed)
	}
	must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
	m.isBack("further")
	m = newMoved(t, target, "thawed")
	cfg := m.whole()
	cfg.Armed = func(context.Context) {
		m.source.mu.Lock()
		defer m.source.mu.Unlock()
		m.source.blocked = false
	}
	if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, cutover.ErrThawed) {
		t.Errorf("thawed: %v", err)
	}
	must.Get(cutover.Cancel(t.Context(), m.whole()))(t)
	m.isBack("thawed")
}

// TestChanged: a cutover that somebody cancels meanwhile does not go on, whatever its process was about
// to do.
func TestChanged(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, spoil := range map[string]func(m *moved, cfg *cutover.Config){
		"verify": func(m *moved, cfg *cutover.Config) {
			cfg.Verify = func(ctx context.Context, _ checkpoint.Cut) (string, error) {
				_, err := cutover.Cancel(ctx, m.whole())
				return "", err
			}
		},
		"arm": func(m *moved, cfg *cutover.Config) {
			cfg.Armed = func(ctx context.Context) {
				other := m.whole()
				other.Process = "another one"
				must.Get(cutover.Cancel(context.WithoutCancel(ctx), other))(t)
			}
		},
	} {
		m := newMoved(t, target, name)
		cfg := m.whole()
		spoil(m, cfg)
		if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, record.ErrChanged) && !lease.Lost(err) {
			t.Errorf("%s: %v", name, err)
		}
		m.isBack(name)
	}
}

// TestFoundBlock: a block that was there before the cutover stays if it is cancelled.
func TestFoundBlock(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	m.source.blocked = true
	cfg := m.whole()
	cfg.Verify = func(context.Context, checkpoint.Cut) (string, error) { return "", errBroken }
	if _, err := cutover.Run(t.Context(), cfg, byBlock); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	if _, err := cutover.Cancel(t.Context(), m.whole()); err != nil || !m.source.isBlocked() {
		t.Errorf("%v, blocked: %v", err, m.source.isBlocked())
	}
}

// TestConvertingHolds: while options are being converted nobody but the cutover leads the link.
func TestConvertingHolds(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "dr")
	cfg := m.whole()
	cfg.Armed = func(ctx context.Context) {
		_, err := m.store.Acquire(ctx, 0)
		if e, is := errors.AsType[*checkpoint.ConvertingError](err); !is || e.Converting.By != "me" || !strings.Contains(e.Error(), "replicator cutover --resume --link dr") {
			t.Errorf("acquired meanwhile: %v", err)
		}
		seen, _, err := m.store.Look(ctx, lease.NewWatch(""))
		if err != nil || seen.Converting == nil {
			t.Errorf("seen %+v, %v", seen, err)
		}
	}
	if _, err := cutover.Run(t.Context(), cfg, byBlock); err != nil {
		t.Fatal(err)
	}
	m.isDone("armed")
}
