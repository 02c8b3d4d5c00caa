package command

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// indexes returns the operations that a batch of results tells of.
func indexes(t testing.TB, reply bson.Raw, batch string) (list []int32) {
	t.Helper()
	values, err := reply.Lookup("cursor", batch).Array().Values()
	if err != nil {
		t.Fatalf("%s: %v", reply, err)
	}
	for _, v := range values {
		list = append(list, v.Document().Lookup("idx").Int32())
	}
	return list
}

func TestBulkWriteBatchSize(t *testing.T) {
	m := newMember(t, "8.0.1")
	bulk := func(args string) bson.Raw {
		t.Helper()
		var ops []string
		for range 5 {
			ops = append(ops, `{insert: 0, document: {}}`)
		}
		reply := m.run(t, `{bulkWrite: 1, nsInfo: [{ns: "d.c"}], ops: [`+strings.Join(ops, ",")+`], `+args+`}`)
		if reply.Lookup("nInserted").Int32() != 5 {
			t.Fatalf("%s", reply)
		}
		return reply
	}
	more := func(reply bson.Raw, args string) bson.Raw {
		t.Helper()
		next := m.run(t, fmt.Sprintf(`{getMore: {$numberLong: "%d"}, collection: "$cmd.bulkWrite", %s, $db: "admin"}`, reply.Lookup("cursor", "id").Int64(), args))
		if !succeeded(next) {
			t.Fatalf("%s", next)
		}
		return next
	}
	for _, tc := range []struct {
		args, more string
		want       [][]int32
	}{
		{`cursor: {}`, ``, [][]int32{{0, 1, 2, 3, 4}}},
		{`cursor: {batchSize: 5}`, ``, [][]int32{{0, 1, 2, 3, 4}}},
		{`cursor: {batchSize: 2}`, `batchSize: 1`, [][]int32{{0, 1}, {2}, {3}, {4}}},
		{`cursor: {batchSize: 0}`, `batchSize: 0`, [][]int32{nil, {0, 1, 2, 3, 4}}},
		{`cursor: {batchSize: 4}, ` + inTxn(sessionA, 1, true), inTxn(sessionA, 1, false), [][]int32{{0, 1, 2, 3}, {4}}},
		{`cursor: {batchSize: 1}, errorsOnly: true`, ``, [][]int32{nil}},
	} {
		reply := bulk(tc.args + `, $db: "admin"`)
		for i, want := range tc.want {
			batch := "firstBatch"
			if i > 0 {
				reply, batch = more(reply, tc.more), "nextBatch"
			}
			if got := indexes(t, reply, batch); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: batch %d has %v, want %v", tc.args, i, got, want)
			}
			if last := i == len(tc.want)-1; last != (reply.Lookup("cursor", "id").Int64() == 0) {
				t.Errorf("%s: batch %d is the last one: %t, %s", tc.args, i, last, reply.Lookup("cursor"))
			}
		}
	}
	for _, args := range []string{`cursor: 1`, `cursor: {batchSize: -1}`, `cursor: {size: 1}`} {
		reply := m.run(t, `{bulkWrite: 1, nsInfo: [{ns: "d.never"}], ops: [{insert: 0, document: {}}], `+args+`, $db: "admin"}`)
		if succeeded(reply) {
			t.Errorf("%s: %s", args, reply)
		}
	}
	m.want(t, `{count: "never", $db: "d"}`, `{n: 0, ok: 1.0}`)
}

// TestBulkWriteResultsOfAnySize fails operations with long keys: their results are
// more than a reply may hold.
func TestBulkWriteResultsOfAnySize(t *testing.T) {
	m := newMember(t, "8.0.1")
	insert := func(size int) bson.D {
		return bson.D{{Key: "insert", Value: int32(0)}, {Key: "document", Value: bson.D{{Key: "_id", Value: strings.Repeat("x", size)}}}}
	}
	var ops bson.A
	for range 2 {
		for i := range 6 {
			ops = append(ops, insert(2<<20+i))
		}
		ops = append(ops, insert(9<<20))
	}
	cmd := must(bson.Marshal(bson.D{
		{Key: "bulkWrite", Value: 1},
		{Key: "ordered", Value: false},
		{Key: "nsInfo", Value: bson.A{bson.D{{Key: "ns", Value: "d.c"}}}},
		{Key: "ops", Value: ops},
		{Key: "$db", Value: "admin"},
	}))
	reply := m.CallOn(t.Context(), m.conn, cmd)
	if !succeeded(reply) || reply.Lookup("nErrors").Int32() != 7 {
		t.Fatalf("%s", fmt.Sprintf("%.300s", reply))
	}
	all := indexes(t, reply, "firstBatch")
	batches := 1
	for ; reply.Lookup("cursor", "id").Int64() != 0; batches++ {
		reply = m.run(t, fmt.Sprintf(`{getMore: {$numberLong: "%d"}, collection: "$cmd.bulkWrite", $db: "admin"}`, reply.Lookup("cursor", "id").Int64()))
		if !succeeded(reply) {
			t.Fatalf("%s", fmt.Sprintf("%.300s", reply))
		}
		all = append(all, indexes(t, reply, "nextBatch")...)
	}
	if fmt.Sprint(all) != "[0 1 2 3 4 5 6 7 8 9 10 11 12 13]" || batches < 2 {
		t.Errorf("results %v in %d batches", all, batches)
	}
}
