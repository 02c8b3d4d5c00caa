package corpus

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// TestCollationNotFollowed has _ids of text under a collation that cannot be
// followed, in the copy and in the log.
func TestCollationNotFollowed(t *testing.T) {
	catalog := catalogOf(listed("d.c", 1, `{"collation": {"locale": "fr", "strength": 1, "caseLevel": true}}`, idIndex))
	s := record(t, catalog, []bson.D{doc("a")}, []bson.D{doc("a"), doc("b")}, insert("b"))
	r := Verify(t.Context(), &s, Options{})
	if !r.OK() || r.Converged != 4 || len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], "_ids of d.c compared without its collation: caseLevel: ") {
		t.Errorf("got %s", &r)
	}
}

// TestFaultsSayWhere has entries that can be parsed, and neither grouped nor
// applied.
func TestFaultsSayWhere(t *testing.T) {
	catalog := catalogOf(listed("d.c", 1, "{}", idIndex))
	continued := entry("c", "admin.$cmd", 0, bson.D{{Key: "applyOps", Value: bson.A{}}},
		bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: 1}}}, bson.E{Key: "txnNumber", Value: int64(1)},
		bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1}}, {Key: "t", Value: int64(1)}}})
	s := record(t, catalog, nil, nil, insert(1), continued)
	second := int64(len(split(t, readFile(t, s.path(logFile)))[0]))
	f := fileErrorOf(t, Verify(t.Context(), &s, Options{}).Err)
	if f.Offset != second || f.OpTime != oplog.NewOpTime(1, 2, 1) || filepath.Base(f.File) != logFile {
		t.Errorf("got %v, want byte %d", f, second)
	}

	s = record(t, catalog, nil, nil, insert(1), command(1, bson.E{Key: "collMod", Value: "c"}, bson.E{Key: "novel", Value: 1}))
	r := Verify(t.Context(), &s, Options{})
	want := fmt.Sprintf("oplog.bson at byte %d: apply collMod of 1:2 t1 to d.$cmd: ", second)
	if len(r.Failures) != 2 || !strings.HasPrefix(r.Failures[0].Differences[0], want) || !strings.HasPrefix(r.Failures[1].Differences[0], want) {
		t.Errorf("got %s\nwant %s", &r, want)
	}
}

// TestBytesPerRound has updates of a large document.
func TestBytesPerRound(t *testing.T) {
	catalog := catalogOf(listed("d.c", 1, "{}", idIndex))
	large := bson.E{Key: "p", Value: strings.Repeat("x", 1<<20)}
	a := func(n int) bson.E { return bson.E{Key: "a", Value: n} }
	s := record(t, catalog, nil, []bson.D{doc(1, large, a(2))}, insert(1, large),
		change(bson.E{Key: "i", Value: bson.D{a(1)}}), change(bson.E{Key: "u", Value: bson.D{a(2)}}))
	p := proof{scenario: &s, options: Options{Rounds: 1}}
	if err := p.run(t.Context()); err != nil || !p.report.OK() {
		t.Fatalf("%v, %s", err, &p.report)
	}
	// Two updates, twice in a round, and the data compared.
	if p.bytesPerRound < 5<<20 || p.bytesPerRound > 5<<20+1000 {
		t.Errorf("got %d bytes a round, want 5 MiB", p.bytesPerRound)
	}
	if p.judge.bytes < 10<<20 {
		t.Errorf("%d bytes judged, want 4 MiB twice, and more", p.judge.bytes)
	}
}

