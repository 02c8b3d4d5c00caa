package oplog_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
)

func TestParseKinds(t *testing.T) {
	for _, tc := range []struct {
		name, fields string
		kind         oplog.Kind
		ns           oplog.Namespace
		id           any
	}{
		{"insert", `"op":"i","ns":"a.b","ui":` + someUUID + `,"o":{"x":1,"_id":7}`, oplog.KindInsert, "a.b", int32(7)},
		{"update", `"op":"u","ns":"a.b.c","o":{"$v":2,"diff":{"d":{"x":false}}},"o2":{"k":1,"_id":"k"}`, oplog.KindUpdate, "a.b.c", "k"},
		{"delete", `"op":"d","ns":"a.b","o":{"_id":{"n":1}}`, oplog.KindDelete, "a.b", bson.D{{Key: "n", Value: int32(1)}}},
		{"noop", `"op":"n","ns":"","o":{"msg":"periodic noop"}`, oplog.KindNoop, "", nil},
		{"noop in a collection", `"op":"n","ns":"a.b","o":{}`, oplog.KindNoop, "a.b", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := oplog.ParseEntry(entry(t, tc.fields))
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind != tc.kind || e.NS != tc.ns || e.Command != 0 {
				t.Errorf("kind %s, ns %q, command %q", e.Kind, e.NS, e.Command)
			}
			want := bson.RawValue{}
			if tc.id != nil {
				want = bsongen.Of(t, tc.id)
			}
			if !e.ID.Equal(want) {
				t.Errorf("_id is %s of type %s, want %s", e.ID, e.ID.Type, want)
			}
			if want := oplog.NewOpTime(1700000000, 3, 5); e.OpTime != want {
				t.Errorf("optime is %s, want %s", e.OpTime, want)
			}
			if want := time.Date(2026, 11, 20, 9, 44, 39, 555e6, time.UTC); !e.WallTime().Equal(want) {
				t.Errorf("wall clock is %s, want %s", e.WallTime(), want)
			}
		})
	}
}

func TestParseKeepsSessionFields(t *testing.T) {
	e, err := oplog.ParseEntry(entry(t, `"op":"u","ns":"a.b","ui":`+someUUID+`,"o":{"_id":1},"o2":{"_id":1},"b":true,"fromMigrate":true,
		"lsid":{"id":`+someUUID+`},"txnNumber":{"$numberLong":"9"},"stmtId":4,
		"prevOpTime":{"ts":{"$timestamp":{"t":2,"i":1}},"t":{"$numberLong":"4"}},
		"preImageOpTime":{"ts":{"$timestamp":{"t":2,"i":1}},"t":{"$numberLong":"4"}},"needsRetryImage":"preImage"`))
	if err != nil {
		t.Fatal(err)
	}
	s := e.Session()
	switch {
	case !e.Upsert || !e.FromMigrate:
		t.Error("b or fromMigrate is lost")
	case e.UI.String() != "00010203-0405-0607-0809-0a0b0c0d0e0f":
		t.Errorf("UUID is %s", e.UI)
	case !e.HasSession() || s.LSID == nil || !s.HasTxnNumber || s.TxnNumber != 9 || s.StmtID.AsInt64() != 4:
		t.Errorf("session is %s %d %s", s.LSID, s.TxnNumber, s.StmtID)
	case !s.HasPrevOpTime || s.PrevOpTime != oplog.NewOpTime(2, 1, 4):
		t.Errorf("previous optime is %s", s.PrevOpTime)
	case e.InTransaction():
		t.Error("a retryable write passes for a part of a transaction")
	}
}

func TestParseAcceptsOldAndExtraFields(t *testing.T) {
	e, err := oplog.ParseEntry(bsongen.FromJSON(t, `{"ts":{"$timestamp":{"t":1,"i":1}},"h":{"$numberLong":"123"},"op":"i","ns":"a.b",`+
		`"o":{"_id":1},"`+`wall":{"$date":"2026-11-20T09:44:39Z"},"somethingNew":{"a":1},"destinedRecipient":"s1"}`))
	if err != nil {
		t.Fatal(err)
	}
	if e.OpTime.Term != oplog.UninitializedTerm {
		t.Errorf("without t the term is %d, want %d", e.OpTime.Term, oplog.UninitializedTerm)
	}
}

