package inventory_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// shown summarizes an inventory.
func shown(inv *inventory.Inventory) []string {
	var all []string
	for _, c := range inv.Collections {
		words := []string{string(c.NS)}
		for _, spec := range c.Indexes {
			words = append(words, spec.Lookup("name").StringValue())
		}
		all = append(all, strings.Join(words, " "))
	}
	for _, v := range inv.Views {
		all = append(all, "view "+v.Lookup("_id").StringValue())
	}
	slices.Sort(all)
	return all
}

// TestReplay changes names at the source while it is listed, lists it, creates the
// collections found on a target, and applies the oplog's commands to it. In the end it
// must equal the source.
func TestReplay(t *testing.T) {
	t.Parallel()
	source := start(t, mongosim.Options{Dialect: "7.0", Seed: 3})
	run := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			db := "db"
			if strings.Contains(line, `"renameCollection"`) {
				db = "admin"
			}
			source.must(t, db, line)
		}
	}
	for _, name := range []string{"a", "b", "c", "dropped", "again", "out"} {
		run(`{"create": "`+name+`"}`, `{"createIndexes": "`+name+`", "indexes": [{"key": {"of_`+name+`": 1}, "name": "of `+name+`", "unique": true}]}`)
	}
	run(`{"create": "view", "viewOn": "a", "pipeline": []}`, `{"create": "series", "timeseries": {"timeField": "t"}}`,
		`{"create": "tmp.agg_out.1"}`, `{"create": "gone series", "timeseries": {"timeField": "t"}}`)
	begin := source.now(t)
	rename := func(from, to string) string {
		return `{"renameCollection": "db.` + from + `", "to": "db.` + to + `", "dropTarget": true}`
	}
	run(
		rename("a", "swap"), rename("b", "a"), rename("swap", "b"), // a <-> b
		rename("c", "d"), rename("d", "e"),
		`{"drop": "dropped"}`,
		`{"drop": "again"}`, `{"create": "again", "collation": {"locale": "de"}}`,
		rename("tmp.agg_out.1", "out"),
		`{"drop": "view"}`, `{"create": "view"}`,
		`{"create": "dropped", "viewOn": "a", "pipeline": []}`,
		`{"drop": "gone series"}`, `{"create": "gone series", "viewOn": "a", "pipeline": []}`,
		`{"collMod": "e", "index": {"name": "of c", "hidden": true}}`,
		`{"dropIndexes": "a", "index": "of b"}`,
		`{"createIndexes": "a", "indexes": [{"key": {"late": 1}, "name": "late"}]}`,
		`{"convertToCapped": "again", "size": 4096}`,
	)
	// A transaction that makes a collection.
	txn := `"lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false`
	run(`{"insert": "by txn", "documents": [{"_id": 1}], "startTransaction": true, ` + txn + `}`)
	source.must(t, "admin", `{"commitTransaction": 1, `+txn+`}`)
	run(rename("by txn", "by txn 2"))

	inv := source.take(t, scope.Config{}, begin)
	want := []string{
		"db.a of a", "db.b late", "db.c of c", "db.system.buckets.series", "db.tmp.agg_out.1", // of a swap, one that lost its index and has another
	}
	if diff := cmp.Diff(want, shown(inv)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	target := start(t, mongosim.Options{Dialect: "7.0", Seed: 4})
	exec := target.executor(t, scope.Config{}, ddl.Relaxed)
	build(t, exec, inv, begin)
	// In place of the rest of the copy, the oplog is applied.
	log := &setLog{server: source}
	log.waits = []bson.Timestamp{source.now(t).TS}
	var failed error
	err := log.Commands(t.Context(), begin, source.now(t).TS, func(e *oplog.Entry) error {
		failed = applyAll(t.Context(), exec, &e.Op)
		return failed
	})
	if err != nil {
		t.Fatal(err)
	}
	state := source.state(t)
	state.Collections = slices.DeleteFunc(state.Collections, func(c memstore.CollectionState) bool {
		return c.Type == memstore.TypeView // only commands were applied
	})
	for _, what := range memstore.Diff(state, target.state(t)) {
		if !strings.HasPrefix(what, "db.system.views") {
			t.Error(what)
		}
	}
}

