package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for an expected condition.
const patience = 2 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// fataler is a testing.TB or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// gate is a Caller in front of another one.
type gate struct {
	mongo.Caller
	mu sync.Mutex
	// before, if set, is called for each command: an error is returned to its sender,
	// and sent reports whether the server gets the command all the same.
	before func(cmd mongo.Command) (err error, sent bool)
	// after, if set, is called for each command that was answered.
	after func(cmd mongo.Command)
	// forge, if set, changes the replies to commands.
	forge func(cmd mongo.Command, reply bson.Raw) bson.Raw
}

// forgeReplies changes replies from now on.
func (g *gate) forgeReplies(forge func(cmd mongo.Command, reply bson.Raw) bson.Raw) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forge = forge
}

func (g *gate) intercept(before func(cmd mongo.Command) (error, bool), after func(cmd mongo.Command)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before, g.after = before, after
}

func (g *gate) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	g.mu.Lock()
	before, after, forge := g.before, g.after, g.forge
	g.mu.Unlock()
	if before != nil {
		if err, sent := before(cmd); err != nil {
			if sent {
				_, _ = g.Caller.Call(context.WithoutCancel(ctx), cmd)
			}
			return nil, err
		}
	}
	reply, err := g.Caller.Call(ctx, cmd)
	if after != nil {
		after(cmd)
	}
	if err == nil && forge != nil {
		reply = forge(cmd, reply)
	}
	return reply, err
}

// name is a command's first field.
func name(cmd mongo.Command) string {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	return string(it.Key)
}

// world is a source and a target, and a link that copies.
type world struct {
	t      testing.TB
	sets   [2]*mongosim.Set
	source *gate
	target *gate
	store  *checkpoint.Store
	link   *progress.Link
	cfg    Config
	// batch, if not 0, is how many documents a reply has.
	batch int32
	// since identifies the documents that the oplog has inserted into capped
	// collections; by default there are none.
	since Since
	// mu guards the events.
	mu         sync.Mutex
	docs       int64
	progressed int
}

func newWorld(t testing.TB) *world { return newWorldOf(t, "5.0") }

func newWorldOf(t testing.TB, dialect string) *world { return newWorldWith(t, dialect, 1) }

func newWorldWith(t testing.TB, dialect string, targets int, moods ...mongosim.Moods) *world {
	t.Helper()
	w := &world{t: t}
	var ends [2]*gate
	for i := range w.sets {
		opts := mongosim.Options{
			Members: []int{1, targets}[i], Seed: int64(21 + i), Dialect: dialect, HeartbeatInterval: 50 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond,
		}
		// Tests here count flushes, steps and batches.
		opts.Moods = mongosim.NoMoods("a short batch makes one more of what is counted")
		if len(moods) > 0 {
			opts.Moods = moods[0]
		}
		w.sets[i] = mongosim.StartTest(t, opts)
		s := client.Open(t, driver.Config{URI: w.sets[i].URI(), AppName: mongosim.Stage})
		ends[i] = &gate{Caller: s}
	}
	w.source, w.target = ends[0], ends[1]
	ctx := within(t)
	w.store = must.Get(checkpoint.New(checkpoint.Config{Target: w.target, Link: "a"}))(t)
	begin := oplog.NewOpTime(100, 1, 1)
	setID := bson.RawValue{Type: bson.TypeObjectID, Value: []byte("123456789012")}
	must.Succeed(t, w.store.Create(ctx, checkpoint.State{
		Source:  checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: setID},
		Writers: 4, Fingerprint: "f", Applied: begin, AppliedWall: 100_000, FetchFrom: oplog.NewOpTime(90, 1, 1),
		Copy: &checkpoint.Copy{
			Number: 1, Phase: checkpoint.Copying, Host: "a:1", RBID: 1, FetchFrom: oplog.NewOpTime(90, 1, 1), Begin: begin,
			Started: time.UnixMilli(1_700_000_000_000).UTC(),
		},
	}))
	w.cfg = Config{Source: w.source, Target: w.target, RetryFor: patience}
	return w
}

// begin starts a new attempt.
func (w *world) begin(ctx context.Context) {
	w.t.Helper()
	w.link = progress.Of(must.Get(w.store.Acquire(ctx, 0))(w.t))
}

