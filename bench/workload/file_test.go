package workload_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

const recordings = "../../testdata/corpus"

// with returns the state and the collections that a recording says it
// takes for granted.
func with(s memstore.State, all []workload.Collection) memstore.State {
	for _, c := range state(all).Collections {
		if !slices.ContainsFunc(s.Collections, func(have memstore.CollectionState) bool { return have.NS == c.NS }) {
			s.Collections = append(s.Collections, c)
		}
	}
	return s
}

// A recording as a log, moved elsewhere, and as single operations, makes what the
// recorded server had.
func TestRecordings(t *testing.T) {
	t.Parallel()
	scenarios, err := corpus.Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		if s.Name == "fuzzy-clone" {
			continue // its documents are newer than the log
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			after, err := s.After()
			if err != nil {
				t.Fatal(err)
			}
			before, err := s.Before()
			if err != nil {
				t.Fatal(err)
			}
			w := workload.Workload{Name: s.Name, File: filepath.Join(s.Dir, "oplog.bson")}
			g, all := ops(t, w)
			before = with(before, collections(t, g))

			moved := entries(t, w, first)
			store := load(t, before)
			replay(t, store, moved)
			for _, difference := range memstore.Diff(after, store.Snapshot()) {
				t.Error("as a log:", difference)
			}

			store = load(t, before)
			for i := range all {
				do(t, store, i, &all[i])
			}
			for _, difference := range memstore.Diff(after, store.Snapshot()) {
				t.Error("as operations:", difference)
			}
			n := 0
			for _, e := range moved {
				n += e.ops
			}
			if n != len(all) || len(moved) != s.Meta.Entries {
				t.Errorf("%d entries with %d operations, want %d and %d", len(moved), n, s.Meta.Entries, len(all))
			}
		})
	}
}

// do applies an operation, and holds what a client sends for it against the result.
func do(t *testing.T, store *memstore.Store, i int, from *workload.Op) {
	t.Helper()
	op := oplog.Op{OpTime: first, Kind: from.Kind, NS: from.NS, UI: from.UUID, ID: from.ID, O: from.Doc}
	key := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id",
		bsoncore.Value{Type: bsoncore.Type(from.ID.Type), Data: from.ID.Value})))
	post := from.Doc
	switch from.Kind {
	case oplog.KindDelete:
		op.O = key
	case oplog.KindUpdate:
		op.O2 = key
		c, ok := store.CollectionByUUID(from.UUID)
		if !ok {
			t.Fatalf("operation %d: no collection %s", i, from.NS)
		}
		pre, ok := c.Get(from.ID)
		if !ok {
			t.Fatalf("operation %d: no document %s", i, from.ID)
		}
		u := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: from.Modifier}
		switch {
		case from.IsPipeline:
			u.Type = bson.TypeArray
		case from.Doc != nil:
			u.Value = from.Doc
		}
		var err error
		if post, err = serverupdate.Apply(pre, u); err != nil {
			t.Fatalf("operation %d: %v: %v", i, u, err)
		}
		if from.Doc == nil {
			op.O = post
		}
		if from.Diff != nil {
			op.O = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("$v", 2).AppendDocument("diff", bsoncore.Document(from.Diff)).Build())
		}
	case oplog.KindCommand:
		entry := bson.Raw(bsoncore.NewDocumentBuilder().AppendString("op", "c").AppendString("ns", string(from.NS)).
			AppendBinary("ui", bson.TypeBinaryUUID, from.UUID[:]).AppendDocument("o", bsoncore.Document(from.Command)).
			AppendTimestamp("ts", 1, 1).AppendInt64("t", 1).AppendDateTime("wall", 1).Build())
		e, err := oplog.ParseEntry(entry)
		if err != nil {
			t.Fatal(err)
		}
		op.Command, op.O = e.Command, from.Command
	default:
	}
	if err := store.Apply(&op, memstore.Steady); err != nil {
		t.Fatalf("operation %d: %v", i, err)
	}
	if from.Kind == oplog.KindUpdate {
		c, _ := store.CollectionByUUID(from.UUID)
		if doc, _ := c.Get(from.ID); !bytes.Equal(doc, post) {
			t.Fatalf("operation %d: the log makes %v, and a client %v", i, doc, post)
		}
	}
}