// TestTrimming has capped collections without deletes.
func TestTrimming(t *testing.T) {
	options := []bson.E{{Key: "capped", Value: true}, {Key: "size", Value: 4096}, {Key: "max", Value: 2}}
	after := dataOf(catalogOf(listed("d.c", 1, `{"capped": true, "size": 4096, "max": 2}`, idIndex)), doc(3), doc(4))
	filled := []bson.D{create("c", 1, options...), insert(1), insert(2), insert(3), insert(4)}
	fcv := func(o bson.D) bson.D {
		return entry("u", "admin.system.version", 9, o, bson.E{Key: "o2", Value: doc("featureCompatibilityVersion")})
	}
	set := func(version string) bson.D {
		return bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "version", Value: version}}}}}}
	}
	meta := func(server, fcv string) map[string]any {
		return map[string]any{"serverVersion": server, "featureCompatibilityVersion": fcv}
	}
	tests := []struct {
		name string
		meta map[string]any
		log  []bson.D
		ok   bool
		note bool
	}{
		{"5.0", meta("5.0.7", ""), filled, false, false},
		{"4.4", meta("4.4.10", ""), filled, true, false},
		{"5.0 in the mode of 4.4", meta("5.0.7", "4.4"), filled, true, false},
		{"from 5.0 to 4.4", meta("5.0.7", ""), append([]bson.D{fcv(set("4.4"))}, filled...), true, true},
		{"from 5.0 to 4.4, replaced", meta("5.0.7", ""), append([]bson.D{fcv(doc("featureCompatibilityVersion", bson.E{Key: "version", Value: "4.4"}))}, filled...), true, true},
		{"from 5.0 to 6.0", meta("5.0.7", ""), append([]bson.D{fcv(set("6.0"))}, filled...), false, false},
		{"from 4.4 to 5.0", meta("5.0.7", "4.4"), append(slices.Clip(filled), fcv(set("5.0"))), true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := (&recording{meta: tt.meta, after: after, log: tt.log}).write(t)
			r := Verify(t.Context(), &s, Options{})
			if r.Err != nil || r.OK() != tt.ok || (len(r.Notes) > 0) != tt.note {
				t.Errorf("got %s", &r)
			}
		})
	}
	// No trimming makes documents up.
	invented := dataOf(after.catalog, doc(77), doc(4))
	s := (&recording{meta: meta("5.0.7", ""), after: invented, log: append([]bson.D{fcv(set("4.4"))}, filled...)}).write(t)
	if r := Verify(t.Context(), &s, Options{}); r.OK() || !strings.Contains(r.String(), "77") {
		t.Errorf("got %s", &r)
	}
	// All else is compared.
	s = (&recording{
		meta:  meta("5.0.7", ""),
		after: &data{after.catalog[:len(after.catalog)-1] + "," + listed("d.d", 2, "{}", idIndex) + "]", map[string][]bson.D{"d.c": {doc(4)}, "d.d": {doc(1)}}},
		log:   append([]bson.D{fcv(set("4.4")), create("d", 2)}, filled...),
	}).write(t)
	if r := Verify(t.Context(), &s, Options{}); r.OK() || len(r.Failures[0].Differences) != 1 {
		t.Errorf("got %s", &r)
	}
}