// renew starts a new copy of the link.
func (w *world) renew(ctx context.Context) {
	w.t.Helper()
	c := *w.link.Copy()
	c.Number++
	must.Succeed(w.t, w.link.BeginCopy(ctx, c, 100_000))
	w.begin(ctx)
}

func (w *world) cloner() *Cloner {
	w.t.Helper()
	cfg := w.cfg
	cfg.Moved = func(_ *progress.Range, docs, _ int64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.docs += docs
		w.progressed++
	}
	c := must.Get(New(cfg))(w.t)
	if w.batch > 0 {
		c.batch = w.batch
	}
	return c
}

// run sends a command that has to succeed, write errors included.
func run(t fataler, c mongo.Caller, db string, cmd any) bson.Raw {
	t.Helper()
	body := must.Get(bson.Marshal(cmd))(t)
	reply, err := c.Call(context.Background(), mongo.Command{DB: db, Body: body})
	if err == nil {
		var refused []mongo.WriteError
		if refused, err = mongo.WriteErrors(reply); len(refused) > 0 {
			err = &refused[0].Error
		}
	}
	if err != nil {
		t.Fatalf("run %v: %v", cmd, err)
	}
	return reply
}

// insertRaw inserts documents as they are.
func insertRaw(t fataler, c mongo.Caller, ns oplog.Namespace, docs ...bson.Raw) {
	t.Helper()
	size := 100
	if len(docs) > 0 {
		size = max(1, min(1000, 40<<20/len(docs[0])))
	}
	for part := range slices.Chunk(docs, size) {
		cmd := mongo.Command{DB: ns.DB(), Body: writeBody("insert", ns, true), Sequence: "documents", Docs: part}
		reply := must.Get(c.Call(context.Background(), cmd))(t)
		refused := must.Get(mongo.WriteErrors(reply))(t)
		if len(refused) > 0 {
			t.Fatalf("insert into %s: %v", ns, &refused[0].Error)
		}
	}
}

// numbered are n documents of about size bytes.
func numbered(t fataler, from, n, size int) []bson.Raw {
	t.Helper()
	pad := string(bytes.Repeat([]byte("x"), size))
	docs := make([]bson.Raw, n)
	for i := range docs {
		docs[i] = must.Marshal(t, bson.D{{Key: "_id", Value: from + i}, {Key: "pad", Value: pad}})
	}
	return docs
}

// read returns the documents of a collection, in natural order.
func read(t fataler, c mongo.Caller, ns oplog.Namespace) []bson.Raw {
	t.Helper()
	var docs []bson.Raw
	lsid := mongo.NewSessionID()
	cmd := bson.D{{Key: "find", Value: ns.Collection()}, {Key: "hint", Value: bson.D{{Key: "$natural", Value: 1}}}, {Key: "batchSize", Value: 100_000}, {Key: "lsid", Value: lsid}}
	for {
		cursor := must.Get(parseCursor(run(t, c, ns.DB(), cmd)))(t)
		it := rawbson.NewIter(cursor.batch)
		for it.Next() {
			doc, _ := it.Document()
			docs = append(docs, doc)
		}
		if cursor.id == 0 {
			return docs
		}
		cmd = bson.D{{Key: "getMore", Value: cursor.id}, {Key: "collection", Value: ns.Collection()}, {Key: "lsid", Value: lsid}}
	}
}

// collection returns a collection of the source as it would be listed, and creates
// it in the target.
func (w *world) collection(ns oplog.Namespace) *progress.Collection {
	w.t.Helper()
	coll := w.listed(ns)
	create := bsoncore.NewDocumentBuilder().AppendString("create", ns.Collection()).Build()
	create = closeDocument(slices.Concat([]byte(create[:len(create)-1]), coll.Options[4:len(coll.Options)-1]), 0)
	must.Get(w.target.Call(context.Background(), mongo.Command{DB: ns.DB(), Body: bson.Raw(create)}))(w.t)
	return coll
}

