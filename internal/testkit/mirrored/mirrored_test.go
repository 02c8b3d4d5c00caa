package mirrored_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const recordings = "../../../testdata/corpus"

func open(t *testing.T, dir string) *corpus.Scenario {
	t.Helper()
	all, err := corpus.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &all[0]
}

func start(t *testing.T, name string) *mirrored.Source {
	t.Helper()
	src, err := mirrored.Start(t.Context(), open(t, filepath.Join(recordings, name)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// TestSource: what a set serves that plays a recording is its log, to the byte,
// and in the end its data.
func TestSource(t *testing.T) {
	all, err := corpus.Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		s := &all[i]
		t.Run(s.Name, func(t *testing.T) {
			src := start(t, filepath.Base(s.Dir))
			for n := 1; src.Entries() > 0; n *= 3 {
				if err := src.Play(n); err != nil {
					t.Fatal(err)
				}
			}
			got := src.Member(0).Oplog(bson.Timestamp{})[1:] // after the entry before the recorded ones
			n := 0
			for e, err := range s.Oplog() {
				if err != nil {
					t.Fatal(err)
				}
				if n >= len(got) || !bytes.Equal(got[n], e.Raw) {
					t.Fatalf("entry %d, %s, is not served", n, e.OpTime)
				}
				n++
			}
			if n != len(got) {
				t.Errorf("%d entries are served, want %d", len(got), n)
			}
			conn, err := mirrored.Connect(t.Context(), src.URI())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			r, err := compare.Compare(t.Context(), compare.Recorded(src.After), compare.Cluster(conn), compare.Options{})
			if err != nil || !r.Equal() {
				t.Errorf("%v %s", err, &r)
			}
		})
	}
}

// TestFill: a copy made by commands equals its source.
func TestFill(t *testing.T) {
	for _, name := range []string{"ddl", "random", "timeseries", "types"} {
		t.Run(name, func(t *testing.T) {
			after, err := open(t, filepath.Join(recordings, name)).After()
			if err != nil {
				t.Fatal(err)
			}
			after.Collections = append(after.Collections, many(t))
			set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1, Moods: mongosim.GentleMoods("what fills it sends each command once")})
			conn, err := mirrored.Connect(t.Context(), set.URI())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := mirrored.Fill(t.Context(), conn, after); err != nil {
				t.Fatal(err)
			}
			r, err := compare.Compare(t.Context(), compare.Recorded(after), compare.Cluster(conn), compare.Options{})
			if err != nil || !r.Equal() {
				t.Errorf("%v %s", err, &r)
			}
		})
	}
}

// many is a collection that takes several commands, by count and by size.
func many(t *testing.T) memstore.CollectionState {
	t.Helper()
	c := memstore.CollectionState{NS: "zz.many", Type: memstore.TypeCollection, Options: bson.Raw{5, 0, 0, 0, 0}}
	for id := range int32(2510) {
		doc, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "s", Value: strings.Repeat("x", int(id/2500)*1_500_000)}})
		if err != nil {
			t.Fatal(err)
		}
		c.Documents = append(c.Documents, doc)
	}
	id, err := bson.Marshal(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "name", Value: "_id_"}})
	if err != nil {
		t.Fatal(err)
	}
	c.Indexes = []bson.Raw{id}
	return c
}

// TestWrongTargetsAreTold: the proof fails where the target is not as recorded.
func TestWrongTargetsAreTold(t *testing.T) {
	src := start(t, "unique")
	if err := src.Play(src.Entries()); err != nil {
		t.Fatal(err)
	}
	v := mirrored.Variant{Writers: 16, BatchOps: 7, Unique: ddl.Relaxed}
	right := src.After.Collections
	for what, change := range map[string]func(c *memstore.CollectionState){
		"_id":   func(c *memstore.CollectionState) { c.Documents = c.Documents[1:] },
		"index": func(c *memstore.CollectionState) { c.Indexes = c.Indexes[:1] },
	} {
		src.After.Collections = slices.Clone(right)
		change(&src.After.Collections[0])
		r, err := src.Mirror(t.Context(), v, mirrored.RunOptions{})
		if err != nil || len(r.Differences) != 1 || !strings.HasPrefix(r.Differences[0].What, what) {
			t.Errorf("%s: %v %s", what, err, &r)
		}
	}
	src.After.Collections = right
	if r, err := src.Mirror(t.Context(), v, mirrored.RunOptions{}); err != nil || !r.Equal() {
		t.Errorf("%v %s", err, &r)
	}
}

