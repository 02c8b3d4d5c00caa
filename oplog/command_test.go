package oplog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// readPayload calls the reader of every command on op and returns the result of the
// one for op's command.
func readPayload(op *oplog.Op) (payload any, err error) {
	own := func(c oplog.Command, v any, e error) {
		if op.Command == c {
			payload, err = v, e
		}
	}
	create, e := op.Create()
	own(oplog.CommandCreate, create, e)
	index, e := op.CreateIndexes()
	own(oplog.CommandCreateIndexes, index, e)
	build, e := op.IndexBuild()
	own(oplog.CommandStartIndexBuild, build, e)
	own(oplog.CommandCommitIndexBuild, build, e)
	own(oplog.CommandAbortIndexBuild, build, e)
	dropIndexes, e := op.DropIndexes()
	own(oplog.CommandDropIndexes, dropIndexes, e)
	collMod, e := op.CollMod()
	own(oplog.CommandCollMod, collMod, e)
	drop, e := op.Drop()
	own(oplog.CommandDrop, drop, e)
	rename, e := op.RenameCollection()
	own(oplog.CommandRenameCollection, rename, e)
	empty, e := op.EmptyCapped()
	own(oplog.CommandEmptyCapped, empty, e)
	ts, e := op.CommitTimestamp()
	own(oplog.CommandCommitTransaction, ts, e)
	applyOps, e := op.ApplyOps()
	if e == nil {
		var ops []oplog.Op
		for inner, err := range applyOps.Ops() {
			if err != nil {
				e = err
				break
			}
			ops = append(ops, inner)
		}
		own(oplog.CommandApplyOps, ops, e)
	} else {
		own(oplog.CommandApplyOps, nil, e)
	}
	return payload, err
}

func command(t testing.TB, o string) oplog.Op {
	t.Helper()
	e, err := oplog.ParseEntry(entry(t, `"op":"c","ns":"db.$cmd","o":`+o))
	if err != nil {
		t.Fatal(err)
	}
	return e.Op
}

func TestCommandPayloads(t *testing.T) {
	uuid := oplog.UUID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	const index = `{"v":2,"key":{"x":1},"name":"x_1"}`
	for _, tc := range []struct {
		o    string
		want any
	}{
		{
			`{"create":"c.d","capped":true,"size":8192,"idIndex":` + index + `}`,
			oplog.Create{NS: "db.c.d", Options: bsongen.FromJSON(t, `{"capped":true,"size":8192}`), IDIndex: bsongen.FromJSON(t, index)},
		},
		{`{"create":"c"}`, oplog.Create{NS: "db.c", Options: bsongen.FromJSON(t, `{}`)}},
		{
			`{"createIndexes":"c","v":2,"key":{"x":1},"name":"x_1"}`,
			oplog.CreateIndexes{NS: "db.c", Spec: bsongen.FromJSON(t, index)},
		},
		{
			`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[` + index + `,` + index + `]}`,
			oplog.IndexBuild{NS: "db.c", Build: uuid, Specs: []bson.Raw{bsongen.FromJSON(t, index), bsongen.FromJSON(t, index)}},
		},
		{
			`{"commitIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[` + index + `]}`,
			oplog.IndexBuild{NS: "db.c", Build: uuid, Specs: []bson.Raw{bsongen.FromJSON(t, index)}},
		},
		{
			`{"abortIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[` + index + `],"cause":{"ok":false,"code":11000}}`,
			oplog.IndexBuild{NS: "db.c", Build: uuid, Specs: []bson.Raw{bsongen.FromJSON(t, index)}, Cause: bsongen.FromJSON(t, `{"ok":false,"code":11000}`)},
		},
		{`{"dropIndexes":"c","index":"x_1"}`, oplog.DropIndexes{NS: "db.c", Name: "x_1"}},
		{`{"deleteIndexes":"c","index":"x_1"}`, oplog.DropIndexes{NS: "db.c", Name: "x_1"}},
		{
			`{"collMod":"c","index":{"name":"x_1","hidden":true}}`,
			oplog.CollMod{NS: "db.c", Changes: bsongen.FromJSON(t, `{"index":{"name":"x_1","hidden":true}}`)},
		},
		{`{"drop":"c"}`, oplog.Drop{NS: "db.c"}},
		{`{"emptycapped":"c"}`, oplog.Namespace("db.c")},
		{
			`{"renameCollection":"db.a","to":"db.b","stayTemp":true,"dropTarget":` + someUUID + `}`,
			oplog.RenameCollection{From: "db.a", To: "db.b", StayTemp: true, DropTarget: uuid},
		},
		{
			`{"renameCollection":"db.a","to":"db.b","dropTarget":false}`,
			oplog.RenameCollection{From: "db.a", To: "db.b"},
		},
		{
			`{"commitTransaction":1,"commitTimestamp":{"$timestamp":{"t":7,"i":8}}}`,
			bson.Timestamp{T: 7, I: 8},
		},
	} {
		op := command(t, tc.o)
		got, err := readPayload(&op)
		if err != nil {
			t.Errorf("%s: %v", tc.o, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.o, diff)
		}
	}
}