// listed returns a collection of the source as it would be listed.
func (w *world) listed(ns oplog.Namespace) *progress.Collection {
	w.t.Helper()
	reply := run(w.t, w.source, ns.DB(), bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: ns.Collection()}}}})
	cursor := must.Get(parseCursor(reply))(w.t)
	it := rawbson.NewIter(cursor.batch)
	if !it.Next() {
		w.t.Fatalf("there is no %s", ns)
	}
	doc, _ := it.Document()
	_, id := doc.Lookup("info", "uuid").Binary()
	coll := &progress.Collection{
		UUID: oplog.UUID(id), NS: ns, Options: doc.Lookup("options").Document(), State: progress.Created,
		IDIndex: must.Marshal(w.t, bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}),
	}
	for _, d := range read(w.t, w.source, ns) {
		coll.Docs++
		coll.Bytes += int64(len(d))
	}
	return coll
}

// plan divides a collection, and records the ranges.
func (w *world) plan(ctx context.Context, coll *progress.Collection) {
	w.t.Helper()
	c := w.cloner()
	since := w.since
	if isCapped(coll) {
		since.Newest = must.Get(c.Newest(ctx, coll))(w.t)
	}
	if since.Has == nil {
		since.Has = func(bson.RawValue) bool { return false }
	}
	ranges := must.Get(c.Split(ctx, coll, coll.NS, since))(w.t)
	must.Succeed(w.t, w.link.AddCollections(ctx, []progress.Collection{*coll}))
	must.Succeed(w.t, w.link.Lane(0).SaveCollection(ctx, coll, ranges))
}

// ranges are those of the metadata.
func (w *world) ranges(ctx context.Context) ([]progress.Range, error) {
	_, ranges, err := w.link.Copies(ctx)
	slices.SortFunc(ranges, func(a, b progress.Range) int { return a.Index - b.Index })
	return ranges, err
}

func (w *world) rangesOf(ctx context.Context, coll *progress.Collection) ([]progress.Range, error) {
	ranges, err := w.ranges(ctx)
	return slices.DeleteFunc(ranges, func(r progress.Range) bool { return r.UUID != coll.UUID }), err
}

// copyAll copies the rest of a collection.
func (w *world) copyAll(ctx context.Context, coll *progress.Collection) error {
	ranges, err := w.rangesOf(ctx, coll)
	if err != nil {
		return err
	}
	c := w.cloner()
	for i, r := range ranges {
		if _, err := c.Copy(ctx, w.link.Lane(i%4), coll, coll.NS, r); err != nil {
			return err
		}
	}
	return nil
}

// whole copies a collection from the beginning to the end.
func (w *world) whole(coll *progress.Collection) {
	w.t.Helper()
	ctx := within(w.t)
	w.begin(ctx)
	w.plan(ctx, coll)
	must.Succeed(w.t, w.copyAll(ctx, coll))
	w.check(coll.NS)
}

// check compares source and target, and checks that all ranges are done.
func (w *world) check(ns oplog.Namespace) {
	w.t.Helper()
	must.Succeed(w.t, w.differ(ns))
	ranges := must.Get(w.ranges(within(w.t)))(w.t)
	for _, r := range ranges {
		if !r.Done {
			w.t.Errorf("range %d is not done: %s", r.Index, r.At)
		}
	}
}

func (w *world) differ(ns oplog.Namespace) error {
	w.t.Helper()
	return difference(read(w.t, w.source, ns), read(w.t, w.target, ns), true)
}

// difference returns how two lists differ, in any order if sorted.
func difference(want, got []bson.Raw, sorted bool) error {
	if sorted {
		slices.SortFunc(want, func(a, b bson.Raw) int { return bytes.Compare(a, b) })
		slices.SortFunc(got, func(a, b bson.Raw) int { return bytes.Compare(a, b) })
	}
	for i := range min(len(want), len(got)) {
		if !bytes.Equal(want[i], got[i]) {
			return fmt.Errorf("document %d of %d is %.100s, want %.100s of %d", i, len(got), got[i], want[i], len(want))
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("%d documents, want %d", len(got), len(want))
	}
	return nil
}

var errInjected = &mongo.LostError{Host: "h", Err: errors.New("cut off")}

func compareIDs(a, b bson.RawValue) int { return bsonorder.Compare(a, b, nil) }

func rawID(v any) bson.RawValue {
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: v}})
	if err != nil {
		panic(err)
	}
	return bson.Raw(doc).Lookup("_id")
}