// TestUnsure has logs that need not converge, for what there was before them.
func TestUnsure(t *testing.T) {
	capped := catalogOf(listed("d.c", 1, `{"capped": true, "size": 4096}`, idIndex))
	s := record(t, capped, []bson.D{doc(5), doc(6)}, []bson.D{doc(6), doc(5), doc(7)}, entry("d", "d.c", 1, doc(5)), insert(5), insert(7))
	if r := Verify(t.Context(), &s, Options{}); !r.OK() || r.NotReapplied != "a capped collection gets an _id twice" {
		t.Errorf("got %s", &r)
	}

	const why = "a name is that of a view and of a collection in turn"
	view := doc("d.v", bson.E{Key: "viewOn", Value: "x"})
	rename := command(1, bson.E{Key: "renameCollection", Value: "d.c"}, bson.E{Key: "to", Value: "d.v"})
	catalog := catalogOf(listed("d.c", 1, "{}", idIndex), listed("d.system.views", 2, "{}", idIndex))
	for _, tt := range []struct {
		name  string
		views []bson.D // before
		log   []bson.D
		want  string
	}{
		{"view in the log, create", nil, []bson.D{entry("i", "d.system.views", 2, view), create("v", 3)}, why},
		{"view in the log, rename", nil, []bson.D{entry("i", "d.system.views", 2, view), rename}, why},
		{"view before the log", []bson.D{view}, []bson.D{rename}, why},
		{"no view", nil, []bson.D{rename}, ""},
		{"another name", []bson.D{view}, []bson.D{create("w", 3)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := &data{catalog, map[string][]bson.D{"d.c": nil, "d.system.views": tt.views}}
			s := (&recording{before: before, after: before, log: tt.log}).write(t)
			p := proof{scenario: &s}
			if err := p.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := p.rules().unsure; got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestStrangeNames has names that are not to be printed as they are.
func TestStrangeNames(t *testing.T) {
	const ns = "d.a\\b\nok   c\x1b[2J"
	catalog := catalogOf(fmt.Sprintf(`{"ns": %s, "type": "collection", "options": {}, "indexes": []}`, jsonText(t, ns)))
	for _, wrong := range []bool{false, true} {
		after := &data{catalog, map[string][]bson.D{ns: {doc(1), doc("x\u2028\xff\n")}}}
		if wrong {
			after.docs[ns] = nil
		}
		r := recording{meta: map[string]any{"name": "a\nb"}, before: &data{catalog, map[string][]bson.D{ns: nil}}, after: after, log: []bson.D{
			entry("i", ns, 0, doc(1)), entry("i", ns, 0, doc("x\u2028\xff\n")),
		}}
		s := r.write(t)
		report := Verify(t.Context(), &s, Options{})
		if report.OK() == wrong || report.Name != `a\nb` {
			t.Errorf("got %s", &report)
		}
		text := report.String()
		if lines := strings.Count(text, "\n"); wrong && lines != 4 || !wrong && lines != 0 {
			t.Errorf("got %d line feeds in %q", lines, text)
		}
		if strings.ContainsAny(text, "\x1b\u2028\r") || strings.ToValidUTF8(text, "") != text {
			t.Errorf("got what cannot be printed: %q", text)
		}
		if wrong && !strings.Contains(text, `steady: d.a\b\nok   c\x1b[2J: _id`) {
			t.Errorf("got %s", text)
		}
	}
	err := &FileError{File: "a\nb\xff", Offset: -1, Err: ErrCorrupt}
	if got, want := err.Error(), "read a\\nb\uFFFD: corrupt"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func jsonText(t *testing.T, text string) string {
	t.Helper()
	quoted, err := bson.MarshalExtJSON(bson.D{{Key: "x", Value: text}}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSuffix(bytes.TrimPrefix(quoted, []byte(`{"x":`)), []byte("}")))
}

// TestTwice has documents of one _id, which are wrong in a result and may be in a
// copy, and indexes of one name, which are wrong in both.
func TestTwice(t *testing.T) {
	plain := catalogOf(listed("d.c", 1, "{}", idIndex))
	s := record(t, plain, []bson.D{doc(1), doc(2), doc(1.0)}, []bson.D{doc(1), doc(2)}, insert(1), insert(2))
	if r := Verify(t.Context(), &s, Options{}); r.Err != nil {
		t.Errorf("in a copy: got %s", &r)
	}
	s = record(t, plain, nil, []bson.D{doc(1), doc(2), doc(1.0)}, insert(1), insert(2))
	err := Verify(t.Context(), &s, Options{}).Err
	wantFileError(t, err, ErrMismatch, "d.c.bson")
	if f := fileErrorOf(t, err); f.Offset != int64(2*len(split(t, readFile(t, filepath.Join(s.path("after"), "d.c.bson")))[0])) ||
		!strings.Contains(err.Error(), `the _id {"$numberDouble":"1.0"}`) {
		t.Errorf("got %v", err)
	}
	x := `{"v": 2, "key": {"a": 1}, "name": "x"}`
	s = record(t, catalogOf(listed("d.c", 1, "{}", x, idIndex, x)), nil, nil, insert(1))
	err = Verify(t.Context(), &s, Options{}).Err
	wantFileError(t, err, ErrMismatch, catalogFile)
	if !strings.Contains(err.Error(), `d.c has two indexes "x"`) {
		t.Errorf("got %v", err)
	}
	s = (&recording{
		before: dataOf(catalogOf(listed("d.c", 1, "{}", x, idIndex, x))),
		after:  dataOf(catalogOf(listed("d.c", 1, "{}", x, idIndex)), doc(1)),
		log:    []bson.D{insert(1)},
	}).write(t)
	wantFileError(t, Verify(t.Context(), &s, Options{}).Err, ErrMismatch, catalogFile)
}

// TestCatalogFault says which item it is, and where.
func TestCatalogFault(t *testing.T) {
	good := listed("d.c", 1, "{}", idIndex)
	for _, bad := range []string{`{"ns": "d.x", "type": "novel", "options": {}}`, `{"ns": "d.x", "type": "view", "options": {"a": {"$date": 1}}}`} {
		catalog := "[" + good + " ,\n  " + bad + "]"
		s := record(t, catalog, nil, nil, insert(1))
		f := fileErrorOf(t, Verify(t.Context(), &s, Options{}).Err)
		if want := int64(strings.Index(catalog, bad)); f.Offset != want || !strings.Contains(f.Error(), ": d.x: ") {
			t.Errorf("got %v, want byte %d", f, want)
		}
	}
}
