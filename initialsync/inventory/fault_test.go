package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func refusal(err error) *servererr.Error {
	e, _ := errors.AsType[*servererr.Error](err)
	return e
}

func alive(t *testing.T, lines ...string) *model {
	t.Helper()
	m := newModel(t)
	for _, line := range append(lines, "begin") {
		if !m.do(line) {
			t.Fatal(line)
		}
	}
	return m
}

// TestRefusals: a refusal is an error that names the request, except for sizes.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for command, text := range map[string]string{
		"listDatabases": "list the databases", "listCollections": "the collections of db", "listIndexes": "the indexes of db.a",
		"find": "newest entry", "collStats": "", "endSessions": "",
	} {
		m := alive(t, "create db.a")
		m.refuse[command] = servererr.Unauthorized
		inv, err := m.take(scope.Config{})
		if text == "" {
			if err != nil || len(inv.Collections) != 1 || inv.Collections[0].Bytes != 0 {
				t.Errorf("%s: %v", command, err)
			}
		} else if e := refusal(err); e == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", command, err)
		}
	}
	if _, err := inventory.Take(t.Context(), inventory.Config{}); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("nothing given: %v", err)
	}
}

// TestSizes: the largest comes first.
func TestSizes(t *testing.T) {
	t.Parallel()
	m := alive(t, "create db.a", "create db.b", "create db.c", "create db.d")
	m.byteSize[m.byName["db.c"]], m.byteSize[m.byName["db.b"]] = 100, 1<<40
	inv := must.Get(m.take(scope.Config{}))(t)
	var order []string
	for _, c := range inv.Collections {
		order = append(order, c.NS.Collection())
		if c.State != progress.Planned || c.Docs*2 != c.Bytes || c.IDIndex == nil || len(c.Indexes) > 0 {
			t.Errorf("%+v", c)
		}
	}
	if !slices.Equal(order, []string{"b", "c", "a", "d"}) {
		t.Error(order)
	}
}

// TestSizeOfBusyMember: a size that a member does not tell at once is asked for again. Without it, a large collection would be
// copied last, and in one range. The user may never be told it.
func TestSizeOfBusyMember(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		refusal servererr.Code
		size    int64
		asked   int
	}{
		{servererr.AdmissionQueueOverflow, 1 << 40, 3},
		{servererr.InterruptedDueToReplStateChange, 1 << 40, 3},
		{servererr.Unauthorized, 0, 1},
		{servererr.NamespaceNotFound, 0, 1},
	} {
		asked := 0
		i := &instead{alive(t, "create db.a"), "collStats", func(bson.Raw) (bson.Raw, error) {
			if asked++; asked < 3 {
				return nil, servererr.New(tt.refusal, "not now")
			}
			return bsongen.FromJSON(t, `{"count": 7, "size": {"$numberLong": "1099511627776"}, "ok": 1}`), nil
		}}
		inv := must.Get(i.take())(t)
		if got := inv.Collections[0].Bytes; got != tt.size || asked != tt.asked {
			t.Errorf("%s: %d bytes, asked %d times, want %d, %d times", tt.refusal, got, asked, tt.size, tt.asked)
		}
	}
}

// TestSizesOfBusyMember: a member that tells no size holds up the listing for a while, not for a while with each collection.
func TestSizesOfBusyMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var creates []string
		for n := range 50 {
			creates = append(creates, fmt.Sprint("create db.c", n))
		}
		i := &instead{alive(t, creates...), "collStats", func(bson.Raw) (bson.Raw, error) {
			return nil, servererr.New(servererr.AdmissionQueueOverflow, "not now")
		}}
		start := time.Now()
		must.Get(i.take())(t)
		if took := time.Since(start); took < 20*time.Second || took > 40*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// instead replaces the reply to a command.
type instead struct {
	*model
	command string
	reply   func(cmd bson.Raw) (bson.Raw, error)
}

func (i *instead) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == i.command {
		return i.reply(cmd.Body)
	}
	return i.model.Call(ctx, cmd)
}

func (i *instead) take() (*inventory.Inventory, error) {
	i.do("list")
	return inventory.Take(i.t.Context(), inventory.Config{Source: i, Scope: newScope(i.t, scope.Config{}), Log: i.model, Begin: i.begin})
}