// applyAll applies a command, or those inside of it.
func applyAll(ctx context.Context, exec *ddl.Executor, op *oplog.Op) error {
	if op.Command != oplog.CommandApplyOps {
		return exec.Apply(ctx, op, ddl.Copied)
	}
	group, err := op.ApplyOps()
	if err != nil {
		return err
	}
	for inner, err := range group.Ops() {
		if err == nil && inner.Kind == oplog.KindCommand {
			err = exec.Apply(ctx, &inner, ddl.Copied)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestPrivileges lists a source as a user with the documented privileges.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	user := func(name string, roles ...string) mongosim.User {
		u := mongosim.User{Name: name, Password: "pw"}
		for _, r := range roles {
			u.Roles = append(u.Roles, mongosim.Role{Name: r, DB: "admin"})
		}
		return u
	}
	set := mongosim.StartTest(t, mongosim.Options{Dialect: "7.0", Seed: 5, Members: 3, Users: []mongosim.User{
		user("mirror", "backup", "clusterMonitor"), user("backup", "backup"), user("monitor", "clusterMonitor"), user("root", "root"),
		{Name: "reader", Password: "pw", Roles: []mongosim.Role{{Name: "read", DB: "local"}}},
	}})
	admin := &server{open(t, set.URIFor("root")), set}
	for _, cmd := range catalogue {
		if since, rest, ok := strings.Cut(cmd, " {"); ok && since != "" && since[0] != '{' {
			cmd = "{" + rest
		}
		if strings.Contains(cmd, "recordPreImages") {
			continue // not since 6.2
		}
		admin.must(t, "db", cmd)
	}
	begin := admin.now(t)
	must.Succeed(t, set.AwaitSynced(t.Context()))
	names := scope.Config{UsersAndRoles: true}
	want := shown(admin.take(t, names, begin))
	for _, m := range set.Members() {
		for _, name := range []string{"mirror", "backup", "monitor", "reader"} {
			as := &server{open(t, set.URIFor(name)).Member(m.Host()), set}
			inv, err := inventory.Take(t.Context(), inventory.Config{Source: as, Scope: newScope(t, names), Log: &setLog{server: admin}, Begin: begin})
			switch name {
			case "mirror", "backup":
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff := cmp.Diff(want, shown(inv)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", name, diff)
				}
			default: // a user without the privilege gets an error
				if e := refusal(err); e == nil || e.Code != servererr.Unauthorized {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// TestBuilding leaves out an index that is being built.
func TestBuilding(t *testing.T) {
	t.Parallel()
	first := oplog.NewOpTime(1_600_000_000, 1, 1)
	uuid := oplog.UUID{15: 7}
	source := start(t, mongosim.Options{Seed: 6, Recording: &mongosim.Recording{
		First: first, Collections: []mongosim.StoredCollection{{NS: "db.c", UUID: uuid, Options: bsongen.FromJSON(t, `{}`)}},
	}})
	entry := func(second uint32, o string) bson.Raw {
		return must.Marshal(t, bson.D{
			{Key: "op", Value: "c"},
			{Key: "ns", Value: "db.$cmd"},
			{Key: "ui", Value: uuid.Binary()},
			{Key: "o", Value: bsongen.FromJSON(t, o)},
			{Key: "ts", Value: bson.Timestamp{T: second, I: 1}},
			{Key: "t", Value: int64(1)},
			{Key: "v", Value: int64(2)},
			{Key: "wall", Value: bson.DateTime(int64(second) * 1000)},
		})
	}
	build := `"c", "indexBuildUUID": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}, "indexes": [{"v": 2, "key": {"a": 1}, "name": "a"}]}`
	for i, step := range []struct {
		entry string
		want  []string
	}{
		{`{"createIndexes": "c", "v": 2, "key": {"b": 1}, "name": "b"}`, []string{"db.c b"}},
		{`{"startIndexBuild": ` + build, []string{"db.c b"}},
		{`{"commitIndexBuild": ` + build, []string{"db.c b a"}},
	} {
		must.Succeed(t, source.set.Member(0).Play([]bson.Raw{entry(first.TS.T+uint32(i)+1, step.entry)}))
		if diff := cmp.Diff(step.want, shown(source.take(t, scope.Config{}, first))); diff != "" {
			t.Errorf("after %s: -want +got:\n%s", step.entry, diff)
		}
	}
}

// TestThousands lists 10,000 collections; 2,000 under the race detector.
func TestThousands(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes seconds: not with -short")
	}
	many := 10_000
	if race.Enabled {
		many = 2_000
	}
	source := start(t, mongosim.Options{Seed: 7})
	begin := source.now(t)
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(8)
	for i := range many {
		g.Go(func() error {
			_, err := source.Call(ctx, mongo.Command{DB: fmt.Sprintf("db%d", i%3), Body: must.Marshal(t, bson.D{{Key: "create", Value: fmt.Sprintf("c%d", i)}})})
			return err
		})
	}
	must.Succeed(t, g.Wait())
	asked := &counter{Caller: source.Caller}
	seen := &server{asked, source.set}
	began := time.Now()
	if inv := seen.take(t, scope.Config{}, begin); len(inv.Collections) != 0 {
		t.Errorf("%d collections that were made after Begin", len(inv.Collections))
	}
	t.Logf("all of them new: %s", time.Since(began))
	began = time.Now()
	if inv := seen.take(t, scope.Config{}, source.now(t)); len(inv.Collections) != many {
		t.Errorf("%d collections", len(inv.Collections))
	}
	took := time.Since(began)
	t.Logf("%d collections: %s, %d at a time", many, took, asked.most)
	if asked.most > 16 {
		t.Errorf("%d questions at a time", asked.most)
	}
}

// counter counts the calls that are under way.
type counter struct {
	mongo.Caller
	mu        sync.Mutex
	now, most int
}

func (c *counter) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.now--
	}()
	return c.Caller.Call(ctx, cmd)
}

// recorded is the state of a real server at the end of a recording.
type recorded struct {
	*model
	state memstore.State
}

func (r *recorded) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() != "listCollections" {
		return r.model.Call(ctx, cmd)
	}
	var list []bson.Raw
	for _, c := range r.state.Collections {
		if c.NS.DB() != cmd.DB {
			continue
		}
		info := bson.D{}
		if !c.UUID.IsZero() {
			info = bson.D{{Key: "uuid", Value: c.UUID.Binary()}}
		}
		list = append(list, must.Marshal(r.t, bson.D{
			{Key: "name", Value: c.NS.Collection()},
			{Key: "type", Value: c.Type},
			{Key: "options", Value: c.Options},
			{Key: "info", Value: info},
		}))
	}
	return must.Marshal(r.t, bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "a.b"}, {Key: "firstBatch", Value: list}}}, {Key: "ok", Value: 1}}), nil
}