func TestCommandPayloadsRefuse(t *testing.T) {
	for _, tc := range []struct {
		o, field string
		want     error
	}{
		{`{"create":1}`, "o.create", oplog.ErrBadField},
		{`{"create":""}`, "o.create", oplog.ErrBadField},
		{`{"create":"c","idIndex":1}`, "o.idIndex", oplog.ErrBadField},
		{`{"startIndexBuild":"c","indexes":[]}`, "o.indexBuildUUID", oplog.ErrMissingField},
		{`{"startIndexBuild":"c","indexBuildUUID":1,"indexes":[]}`, "o.indexBuildUUID", oplog.ErrBadField},
		{`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `}`, "o.indexes", oplog.ErrMissingField},
		{`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":{}}`, "o.indexes", oplog.ErrBadField},
		{`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[]}`, "o.indexes", oplog.ErrMissingField},
		{`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[{"name":"x"}]}`, "o.indexes.0.key", oplog.ErrMissingField},
		{`{"createIndexes":"c"}`, "o.key", oplog.ErrMissingField},
		{`{"createIndexes":"c","key":1,"name":"x"}`, "o.key", oplog.ErrBadField},
		{`{"createIndexes":"c","key":{"x":1}}`, "o.name", oplog.ErrMissingField},
		{`{"createIndexes":"c","key":{"x":1},"name":1}`, "o.name", oplog.ErrBadField},
		{`{"createIndexes":"c","key":{"x":1},"name":""}`, "o.name", oplog.ErrBadField},
		{`{"create":"c","create":"d"}`, "o.create", oplog.ErrBadField},
		{`{"applyOps":[],"applyOps":[{"op":"n","ns":"","o":{}}]}`, "o.applyOps", oplog.ErrBadField},
		{`{"applyOps":[],"prepare":true,"prepare":false}`, "o.prepare", oplog.ErrBadField},
		{`{"applyOps":[],"count":1,"count":2}`, "o.count", oplog.ErrBadField},
		{`{"renameCollection":"db.a","to":"db.b","to":"db.c"}`, "o.to", oplog.ErrBadField},
		{`{"renameCollection":"other.a","to":"other.b"}`, "o.renameCollection", oplog.ErrBadField},
		{`{"collMod":"c",` + numbered(40) + `,"f39":1}`, "o.f39", oplog.ErrBadField},
		{`{"collMod":"c",` + numbered(40) + `,"f3":1}`, "o.f3", oplog.ErrBadField},
		{`{"startIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[1]}`, "o.indexes.0", oplog.ErrBadField},
		{`{"abortIndexBuild":"c","indexBuildUUID":` + someUUID + `,"indexes":[{"key":{},"name":"x"}],"cause":1}`, "o.cause", oplog.ErrBadField},
		{`{"dropIndexes":"c"}`, "o.index", oplog.ErrMissingField},
		{`{"dropIndexes":"c","index":1}`, "o.index", oplog.ErrBadField},
		{`{"renameCollection":"db.a"}`, "o.to", oplog.ErrMissingField},
		{`{"renameCollection":"a","to":"db.b"}`, "o.renameCollection", oplog.ErrBadField},
		{`{"renameCollection":"db.a","to":"b"}`, "o.to", oplog.ErrBadField},
		{`{"renameCollection":"db.a","to":"other.b"}`, "o.to", oplog.ErrUnsupported},
		{`{"renameCollection":"db.a","to":"db.b","stayTemp":1}`, "o.stayTemp", oplog.ErrBadField},
		{`{"renameCollection":"db.a","to":"db.b","dropTarget":true}`, "o.dropTarget", oplog.ErrBadField},
		{`{"commitTransaction":1}`, "o.commitTimestamp", oplog.ErrMissingField},
		{`{"commitTransaction":1,"commitTimestamp":1}`, "o.commitTimestamp", oplog.ErrBadField},
		{`{"applyOps":{}}`, "o.applyOps", oplog.ErrBadField},
		{`{"applyOps":[],"prepare":1}`, "o.prepare", oplog.ErrBadField},
		{`{"applyOps":[],"partialTxn":1}`, "o.partialTxn", oplog.ErrBadField},
		{`{"applyOps":[],"count":"1"}`, "o.count", oplog.ErrBadField},
		{`{"applyOps":[],"alwaysUpsert":1}`, "o.alwaysUpsert", oplog.ErrBadField},
		{`{"applyOps":[],"prepare":true,"partialTxn":true}`, "o", oplog.ErrBadField},
		{`{"applyOps":[1]}`, "o.applyOps.0", oplog.ErrBadField},
		{`{"applyOps":[{"op":"i","ns":"a.b"}]}`, "o.applyOps.0.o", oplog.ErrMissingField},
		{`{"applyOps":[{"op":"i","ns":"a.b","o":{"_id":1}},{"op":"u","ns":"a.b","o":{}}]}`, "o.applyOps.1.o2", oplog.ErrMissingField},
		{`{"applyOps":[{"op":"c","ns":"a.$cmd","o":{"shutdown":1}}]}`, "o.applyOps.0.o", oplog.ErrUnknownCommand},
		{`{"applyOps":[{"op":"?","ns":"a.b","o":{}}]}`, "o.applyOps.0.op", oplog.ErrUnknownOp},
		{`{"applyOps":[{"op":"i","v":1,"ns":"a.b","o":{"_id":1}}]}`, "o.applyOps.0.v", oplog.ErrVersion},
	} {
		op := command(t, tc.o)
		_, err := readPayload(&op)
		fault, ok := errors.AsType[*oplog.EntryError](err)
		if !ok || !errors.Is(err, tc.want) || fault.Field != tc.field || fault.OpTime != op.OpTime {
			t.Errorf("%s: error is %v, want %v at %s", tc.o, err, tc.want, tc.field)
		}
	}
}

