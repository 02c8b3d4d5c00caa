package txn

import (
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// FuzzAdd adds anything that can be parsed as entries. Nothing may panic, and the
// results can be read and are consistent.
func FuzzAdd(f *testing.F) {
	for _, log := range [][]line{
		{part(1, null, 1, 1, list(ops("i1 u2"), partial)), part(2, 1, 1, 1, list(ops("d3"), count(3)))},
		{part(1, null, 1, 1, list(ops("i1"), prepare)), part(2, 1, 1, 1, commitAt(1))},
		{part(1, null, 1, 1, list(ops("i1"), prepare)), part(2, 1, 1, 1, abortCmd)},
		{{at: 1, prev: none, cmd: listOf([]bsoncore.Document{element("u1"), nested(list(ops("c2")))})}},
		{part(1, null, 1, 1, list(ops("i1"), partial)), {at: 2, prev: null, session: 1, number: 2, op: "i1"}},
		{part(5, 1, 1, 1, list(nil, prepare)), part(6, 5, 1, 1, commitAt(5))},
	} {
		var data []byte
		for _, l := range log {
			data = append(data, l.raw()...)
		}
		f.Add(data, uint32(0))
		f.Add(data, uint32(5))
	}
	for _, scenario := range []string{"txn-small", "apply-ops"} {
		var data []byte
		for _, raw := range recorded(f, scenario) {
			data = append(data, raw...)
		}
		f.Add(data, uint32(0))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, applied uint32) {
		cfg := Config{MemoryBytes: 100, SpillDir: dir}
		if applied != 0 {
			cfg.ApplyAfter = oplog.NewOpTime(1000, applied, 1)
		}
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var last oplog.OpTime
		for len(data) >= 4 {
			n := int(binary.LittleEndian.Uint32(data))
			if n < 4 || n > len(data) {
				break
			}
			raw := bson.Raw(data[:n:n])
			data = data[n:]
			e, err := oplog.ParseEntry(raw)
			if err != nil {
				continue
			}
			if !fuzzEntry(t, a, &e, cfg.ApplyAfter) {
				break
			}
			last = e.OpTime
		}
		for _, info := range a.Open() {
			if info.Parts < 1 || info.Last.Before(info.Start) || info.Last.After(last) {
				t.Fatalf("an open transaction: %+v", info)
			}
		}
		must.Succeed(t, a.Close())
		if a.Bytes() != 0 {
			t.Fatalf("%d bytes left", a.Bytes())
		}
	})
}

// fuzzEntry adds an entry and checks the result. It reports whether the entry was accepted.
func fuzzEntry(t *testing.T, a *Assembler, e *oplog.Entry, after oplog.OpTime) bool {
	t.Helper()
	oldest, _ := a.OldestOpen()
	r, err := a.Add(e)
	if err != nil {
		if now, _ := a.OldestOpen(); now != oldest {
			t.Fatalf("an error moves the oldest open transaction from %s to %s", oldest, now)
		}
		return false
	}
	from := e.OpTime
	if at, open := a.OldestOpen(); open {
		from = at
	}
	order := oplog.CompareTimestamps(e.OpTime.TS, after.TS)
	if order < 0 {
		from = oplog.OpTime{}
	}
	if r.FetchFrom != from {
		t.Fatalf("reading begins again at %s, want %s", r.FetchFrom, from)
	}
	if (r.Outcome == Past) != (order <= 0) {
		t.Fatalf("entry %s is %s", e.OpTime, r.Outcome)
	}
	if (r.Txn != nil) != (r.Outcome == Committed) {
		t.Fatalf("%s with transaction %v", r.Outcome, r.Txn)
	}
	if r.Txn == nil {
		return true
	}
	count := 0
	for _, err := range r.Txn.Ops() {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != r.Txn.Count {
		t.Fatalf("%d operations, %d announced", count, r.Txn.Count)
	}
	must.Succeed(t, r.Txn.Close())
	return true
}