// TestReplies: a reply that is not understood is an error.
func TestReplies(t *testing.T) {
	t.Parallel()
	id := `"info": {"uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}`
	cursor := func(doc string) string {
		return `{"cursor": {"id": 0, "ns": "db.c", "firstBatch": [` + doc + `]}, "ok": 1}`
	}
	for _, test := range []struct{ command, reply, text string }{
		{"listDatabases", `{"ok": 1}`, "without them"},
		{"listDatabases", `{"databases": [{"a": 1}]}`, "without a name"},
		{"listCollections", `{"ok": 1}`, "usable cursor"},
		{"listCollections", cursor("1"), "usable cursor"},
		{"listCollections", cursor(`{"type": "collection", "options": {}, ` + id + `}`), "no name"},
		{"listCollections", cursor(`{"name": "x", "type": "collection", ` + id + `}`), "no options"},
		{"listCollections", cursor(`{"name": "x", "type": "collection", "options": {}, "info": {}}`), "without a UUID"},
		{"listCollections", cursor(`{"name": "x", "type": "new", "options": {}, ` + id + `}`), `of type "new"`},
		{"listCollections", cursor(`{"name": "x", "type": "timeseries", "options": {}, ` + id + `}`), "without buckets"},
		{"listCollections", cursor(`{"name": "x", "type": "view", "options": {"viewOn": "a", "new": 1}, "info": {}}`), `option "new"`},
		{"listIndexes", cursor(`{"v": 2, "key": {"a": 1}}`), "without name or key"},
		{"listIndexes", cursor(`{"v": 2, "name": "a"}`), "without name or key"},
		{"find", cursor(``), "empty"},
		{"find", cursor(`{"a": 1}`), "no timestamp"},
	} {
		i := &instead{alive(t, "create db.a"), test.command, func(bson.Raw) (bson.Raw, error) { return bsongen.FromJSON(t, test.reply), nil }}
		if _, err := i.take(); err == nil || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v", test.reply, err)
		}
	}
	lost := &mongo.LostError{Host: "h:1", Err: errors.New("reset")}
	i := &instead{alive(t, "create db.a"), "collStats", func(bson.Raw) (bson.Raw, error) { return nil, lost }}
	if _, err := i.take(); !errors.Is(err, lost) {
		t.Errorf("a line that breaks: %v", err)
	}
}

// TestLongLists: lists longer than one reply are read with getMore in the same session,
// which is ended.
func TestLongLists(t *testing.T) {
	t.Parallel()
	m := alive(t, "create db.a", "create db.b", "create db.c")
	m.do("list")
	split := &splitter{model: m}
	inv, err := inventory.Take(t.Context(), inventory.Config{Source: split, Scope: newScope(t, scope.Config{}), Log: m, Begin: m.begin})
	if err != nil || len(inv.Collections) != 3 || split.mores == 0 {
		t.Errorf("%+v after %d replies more, %v", inv, split.mores, err)
	}
	if len(split.sessions) != 1 || m.asked[len(m.asked)-1] != "endSessions" {
		t.Errorf("%d sessions, %s", len(split.sessions), m.asked)
	}
}

// splitter gives lists of collections one by one.
type splitter struct {
	*model
	left     []bson.Raw
	mores    int
	sessions map[string]bool
}

func (s *splitter) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	name, batch := cmd.Body.Index(0).Key(), "firstBatch"
	switch name {
	case "listCollections":
		if cmd.DB != "db" {
			return s.model.Call(ctx, cmd)
		}
		s.left, s.sessions = s.lists["db"], map[string]bool{}
	case "getMore":
		batch = "nextBatch"
		s.mores++
	default:
		return s.model.Call(ctx, cmd)
	}
	s.sessions[cmd.Body.Lookup("lsid").String()] = true
	var id int64
	if len(s.left) > 1 {
		id = 77
	}
	reply := bson.D{{Key: "id", Value: id}, {Key: "ns", Value: "db.$cmd.listCollections"}, {Key: batch, Value: s.left[:1]}}
	s.left = s.left[1:]
	return must.Marshal(s.t, bson.D{{Key: "cursor", Value: reply}, {Key: "ok", Value: 1}}), nil
}

// TestOldServer retries without the flag for unfinished indexes.
func TestOldServer(t *testing.T) {
	t.Parallel()
	asked := 0
	i := &instead{model: alive(t, "create db.a"), command: "listIndexes"}
	i.reply = func(cmd bson.Raw) (bson.Raw, error) {
		asked++
		if _, err := cmd.LookupErr("includeBuildUUIDs"); err == nil {
			return nil, servererr.New(40415, "BSON field 'listIndexes.includeBuildUUIDs' is an unknown field.")
		}
		return bsongen.FromJSON(t, `{"cursor": {"id": 0, "ns": "db.a", "firstBatch": [{"v": 1, "key": {"b": 1}, "name": "b", "ns": "db.a"}]}, "ok": 1}`), nil
	}
	inv, err := i.take()
	if err != nil || asked != 2 || len(inv.Collections) != 1 || len(inv.Collections[0].Indexes) != 1 {
		t.Errorf("%+v after %d questions, %v", inv, asked, err)
	}
}