// numbered returns the text of n fields.
func numbered(n int) string {
	fields := make([]string, n)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"f%d":1`, i)
	}
	return strings.Join(fields, ",")
}

func TestManyFieldsAreNoRepeat(t *testing.T) {
	for _, n := range []int{1, 14, 15, 16, 17, 40} {
		op := command(t, `{"collMod":"c",`+numbered(n)+`}`)
		if _, err := op.CollMod(); err != nil {
			t.Errorf("%d fields: %v", n, err)
		}
	}
}

func TestTarget(t *testing.T) {
	const index = `"key":{"x":1},"name":"x_1"`
	for o, want := range map[string][2]oplog.Namespace{
		`{"create":"c"}`:                          {"db.c"},
		`{"createIndexes":"c",` + index + `}`:     {"db.c"},
		`{"startIndexBuild":"c"}`:                 {"db.c"},
		`{"commitIndexBuild":"c"}`:                {"db.c"},
		`{"abortIndexBuild":"c"}`:                 {"db.c"},
		`{"dropIndexes":"c"}`:                     {"db.c"},
		`{"collMod":"c"}`:                         {"db.c"},
		`{"drop":"c"}`:                            {"db.c"},
		`{"emptycapped":"c"}`:                     {"db.c"},
		`{"dbCheck":"db.c","type":"batch"}`:       {"db.c"},
		`{"dbCheck":"admin.$cmd","type":"start"}`: {},
		`{"importCollection":"db.c"}`:             {"db.c"},
		`{"dropDatabase":1}`:                      {"db"},
		`{"renameCollection":"db.c","to":"db.d"}`: {"db.c", "db.d"},
		`{"applyOps":[]}`:                         {},
		`{"commitTransaction":1}`:                 {},
		`{"abortTransaction":1}`:                  {},
	} {
		op := command(t, o)
		ns, to, err := op.Target()
		if err != nil || ns != want[0] || to != want[1] {
			t.Errorf("%s: %q, %q, %v, want %q", o, ns, to, err, want)
		}
	}
	for _, o := range []string{`{"drop":1}`, `{"importCollection":"c"}`, `{"dbCheck":1}`, `{"renameCollection":"db.c"}`} {
		op := command(t, o)
		if ns, to, err := op.Target(); err == nil {
			t.Errorf("%s: %q, %q", o, ns, to)
		}
	}
	for fields, want := range map[string]oplog.Namespace{
		`"op":"i","ns":"a.b","o":{"_id":1}`:                "a.b",
		`"op":"u","ns":"a.b","o":{"_id":1},"o2":{"_id":1}`: "a.b",
		`"op":"d","ns":"a.b","o":{"_id":1}`:                "a.b",
		`"op":"n","ns":"a.b","o":{}`:                       "",
	} {
		e, err := oplog.ParseEntry(entry(t, fields))
		if err != nil {
			t.Fatal(err)
		}
		if ns, to, err := e.Target(); err != nil || ns != want || to != "" {
			t.Errorf("%s: %q, %q, %v", fields, ns, to, err)
		}
	}
}

func TestPayloadOfAnotherCommand(t *testing.T) {
	drop := command(t, `{"drop":"c"}`)
	if _, err := drop.Create(); err == nil || !strings.Contains(err.Error(), "is drop, not create") {
		t.Errorf("Create of a drop gives %v", err)
	}
	if _, err := drop.IndexBuild(); err == nil || !strings.Contains(err.Error(), "is drop, not an index build") {
		t.Errorf("IndexBuild of a drop gives %v", err)
	}
	e, err := oplog.ParseEntry(crudEntry(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.ApplyOps(); err == nil || !strings.Contains(err.Error(), "is insert, not applyOps") {
		t.Errorf("ApplyOps of an insert gives %v", err)
	}
}

func TestCorruptPayload(t *testing.T) {
	raw := entry(t, `"op":"c","ns":"db.$cmd","o":{"create":"c","zzz":1}`)
	raw[strings.Index(string(raw), "\x10zzz")] = 0x55
	e, err := oplog.ParseEntry(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(); !errors.Is(err, oplog.ErrCorrupt) {
		t.Errorf("Create gives %v", err)
	}
	raw = entry(t, `"op":"c","ns":"db.$cmd","o":{"applyOps":[{"op":"i","ns":"a.b","zzz":1}]}`)
	raw[strings.Index(string(raw), "\x10zzz")] = 0x55
	if e, err = oplog.ParseEntry(raw); err != nil {
		t.Fatal(err)
	}
	if _, err := readPayload(&e.Op); !errors.Is(err, oplog.ErrCorrupt) {
		t.Errorf("Ops gives %v", err)
	}
	raw = entry(t, `"op":"c","ns":"db.$cmd","o":{"applyOps":[{"op":"i","ns":"a.b","o":{"_id":1}}]}`)
	raw[strings.Index(string(raw), "\x030\x00")] = 0x55
	if e, err = oplog.ParseEntry(raw); err != nil {
		t.Fatal(err)
	}
	if _, err := readPayload(&e.Op); !errors.Is(err, oplog.ErrCorrupt) {
		t.Errorf("Ops of a corrupt array gives %v", err)
	}
	raw = entry(t, `"op":"c","ns":"db.$cmd","o":{"commitIndexBuild":"c","indexBuildUUID":`+someUUID+`,"indexes":[{"key":{},"name":"x"}]}`)
	raw[strings.Index(string(raw), "\x030\x00")] = 0x55
	if e, err = oplog.ParseEntry(raw); err != nil {
		t.Fatal(err)
	}
	if _, err := e.IndexBuild(); !errors.Is(err, oplog.ErrCorrupt) {
		t.Errorf("IndexBuild of a corrupt array gives %v", err)
	}
}

func TestApplyOpsYieldsOperationsInOrder(t *testing.T) {
	op := command(t, `{"applyOps":[
		{"op":"i","ns":"a.b","ui":`+someUUID+`,"o":{"_id":1}},
		{"op":"u","ns":"a.b","o":{"$v":2,"diff":{"u":{"x":1}}},"o2":{"_id":1},"b":true},
		{"op":"c","ns":"a.$cmd","o":{"create":"d"}},
		{"op":"n","ns":"","o":{}},
		{"op":"d","ns":"a.b","o":{"_id":1},"ts":"ignored here"}],
		"prepare":true,"count":5,"alwaysUpsert":false,"lsid":{},"$db":"admin"}`)
	a, err := op.ApplyOps()
	if err != nil {
		t.Fatal(err)
	}
	if !a.Prepare || a.PartialTxn || a.Count != 5 || !a.HasCount || a.AlwaysUpsert || a.Size() == 0 {
		t.Errorf("applyOps is %+v", a)
	}
	var kinds []string
	for inner, err := range a.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		if inner.OpTime != op.OpTime {
			t.Errorf("inner optime is %s", inner.OpTime)
		}
		kinds = append(kinds, inner.Kind.String()+inner.Command.String())
	}
	if diff := cmp.Diff([]string{"insert", "update", "commandcreate", "noop", "delete"}, kinds); diff != "" {
		t.Error(diff)
	}
	for _, err := range a.Ops() {
		if err != nil {
			t.Error(err)
		}
		break // breaking out early must be safe
	}
	if plain, err := func() (oplog.ApplyOps, error) { o := command(t, `{"applyOps":[]}`); return o.ApplyOps() }(); err != nil || !plain.AlwaysUpsert {
		t.Errorf("alwaysUpsert defaults to %t, error %v", plain.AlwaysUpsert, err)
	}
}

func TestImportIsRefusedWithAdvice(t *testing.T) {
	op := command(t, `{"importCollection":"db.c"}`)
	if err := op.ImportError(); !errors.Is(err, oplog.ErrUnsupported) || !strings.Contains(err.Error(), "copy the collection again") {
		t.Errorf("error is %v", err)
	}
}

func TestEveryCommandIsKnownByName(t *testing.T) {
	for c := oplog.CommandCreate; c <= oplog.CommandImportCollection; c++ {
		if got := command(t, `{"`+c.String()+`":"c"}`); got.Command != c {
			t.Errorf("%s parses as %s", c, got.Command)
		}
	}
	if s := oplog.Command(200).String(); s != "Command(200)" {
		t.Error(s)
	}
	if s := oplog.Kind(200).String(); s != "Kind(200)" {
		t.Error(s)
	}
}