// load makes the oplog of a recording that of the model, which begins before it.
func (r *recorded) load(s *corpus.Scenario) {
	r.entries = nil
	for e, err := range s.Oplog() {
		if err != nil {
			r.t.Fatal(err)
		}
		if len(r.entries) == 0 {
			r.begin = e.OpTime
			r.begin.TS.I--
		}
		r.entries = append(r.entries, slices.Clone(e.Raw))
	}
}

// TestRecordings: the oplogs that real servers wrote are taken as the changes after
// Begin. The collections that exist at the beginning and at the end of a recording get
// the names of its beginning.
func TestRecordings(t *testing.T) {
	t.Parallel()
	all, err := corpus.Open("../../testdata/corpus")
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for _, s := range all {
		before, err := s.Before()
		if err != nil {
			t.Fatal(err)
		}
		r := &recorded{model: newModel(t)}
		if r.state, err = s.After(); err != nil {
			t.Fatal(err)
		}
		r.load(&s)
		want := map[oplog.UUID]oplog.Namespace{}
		for _, c := range before.Collections {
			want[c.UUID] = c.NS
		}
		for _, c := range r.state.Collections {
			r.byName[c.NS] = c.UUID
		}
		inv, err := inventory.Take(t.Context(), inventory.Config{Source: r, Scope: newScope(t, scope.Config{}), Log: &playedLog{r}, Begin: r.begin})
		if err != nil {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		found := map[oplog.UUID]bool{}
		for _, c := range inv.Collections {
			found[c.UUID] = true
			kept++
			if want[c.UUID] != c.NS {
				t.Errorf("%s: %s is copied as %s, it was %q", s.Name, c.UUID, c.NS, want[c.UUID])
			}
		}
		if s.Name == "fuzzy-clone" {
			continue // Its data was copied while it was written to: some of it is created by the oplog.
		}
		for _, c := range r.state.Collections {
			if _, was := want[c.UUID]; was && c.Type == memstore.TypeCollection && !c.NS.IsSystemViews() && !found[c.UUID] {
				t.Errorf("%s: %s, which was there, is not copied", s.Name, c.NS)
			}
		}
	}
	if kept == 0 {
		t.Error("no recording has a collection that lives on")
	}
	t.Logf("%d collections live on", kept)
}

// playedLog is a recording that has ended.
type playedLog struct{ *recorded }

func (l *playedLog) WaitFor(context.Context, bson.Timestamp) error { return nil }

func (l *playedLog) Commands(ctx context.Context, after oplog.OpTime, _ bson.Timestamp, yield func(*oplog.Entry) error) error {
	end := bson.Timestamp{T: 1<<32 - 1}
	l.waited = end
	return l.model.Commands(ctx, after, end, yield)
}