func TestRecordingIsCutOff(t *testing.T) {
	t.Parallel()
	file := filepath.Join(recordings, "txn-small", "oplog.bson")
	_, all := ops(t, workload.Workload{File: file})
	for _, limit := range []int{1, 3, 4, 5, 8, 20, len(all), len(all) + 1} {
		w := workload.Workload{File: file, Ops: limit}
		_, some := ops(t, w)
		n := 0
		for _, e := range entries(t, w, first) {
			n += e.ops
		}
		if len(some) > limit || n != len(some) || len(some) > 0 && some[len(some)-1].Txn != 0 && !some[len(some)-1].TxnEnd {
			t.Errorf("limit %d: %d operations, in the log %d", limit, len(some), n)
		}
	}
}

func TestRecordingFaults(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(filepath.Join(recordings, "txn-prepared", "oplog.bson"))
	if err != nil {
		t.Fatal(err)
	}
	small, err := os.ReadFile(filepath.Join(recordings, "ids", "oplog.bson"))
	if err != nil {
		t.Fatal(err)
	}
	noTerm := bson.Raw(bsoncore.NewDocumentBuilder().AppendString("op", "n").AppendString("ns", "").
		AppendDocument("o", bsoncore.NewDocumentBuilder().Build()).AppendTimestamp("ts", 1, 1).AppendDateTime("wall", 1).Build())
	tests := []struct {
		name  string
		bytes []byte
		want  string
	}{
		{"cut off in a length", append(bytes.Clone(small), 7), "at byte 30893: a document is cut off after 1 bytes"},
		{"cut off", small[:len(small)-1], "is cut off after"},
		{"no BSON", append(bytes.Clone(small), 3, 0, 0, 0), "at byte 30893: not BSON: a document with a length of 3"},
		{"no entry", bsoncore.NewDocumentBuilder().Build(), "entry at byte 0"},
		{"backwards", append(bytes.Clone(small), small...), "out of order"},
		{"a transaction that began before", behindFirstPart(t, whole), "began before the recording"},
		{"without terms", noTerm, "an entry without a term cannot be moved"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "oplog.bson")
			if err := os.WriteFile(file, test.bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			l := newLog(t, workload.Workload{File: file})
			for {
				_, _, ok, err := l.Next()
				if err != nil {
					if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), file) {
						t.Errorf("got %v, want %s and the file's name", err, test.want)
					}
					return
				}
				if !ok {
					t.Fatalf("no error, want %s", test.want)
				}
			}
		})
	}
	if _, err := workload.New(workload.Workload{File: "nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("no file: %v", err)
	}
}

// behindFirstPart cuts off a log's beginning up to the first part of a transaction
// that has others.
func behindFirstPart(t *testing.T, log []byte) []byte {
	t.Helper()
	for len(log) > 0 {
		n, _, _ := bsoncore.ReadLength(log)
		e, err := oplog.ParseEntry(log[:n])
		if err != nil {
			t.Fatal(err)
		}
		if e.InTransaction() && !e.Session().PrevOpTime.IsNull() {
			return log
		}
		log = log[n:]
	}
	t.Fatal("no transaction of several parts")
	return nil
}

// A recording that begins in the middle reports which collections it assumes.
func TestRecordingFromTheMiddle(t *testing.T) {
	t.Parallel()
	scenarios, err := corpus.Open(filepath.Join(recordings, "mass"))
	if err != nil {
		t.Fatal(err)
	}
	after, err := scenarios[0].After()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(recordings, "mass", "oplog.bson"))
	if err != nil {
		t.Fatal(err)
	}
	created, rest, _ := bsoncore.ReadDocument(log)
	e, err := oplog.ParseEntry(bson.Raw(created))
	if err != nil || e.Command != oplog.CommandCreate {
		t.Fatalf("the recording begins with %v, %v", created, err)
	}
	w := workload.Workload{File: filepath.Join(t.TempDir(), "oplog.bson")}
	if err := os.WriteFile(w.File, rest, 0o600); err != nil {
		t.Fatal(err)
	}
	all := collections(t, newGenerator(t, w))
	if len(all) != 1 || all[0].NS != "mass.a" || all[0].UUID != e.UI || len(all[0].Documents) > 0 {
		t.Fatalf("collections %v", all)
	}
	store := load(t, state(all))
	if tolerated := replay(t, store, entries(t, w, first)); tolerated != (memstore.Counters{}) {
		t.Errorf("the log does not fit: %v", tolerated)
	}
	for _, difference := range memstore.Diff(after, store.Snapshot()) {
		t.Error(difference)
	}
}
