package command

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// logged returns the entries of a namespace, as {op, o}.
func (m *member) logged(t testing.TB, ns oplog.Namespace) []bson.D {
	t.Helper()
	var entries []bson.D
	err := m.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			if e.Raw.Lookup("ns").StringValue() != string(ns) {
				continue
			}
			var o bson.D
			if err := bson.Unmarshal(e.Raw.Lookup("o").Document(), &o); err != nil {
				return err
			}
			entries = append(entries, bson.D{{Key: "op", Value: e.Raw.Lookup("op").StringValue()}, {Key: "o", Value: o}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func extJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := bson.MarshalExtJSON(v, false, false)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newSeries makes a member with a time-series collection ts.m of granularity
// seconds.
func newSeries(t testing.TB, version string) *member {
	m := newMember(t, version)
	m.want(t, `{"create": "m", "timeseries": {"timeField": "t", "metaField": "k"}, "$db": "ts"}`, `{"ok": 1.0}`)
	return m
}

// measure inserts measurements given as the fields after the time in seconds.
func (m *member) measure(t testing.TB, docs ...string) bson.Raw {
	t.Helper()
	return m.run(t, `{"insert": "m", "documents": [`+strings.Join(docs, ", ")+`], "$db": "ts"}`)
}

func at(seconds int64, rest string) string {
	return fmt.Sprintf(`{"t": {"$date": {"$numberLong": "%d"}}%s}`, seconds*1000, rest)
}

// buckets returns how many measurements each bucket has, in order of opening.
func (m *member) buckets(t testing.TB) []int {
	t.Helper()
	counts := []int{}
	err := m.store.Read(func(r *storage.Reader) error {
		coll, ok := r.View(bson.Timestamp{}).Collection("ts.system.buckets.m")
		if !ok {
			t.Fatal("no buckets")
		}
		for rec := range coll.Natural(0) {
			elems, err := rec.Doc.Lookup("data", "t").Document().Elements()
			if err != nil {
				return err
			}
			counts = append(counts, len(elems))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

func TestTimeseriesNewBucket(t *testing.T) {
	t.Parallel()
	long := fmt.Sprintf(`, "v": "%0*d"`, 60_000, 0)
	for _, c := range []struct {
		name string
		docs []string
		want []int
	}{
		{"one bucket", []string{at(100, ""), at(101, ""), at(3659, "")}, []int{3}},
		{"metadata in any order", []string{at(100, `, "k": {"a": 1, "b": 2}`), at(101, `, "k": {"b": 2, "a": 1}`)}, []int{2}},
		{"other metadata", []string{at(100, `, "k": 1`), at(101, `, "k": 2`), at(102, "")}, []int{1, 1, 1}},
		{"too late", []string{at(100, ""), at(3660, "")}, []int{1, 1}},
		{"too early", []string{at(100, ""), at(60, ""), at(59, "")}, []int{1, 2}},
		{"too large", []string{at(100, long), at(101, long), at(102, long)}, []int{2, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newSeries(t, "5.0.7")
			for _, doc := range c.docs {
				if reply := m.measure(t, doc); reply.Lookup("n").AsInt64() != 1 {
					t.Fatalf("insert: %s", reply)
				}
			}
			if got := fmt.Sprint(m.buckets(t)); got != fmt.Sprint(c.want) {
				t.Errorf("buckets of %s, want %v", got, c.want)
			}
		})
	}
}

func TestTimeseriesMany(t *testing.T) {
	t.Parallel()
	m := newSeries(t, "5.0.7")
	docs := make([]string, 2300)
	for i := range docs {
		docs[i] = at(120, fmt.Sprintf(`, "n": %d`, i))
	}
	if reply := m.measure(t, docs...); reply.Lookup("n").AsInt64() != 2300 {
		t.Fatalf("insert: %s", reply)
	}
	if got := fmt.Sprint(m.buckets(t)); got != "[1000 1000 300]" {
		t.Errorf("buckets of %s", got)
	}
	if got := m.run(t, `{"count": "m", "$db": "ts"}`).Lookup("n").AsInt64(); got != 2300 {
		t.Errorf("%d measurements are read", got)
	}
}

// TestTimeseriesForeignChange drops and changes buckets behind the table's back.
func TestTimeseriesForeignChange(t *testing.T) {
	t.Parallel()
	m := newSeries(t, "5.0.7")
	m.measure(t, at(100, ""))
	m.want(t, `{"update": "system.buckets.m", "updates": [{"q": {}, "u": {"$set": {"meta": 5}}}], "bypassDocumentValidation": true, "$db": "ts"}`,
		`{"n": 1, "nModified": 1, "ok": 1.0}`)
	m.measure(t, at(101, ""))
	m.want(t, `{"delete": "system.buckets.m", "deletes": [{"q": {}, "limit": 0}], "$db": "ts"}`, `{"n": 2, "ok": 1.0}`)
	m.measure(t, at(102, ""))
	if got := fmt.Sprint(m.buckets(t)); got != "[1]" {
		t.Errorf("buckets of %s, want one with one", got)
	}
}

func TestTimeseriesFaults(t *testing.T) {
	t.Parallel()
	m := newSeries(t, "5.0.7")
	reply := m.run(t, `{"insert": "m", "ordered": false, "documents": [{"x": 1}, `+at(100, "")+`, {"t": 5}], "$db": "ts"}`)
	errs, err := reply.Lookup("writeErrors").Array().Values()
	if err != nil || len(errs) != 2 || reply.Lookup("n").AsInt64() != 1 {
		t.Fatalf("unordered: %s", reply)
	}
	if got := errs[1].Document().Lookup("index").AsInt64(); got != 2 {
		t.Errorf("second error at %d", got)
	}
	if got := errs[0].Document().Lookup("errmsg").StringValue(); got != "'t' must be present and contain a valid BSON UTC datetime value" {
		t.Error(got)
	}
	reply = m.run(t, `{"insert": "m", "documents": [`+at(100, "")+`, {"x": 1}, `+at(101, "")+`], "$db": "ts"}`)
	if reply.Lookup("n").AsInt64() != 1 {
		t.Errorf("ordered: %s", reply)
	}
	reply = m.run(t, `{"insert": "m", "documents": [`+at(100, "")+`], "lsid": {"id": {"$uuid": "00000000-0000-4000-8000-000000000001"}},
		"txnNumber": {"$numberLong": "1"}, "autocommit": false, "startTransaction": true, "$db": "ts"}`)
	if got := reply.Lookup("code").AsInt64(); got != 263 {
		t.Errorf("in a transaction: %s", reply)
	}
	reply = newSeries(t, "8.0.4").measure(t, at(100, ""))
	if got := reply.Lookup("code").AsInt64(); got != 238 {
		t.Errorf("8.0: %s", reply)
	}
}

// TestTimeseriesRetry repeats a retryable insert.
func TestTimeseriesRetry(t *testing.T) {
	t.Parallel()
	m := newSeries(t, "5.0.7")
	cmd := `{"insert": "m", "documents": [` + at(100, "") + `, ` + at(101, "") + `], "lsid": {"id": {"$uuid": "00000000-0000-4000-8000-000000000001"}},
		"txnNumber": {"$numberLong": "1"}, "$db": "ts"}`
	for range 2 {
		if reply := m.run(t, cmd); reply.Lookup("n").AsInt64() != 2 {
			t.Fatalf("insert: %s", reply)
		}
	}
	if got := fmt.Sprint(m.buckets(t)); got != "[2]" {
		t.Errorf("buckets of %s", got)
	}
}