// TestARunThatDoesNotEnd: entries that never come are no reason to wait forever.
func TestARunThatDoesNotEnd(t *testing.T) {
	src := start(t, "types")
	if err := src.Play(3); err != nil {
		t.Fatal(err)
	}
	_, err := src.Mirror(t.Context(), mirrored.Variant{Writers: 1, BatchOps: 1}, mirrored.RunOptions{Limit: time.Second})
	if err == nil || !strings.Contains(err.Error(), "it took too long (applied ") {
		t.Errorf("%v", err)
	}
}

// changed returns a copy of the recording types, with one file changed.
func changed(t *testing.T, file string, change func([]byte) []byte) *corpus.Scenario {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(recordings, "types"))); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return open(t, dir)
}

func TestProve(t *testing.T) {
	report := func(s *corpus.Scenario) (mirrored.Report, string) {
		r := mirrored.Prove(t.Context(), s, mirrored.Options{Work: 1, Seed: 1})
		return r, r.String()
	}
	r, text := report(open(t, filepath.Join(recordings, "types")))
	if !r.OK() || !strings.HasPrefix(text, "ok   types                  mirror:     3/3 variants equal         3 documents      9 entries each") {
		t.Error(text)
	}
	r, text = report(changed(t, "after/types.a.bson", func(b []byte) []byte { return b[:0] }))
	if r.OK() || !strings.HasPrefix(text, "FAIL types                  mirror:     0/3 variants equal") ||
		!strings.Contains(text, "\n     writers=16 batch=5000 transactions=atomic unique=relaxed: types.a: _id ") {
		t.Error(text)
	}
	r, text = report(changed(t, "meta.json", func(b []byte) []byte { return bytes.Replace(b, []byte("5.0.7"), []byte("3.6.1"), 1) }))
	if !r.OK() || !strings.HasPrefix(text, "skip types                  mirror: the embedded set does not play version 3.6.1") {
		t.Error(text)
	}
	r, text = report(changed(t, "oplog.bson", func(b []byte) []byte { return b[:len(b)-1] }))
	if _, ok := errors.AsType[*corpus.FileError](r.Err); !ok || r.OK() || !strings.HasPrefix(text, "FAIL types                  mirror: read ") {
		t.Error(text)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	if r := mirrored.Prove(ctx, open(t, filepath.Join(recordings, "types")), mirrored.Options{}); !errors.Is(r.Err, context.Canceled) {
		t.Errorf("stopped: %v", r.Err)
	}
}

// TestCopy: an equal copy is distinguished from an unequal one, and reports which
// entries were played when.
func TestCopy(t *testing.T) {
	copied := func(s *corpus.Scenario, o mirrored.RunOptions) (mirrored.CopyReport, string) {
		r := mirrored.Copy(t.Context(), s, 3, o)
		return r, r.String()
	}
	r, text := copied(open(t, filepath.Join(recordings, "types")), mirrored.RunOptions{})
	if !r.OK() || r.Entries != 9 || r.Before+r.Meanwhile > r.Entries || r.Copies != 1 ||
		!strings.HasPrefix(text, "ok   types copied with seed 3: 9 entries, ") {
		t.Error(text)
	}
	r, text = copied(changed(t, "after/types.a.bson", func(b []byte) []byte { return b[:0] }), mirrored.RunOptions{})
	if r.OK() || !strings.HasPrefix(text, "FAIL types copied with seed 3: ") || !strings.Contains(text, "types.a: _id ") {
		t.Error(text)
	}
	r, text = copied(open(t, filepath.Join(recordings, "types")), mirrored.RunOptions{Limit: time.Nanosecond})
	if r.OK() || !strings.HasPrefix(text, "FAIL types copied with seed 3: ") {
		t.Error(text)
	}
}

// TestTheServersOwn: a log may have collections of the server's own databases
// that the recording says nothing of; they are not mirrored.
func TestTheServersOwn(t *testing.T) {
	uuid := func(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }
	deleted := bson.D{{Key: "_id", Value: "there was one"}}
	var extra []byte
	for i, fields := range []bson.D{
		{{Key: "op", Value: "c"}, {Key: "ns", Value: "config.$cmd"}, {Key: "ui", Value: uuid(1)}, {Key: "o", Value: bson.D{{Key: "create", Value: "transactions"}}}},
		{{Key: "op", Value: "c"}, {Key: "ns", Value: "config.$cmd"}, {Key: "ui", Value: uuid(2)}, {Key: "o", Value: bson.D{
			{Key: "createIndexes", Value: "system.sessions"},
			{Key: "v", Value: int32(2)},
			{Key: "key", Value: bson.D{{Key: "lastUse", Value: int32(1)}}},
			{Key: "name", Value: "lsidTTLIndex"},
			{Key: "expireAfterSeconds", Value: int32(1800)},
		}}},
		{{Key: "op", Value: "d"}, {Key: "ns", Value: "config.system.sessions"}, {Key: "ui", Value: uuid(2)}, {Key: "o", Value: deleted}},
		{
			{Key: "op", Value: "u"},
			{Key: "ns", Value: "config.system.sessions"},
			{Key: "ui", Value: uuid(2)},
			{Key: "o", Value: bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 1}}}}}}},
			{Key: "o2", Value: deleted},
		},
	} {
		doc, err := bson.Marshal(append(
			fields, bson.E{Key: "ts", Value: bson.Timestamp{T: 1795167868, I: uint32(2 + i)}}, bson.E{Key: "t", Value: int64(1)},
			bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: bson.DateTime(1795167868000)}))
		if err != nil {
			t.Fatal(err)
		}
		extra = append(extra, doc...)
	}
	s := changed(t, "oplog.bson", func(b []byte) []byte { return append(extra, b...) })
	s.Meta.Entries += 4
	r := mirrored.Prove(t.Context(), s, mirrored.Options{Work: 1, Seed: 1})
	if !r.OK() || r.Entries != 13 {
		t.Error(r.String())
	}
}

func TestChoose(t *testing.T) {
	all := mirrored.Variants()
	if len(all) != 13 {
		t.Errorf("%d variants", len(all))
	}
	for _, tt := range []struct{ weight, work, want int }{{1, 0, 13}, {9000, 0, 13}, {100, 1300, 13}, {100, 700, 7}, {100, 100, 3}, {0, 1, 3}} {
		got := mirrored.Choose(tt.weight, tt.work, 1)
		seen := map[mirrored.Variant]bool{}
		for _, v := range got {
			seen[v] = true
		}
		if len(got) != tt.want || len(seen) != tt.want {
			t.Errorf("weight %d, work %d: %v", tt.weight, tt.work, got)
		}
		for _, unique := range []ddl.UniqueIndexes{ddl.Relaxed, ddl.Serialized} {
			if usual := (mirrored.Variant{Writers: 16, BatchOps: 5000, Unique: unique}); !seen[usual] {
				t.Errorf("weight %d, work %d: without %s", tt.weight, tt.work, usual)
			}
		}
	}
	if slices.Equal(mirrored.Choose(100, 500, 1), mirrored.Choose(100, 500, 2)) {
		t.Error("the seed chooses nothing")
	}
}