// TestLog: an invalid entry and an unreadable oplog are errors.
func TestLog(t *testing.T) {
	t.Parallel()
	for _, o := range []bson.D{
		{{Key: "renameCollection", Value: "db.a"}},
		{{Key: "create", Value: 1}},
		{{Key: "create", Value: "x"}}, // without ui
		{{Key: "applyOps", Value: bson.A{1}}},
		{{Key: "applyOps", Value: 1}},
	} {
		m := alive(t, "create db.a")
		m.command("db.a", oplog.UUID{}, o)
		_, err := m.take(scope.Config{})
		if _, ok := errors.AsType[*oplog.EntryError](err); !ok {
			t.Errorf("%v: %v", o, err)
		}
	}
	nested := bson.D{{Key: "applyOps", Value: bson.A{}}}
	for range 20 {
		nested = bson.D{{Key: "applyOps", Value: bson.A{bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: "db.$cmd"}, {Key: "o", Value: nested}}}}}
	}
	m := alive(t, "create db.a")
	m.command("db.a", oplog.UUID{}, nested)
	if _, err := m.take(scope.Config{}); err == nil || !strings.Contains(err.Error(), "deeper") {
		t.Errorf("%v", err)
	}
	// Somebody's applyOps, with a create inside of another.
	m = alive(t)
	u := m.newUUID()
	m.command("db.a", oplog.UUID{}, bson.D{{Key: "applyOps", Value: bson.A{bson.D{
		{Key: "op", Value: "c"},
		{Key: "ns", Value: "db.$cmd"},
		{Key: "o", Value: bson.D{{Key: "applyOps", Value: bson.A{m.createOf(&openTxn{ns: "db.n", uuid: u})}}}},
	}}}})
	m.appear("db.n", u)
	if inv, err := m.take(scope.Config{}); err != nil || len(inv.Collections) > 0 {
		t.Errorf("%v, %v", inv, err)
	}
}

// TestOps: invalid operations are refused; the others equal those parsed from real
// entries.
func TestOps(t *testing.T) {
	t.Parallel()
	at := oplog.NewOpTime(100, 3, 7)
	c := &progress.Collection{NS: "db.a.b", UUID: oplog.UUID{3}, Options: bsongen.FromJSON(t, `{"capped": true, "size": 10}`), IDIndex: bsongen.FromJSON(t, `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`)}
	op, err := inventory.CreateOp(c, at)
	if err != nil || op.OpTime != at || op.UI != c.UUID || op.NS != "db.$cmd" {
		t.Fatalf("%+v, %v", op, err)
	}
	if create, err := op.Create(); err != nil || create.NS != c.NS || create.Options.String() != c.Options.String() || create.IDIndex.String() != c.IDIndex.String() {
		t.Errorf("%+v, %v", create, err)
	}
	spec := bsongen.FromJSON(t, `{"v": 2, "key": {"a": 1}, "name": "a"}`)
	if op, err = inventory.IndexesOp(c, []bson.Raw{spec}, at); err != nil || op.Command != oplog.CommandCommitIndexBuild {
		t.Errorf("%+v, %v", op, err)
	}
	if b, err := op.IndexBuild(); err != nil || b.NS != c.NS || len(b.Specs) != 1 || b.Specs[0].String() != spec.String() {
		t.Errorf("%+v, %v", b, err)
	}
	if op, err = inventory.DropOp("db.a.b", at); err != nil || op.Command != oplog.CommandDrop {
		t.Errorf("%+v, %v", op, err)
	}
	if d, err := op.Drop(); err != nil || d.NS != "db.a.b" {
		t.Errorf("%+v, %v", d, err)
	}
	view := bsongen.FromJSON(t, `{"_id": "db.v", "viewOn": "a.b", "pipeline": []}`)
	if op, err = inventory.ViewOp(view, at); err != nil || op.Kind != oplog.KindInsert || op.NS != "db.system.views" || op.O.String() != view.String() {
		t.Errorf("%+v, %v", op, err)
	}
	broken := bson.Raw{9, 0, 0, 0, 1, 'a', 0, 0, 0}
	for what, build := range map[string]func() (*oplog.Op, error){
		"no time":    func() (*oplog.Op, error) { return inventory.DropOp("db.a", oplog.OpTime{}) },
		"no indexes": func() (*oplog.Op, error) { return inventory.IndexesOp(c, nil, at) },
		"an index with no key": func() (*oplog.Op, error) {
			return inventory.IndexesOp(c, []bson.Raw{bsongen.FromJSON(t, `{"name": "a"}`)}, at)
		},
		"broken options": func() (*oplog.Op, error) {
			return inventory.CreateOp(&progress.Collection{NS: "db.a", Options: broken}, at)
		},
		"broken index":      func() (*oplog.Op, error) { return inventory.IndexesOp(c, []bson.Raw{broken}, at) },
		"a view of no name": func() (*oplog.Op, error) { return inventory.ViewOp(bsongen.FromJSON(t, `{"_id": "v"}`), at) },
	} {
		if op, err := build(); err == nil {
			t.Errorf("%s: %+v", what, op)
		}
	}
}