// Unusual entries that servers write, and that must be accepted.
func TestParseTakesWhatServersWrite(t *testing.T) {
	for name, fields := range map[string]string{
		"a batch of a dbCheck, at its collection (dbcheck.cpp)": `"op":"c","ns":"db.c","ui":` + someUUID +
			`,"o":{"dbCheck":"db.c","type":"batch","md5":"d41d8cd98f00b204e9800998ecf8427e","minKey":{"$minKey":1},"maxKey":{"$maxKey":1},"readTimestamp":{"$timestamp":{"t":1,"i":1}}}`,
		"the start of a dbCheck (dbcheck.cpp)":                          `"op":"c","ns":"admin.$cmd","o":{"dbCheck":"admin.$cmd","type":"start"}`,
		"several statements in one entry (zeroOneManyStmtId)":           `"op":"i","ns":"a.b","o":{"_id":1},"stmtId":[1,2]`,
		"an update that replaces, _id not in front (measured on 5.0.7)": `"op":"u","ns":"a.b","o":{"new":1,"_id":1},"o2":{"_id":1}`,
		"the key with shard key fields":                                 `"op":"u","ns":"a.b","o":{"_id":1},"o2":{"k":1,"_id":1}`,
		"an image of a retryable write":                                 `"op":"n","ns":"a.b","o":{"_id":1},"o2":{"_id":1},"ui":` + someUUID,
		"a record id (recordIdsReplicated, 8.0)":                        `"op":"i","ns":"a.b","o":{"_id":1},"rid":{"$numberLong":"7"}`,
		"checkExistenceForDiffInsert (7.0)":                             `"op":"u","ns":"a.b","o":{"$v":2,"diff":{"i":{"x":1}}},"o2":{"_id":1},"checkExistenceForDiffInsert":true`,
		"a group of retryable inserts (8.0)":                            `"op":"c","ns":"admin.$cmd","o":{"applyOps":[]},"multiOpType":1`,
	} {
		if _, err := oplog.ParseEntry(entry(t, fields)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const ok = `"op":"i","ns":"a.b","o":{"_id":1}`
	const cmd = `"op":"c","ns":"a.$cmd","o":`
	frame := func(fields string) string { return "{" + fields + someFrame + "}" }
	for _, tc := range []struct {
		name, entry, field string
		want               error
	}{
		{"no op", frame(`"ns":"a.b","o":{"_id":1}`), "op", oplog.ErrMissingField},
		{"no ns", frame(`"op":"i","o":{"_id":1}`), "ns", oplog.ErrMissingField},
		{"no o", frame(`"op":"i","ns":"a.b"`), "o", oplog.ErrMissingField},
		{"no o2", frame(`"op":"u","ns":"a.b","o":{"_id":1}`), "o2", oplog.ErrMissingField},
		{"no _id in an insert", frame(`"op":"i","ns":"a.b","o":{"x":1}`), "o._id", oplog.ErrMissingField},
		{"no _id in a delete", frame(`"op":"d","ns":"a.b","o":{}`), "o._id", oplog.ErrMissingField},
		{"no _id in an update", frame(`"op":"u","ns":"a.b","o":{"_id":1},"o2":{"k":1}`), "o2._id", oplog.ErrMissingField},
		{"no ts", `{` + ok + `,"t":{"$numberLong":"1"},` + someWall + `}`, "ts", oplog.ErrMissingField},
		{"no wall", `{` + ok + `,` + someTS + `}`, "wall", oplog.ErrMissingField},
		{"null ts", `{` + ok + `,"ts":{"$timestamp":{"t":0,"i":0}},` + someWall + `}`, "ts", oplog.ErrBadField},
		{"version 1", `{` + ok + `,"v":1,` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"version 0", `{` + ok + `,"v":0,` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"version 3", `{` + ok + `,"v":3,` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"version 2.5", `{` + ok + `,"v":2.5,` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"version that is 2 in its low half", `{` + ok + `,"v":{"$numberLong":"8589934594"},` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"version of a wrong type", `{` + ok + `,"v":"2",` + someTS + `,` + someWall + `}`, "v", oplog.ErrVersion},
		{"unknown op", frame(`"op":"xi","ns":"a.b","o":{"_id":1}`), "op", oplog.ErrUnknownOp},
		{"unknown command", frame(cmd + `{"convertToCapped":"x"}`), "o", oplog.ErrUnknownCommand},
		{"sharding's command", frame(cmd + `{"modifyCollectionShardingIndexCatalog":"x"}`), "o", oplog.ErrUnknownCommand},
		{"nameless command", frame(cmd + `{}`), "o", oplog.ErrBadField},
		{"dbCheck of nothing", frame(`"op":"c","ns":"a","o":{"dbCheck":"a"}`), "ns", oplog.ErrBadField},
		{"command elsewhere", frame(`"op":"c","ns":"a.b","o":{"drop":"b"}`), "ns", oplog.ErrBadField},
		{"insert without a collection", frame(`"op":"i","ns":"a","o":{"_id":1}`), "ns", oplog.ErrBadField},
		{"insert where commands are logged", frame(`"op":"i","ns":"a.$cmd","o":{"_id":1}`), "ns", oplog.ErrBadField},
		{"insert into nothing", frame(`"op":"i","ns":"a.","o":{"_id":1}`), "ns", oplog.ErrBadField},
		{"op of a wrong type", frame(`"op":1,"ns":"a.b","o":{"_id":1}`), "op", oplog.ErrBadField},
		{"ns of a wrong type", frame(`"op":"i","ns":1,"o":{"_id":1}`), "ns", oplog.ErrBadField},
		{"o of a wrong type", frame(`"op":"i","ns":"a.b","o":[1]`), "o", oplog.ErrBadField},
		{"o2 of a wrong type", frame(ok + `,"o2":1`), "o2", oplog.ErrBadField},
		{"ui of a wrong type", frame(ok + `,"ui":"x"`), "ui", oplog.ErrBadField},
		{"ui of a wrong subtype", frame(ok + `,"ui":{"$binary":{"base64":"AAECAwQFBgcICQoLDA0ODw==","subType":"03"}}`), "ui", oplog.ErrBadField},
		{"ui too short", frame(ok + `,"ui":{"$binary":{"base64":"AAEC","subType":"04"}}`), "ui", oplog.ErrBadField},
		{"b of a wrong type", frame(ok + `,"b":1`), "b", oplog.ErrBadField},
		{"fromMigrate of a wrong type", frame(ok + `,"fromMigrate":1`), "fromMigrate", oplog.ErrBadField},
		{"ts of a wrong type", `{` + ok + `,"ts":1,` + someWall + `}`, "ts", oplog.ErrBadField},
		{"t of a wrong type", `{` + ok + `,"ts":{"$timestamp":{"t":1700000000,"i":3}},"t":"5",` + someWall + `}`, "t", oplog.ErrBadField},
		{"wall of a wrong type", `{` + ok + `,` + someTS + `,"wall":1}`, "wall", oplog.ErrBadField},
		{"lsid of a wrong type", frame(ok + `,"lsid":1`), "lsid", oplog.ErrBadField},
		{"txnNumber of a wrong type", frame(ok + `,"txnNumber":"1"`), "txnNumber", oplog.ErrBadField},
		{"stmtId of a wrong type", frame(ok + `,"stmtId":"1"`), "stmtId", oplog.ErrBadField},
		{"prevOpTime of a wrong type", frame(ok + `,"prevOpTime":1`), "prevOpTime", oplog.ErrBadField},
		{"prevOpTime without ts", frame(ok + `,"prevOpTime":{"t":{"$numberLong":"1"}}`), "prevOpTime", oplog.ErrBadField},
		{"prevOpTime with a bad ts", frame(ok + `,"prevOpTime":{"ts":1}`), "prevOpTime", oplog.ErrBadField},
		{"prevOpTime with a bad t", frame(ok + `,"prevOpTime":{"ts":{"$timestamp":{"t":0,"i":0}},"t":"x"}`), "prevOpTime", oplog.ErrBadField},
		{"multiOpType of a wrong type", frame(ok + `,"multiOpType":"x"`), "multiOpType", oplog.ErrBadField},
		{"unknown multiOpType", frame(ok + `,"multiOpType":2`), "multiOpType", oplog.ErrUnsupported},
		{"negative multiOpType", frame(ok + `,"multiOpType":-1`), "multiOpType", oplog.ErrUnsupported},
		{"a tenant", frame(ok + `,"tid":{"$oid":"000000000000000000000000"}`), "tid", oplog.ErrUnsupported},
		{"o twice", frame(ok + `,"o":{"_id":2}`), "o", oplog.ErrBadField},
		{"ts twice", frame(ok + `,"ts":{"$timestamp":{"t":1700000000,"i":3}}`), "ts", oplog.ErrBadField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := oplog.ParseEntry(bsongen.FromJSON(t, tc.entry))
			fault, ok := errors.AsType[*oplog.EntryError](err)
			if !ok || !errors.Is(err, tc.want) {
				t.Fatalf("error is %v, want %v", err, tc.want)
			}
			if fault.Field != tc.field {
				t.Errorf("error names field %q, want %q", fault.Field, tc.field)
			}
			named := !strings.Contains(tc.name, "ts") || strings.HasSuffix(tc.name, "twice") || strings.Contains(tc.name, "prev")
			if named && fault.OpTime.TS != (bson.Timestamp{T: 1700000000, I: 3}) {
				t.Errorf("error names optime %s: %v", fault.OpTime, err)
			}
		})
	}
}

// Entries are parsed repeatedly into the same memory.
func TestParseForgetsThePreviousEntry(t *testing.T) {
	rich := entry(t, `"op":"c","ns":"a.$cmd","ui":`+someUUID+`,"o":{"drop":"x"},"o2":{"numRecords":1},"b":true,"fromMigrate":true,
		"lsid":{"id":1},"txnNumber":{"$numberLong":"9"},"stmtId":[1,2],"multiOpType":1,
		"prevOpTime":{"ts":{"$timestamp":{"t":2,"i":1}}}`)
	poor := bsongen.FromJSON(t, `{"op":"n","ns":"","o":{},"ts":{"$timestamp":{"t":1,"i":1}},`+someWall+`}`)
	want, err := oplog.ParseEntry(poor)
	if err != nil {
		t.Fatal(err)
	}
	var e oplog.Entry
	if err := e.Parse(rich); err != nil {
		t.Fatal(err)
	}
	if s := e.Session(); s.StmtID.Type != bson.TypeArray || s.PrevOpTime != oplog.NewOpTime(2, 1, oplog.UninitializedTerm) || s.MultiOpType != 1 {
		t.Errorf("stmtId %s, previous optime %s, multiOpType %d", s.StmtID, s.PrevOpTime, s.MultiOpType)
	}
	if err := e.Parse(poor); err != nil {
		t.Fatal(err)
	}
	if s := e.Session(); s.LSID != nil || s.HasTxnNumber || s.HasPrevOpTime || e.HasSession() || e.HasTxnNumber() {
		t.Errorf("the session of an entry without one is %+v", s)
	}
	if diff := cmp.Diff(want, e, cmp.AllowUnexported(oplog.Entry{}), cmp.Comparer(func(a, b bson.RawValue) bool { return a.Equal(b) })); diff != "" {
		t.Errorf("-fresh +used\n%s", diff)
	}
}

func TestErrorsAreShort(t *testing.T) {
	deep := `1`
	for range 100 {
		deep = `{"a":` + deep + `}`
	}
	long := strings.Repeat("x", 1<<16)
	for name, fields := range map[string]string{
		"version": `"op":"i","ns":"a.b","o":{"_id":1},"v":` + deep,
		"op":      `"op":"` + long + `","ns":"a.b","o":{}`,
		"command": `"op":"c","ns":"a.$cmd","o":{"` + long + `":1}`,
		"ns":      `"op":"i","ns":"` + long + `","o":{"_id":1}`,
		"value":   `"op":"i","ns":"a.b","o":"` + long + `"`,
	} {
		_, err := oplog.ParseEntry(bsongen.FromJSON(t, `{`+fields+`,`+someTS+`,`+someWall+`}`))
		if err == nil || len(err.Error()) > 300 {
			t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
		}
	}
}

func TestErrorsReadWell(t *testing.T) {
	for _, tc := range []struct{ entry, want string }{
		{
			`{"op":"x","ns":"a.b","o":{},` + someTS + `,` + someWall + `}`,
			`oplog entry 1700000000:3 t5: op: unknown operation "x"`,
		},
		{
			`{"op":"i","ns":"a.b","o":"text",` + someTS + `,` + someWall + `}`,
			`oplog entry 1700000000:3 t5: o: not valid: it is "text", of type string`,
		},
		{
			`{"op":"i","ns":"a.b","o":{"_id":1},` + someWall + `}`,
			`oplog entry without a readable optime: ts: missing`,
		},
		{
			`{"op":"i","ns":"a.b","o":[1],` + someTS + `,` + someWall + `}`,
			`oplog entry 1700000000:3 t5: o: not valid: it is of type array`,
		},
	} {
		if _, err := oplog.ParseEntry(bsongen.FromJSON(t, tc.entry)); err == nil || err.Error() != tc.want {
			t.Errorf("error is\n%v, want\n%s", err, tc.want)
		}
	}
}

func TestCorruptEntryNamesOffsetAndOpTime(t *testing.T) {
	raw := bsongen.FromJSON(t, `{`+someTS+`,"op":"i","ns":"a.b","o":{"_id":1},`+someWall+`}`)
	cut := append(bson.Raw{}, raw...)
	at := strings.Index(string(cut), "\x02ns\x00")
	cut[at] = 0x55
	_, err := oplog.ParseEntry(cut)
	if !errors.Is(err, oplog.ErrCorrupt) || !strings.Contains(err.Error(), "1700000000:3 t5") || !strings.Contains(err.Error(), "type 0x55") {
		t.Errorf("error is %v", err)
	}
	if _, err := oplog.ParseEntry(raw[:len(raw)-1]); !errors.Is(err, oplog.ErrCorrupt) {
		t.Errorf("a cut entry gives %v", err)
	}
	inner := append(bson.Raw{}, raw...)
	inner[strings.Index(string(inner), "\x10_id\x00")] = 0x55
	if _, err := oplog.ParseEntry(inner); !errors.Is(err, oplog.ErrCorrupt) || !strings.Contains(err.Error(), " o: ") {
		t.Errorf("a corrupt key gives %v", err)
	}
	deep := bsongen.FromJSON(t, `{`+someTS+`,"op":"i","ns":"a.b","o":{"_id":1,"x":{"y":1}},`+someWall+`}`)
	deep[strings.Index(string(deep), "\x10y\x00")] = 0x55
	if _, err := oplog.ParseEntry(deep); err != nil {
		t.Errorf("Parse looks into the payload: %v", err)
	}
}

// TestHasSession: an entry belongs to a session's transaction or retryable write only with both.
func TestHasSession(t *testing.T) {
	const op, lsid, number = `"op":"n","ns":"","o":{}`, `,"lsid":{"id":1}`, `,"txnNumber":{"$numberLong":"0"}`
	for fields, want := range map[string]bool{op: false, op + lsid: false, op + number: false, op + lsid + number: true} {
		e, err := oplog.ParseEntry(entry(t, fields))
		if err != nil {
			t.Fatal(err)
		}
		if e.HasSession() != want {
			t.Errorf("%s: %t, want %t", fields, e.HasSession(), want)
		}
	}
}

func TestInTransaction(t *testing.T) {
	const null = `"prevOpTime":{"ts":{"$timestamp":{"t":0,"i":0}},"t":{"$numberLong":"-1"}}`
	for _, tc := range []struct {
		fields string
		want   bool
	}{
		{`"op":"c","ns":"admin.$cmd","o":{"applyOps":[]},` + null, true},
		{`"op":"c","ns":"admin.$cmd","o":{"applyOps":[]}`, false},
		{`"op":"c","ns":"admin.$cmd","o":{"applyOps":[]},"multiOpType":1,` + null, false},
		{`"op":"c","ns":"admin.$cmd","o":{"applyOps":[]},"multiOpType":0,` + null, true},
		{`"op":"c","ns":"admin.$cmd","o":{"abortTransaction":1},` + null, true},
		{`"op":"c","ns":"admin.$cmd","o":{"commitTransaction":1},` + null, true},
		{`"op":"c","ns":"a.$cmd","o":{"drop":"x"},` + null, false},
	} {
		e, err := oplog.ParseEntry(entry(t, tc.fields))
		if err != nil {
			t.Fatal(err)
		}
		if e.InTransaction() != tc.want {
			t.Errorf("%s: %t, want %t", tc.fields, e.InTransaction(), tc.want)
		}
	}
}

// crudEntry returns a CRUD entry of 300 bytes, as logged for a retryable write.
func crudEntry(t testing.TB) bson.Raw {
	t.Helper()
	return entry(t, `"lsid":{"id":`+someUUID+`,"uid":{"$binary":{"base64":"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=","subType":"00"}}},
		"txnNumber":{"$numberLong":"269"},"op":"i","ns":"inventory.products","ui":`+someUUID+`,
		"o":{"_id":{"$oid":"6553ede0a91590fc00090ae6"},"name":"a name","n":1},"stmtId":0,
		"prevOpTime":{"ts":{"$timestamp":{"t":0,"i":0}},"t":{"$numberLong":"-1"}}`)
}

func TestParseAllocatesNothing(t *testing.T) {
	raw := crudEntry(t)
	if len(raw) < 290 || len(raw) > 330 {
		t.Fatalf("the entry has %d bytes, want about 300", len(raw))
	}
	var e oplog.Entry
	if n := testing.AllocsPerRun(200, func() {
		if err := e.Parse(raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("parsing makes %v allocations, want none: is something copied out of the entry?", n)
	}
	if race.Enabled {
		return // the race detector's build hashes differently
	}
	if n := testing.AllocsPerRun(200, func() {
		if oplog.HashID(oplog.HashNamespace(e.NS), e.ID) == 0 {
			t.Fatal("hash is 0")
		}
	}); n != 0 {
		t.Errorf("hashing makes %v allocations, want none", n)
	}
	nested := bsongen.Of(t, bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: strings.Repeat("x", 200)}})
	if n := testing.AllocsPerRun(200, func() { oplog.HashID(1, nested) }); n >= 1 {
		t.Errorf("hashing a document makes %v allocations, want none", n)
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(crudEntry(f)))
	f.Add([]byte(entry(f, `"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"i","ns":"a.b","o":{"_id":1}}],"count":1,"prepare":true}`)))
	f.Add([]byte(entry(f, `"op":"c","ns":"a.$cmd","o":{"renameCollection":"a.b","to":"a.c","dropTarget":`+someUUID+`}`)))
	f.Add([]byte(entry(f, `"op":"c","ns":"a.$cmd","o":{"commitIndexBuild":"b","indexBuildUUID":`+someUUID+`,"indexes":[{"v":2}]}`)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			if _, ok := errors.AsType[*oplog.EntryError](err); !ok {
				t.Errorf("error is %T", err)
			}
			return
		}
		if e.OpTime.IsNull() || e.Kind == 0 || e.Kind == oplog.KindCommand && e.Command == 0 {
			t.Errorf("accepted without optime, kind or command: %v", e.Raw)
		}
		if e.Kind.IsCRUD() {
			oplog.HashID(1, e.ID)
		}
		if _, err := readPayload(&e.Op); err != nil {
			if _, ok := errors.AsType[*oplog.EntryError](err); !ok {
				t.Errorf("error is %T", err)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	raw := crudEntry(b)
	b.ReportAllocs()
	b.SetBytes(int64(len(raw)))
	var e oplog.Entry
	for b.Loop() {
		if err := e.Parse(raw); err != nil {
			b.Fatal(err)
		}
	}
}
