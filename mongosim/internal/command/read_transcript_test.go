package command

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// volatileFields are the fields of commands and replies that differ from run to run.
var volatileFields = map[string]bool{
	"$clusterTime": true, "operationTime": true, "opTime": true, "electionId": true, "lsid": true, "txnNumber": true,
	"host": true, "timeMillis": true, "uuids": true, "uuid": true, "labels": true, "errorLabels": true, "topologyVersion": true,
	"$readPreference": true,
}

// steady returns v without volatile fields. Cursor ids are known only by being
// zero or not.
func steady(v any) any {
	switch v := v.(type) {
	case bson.D:
		out := bson.D{}
		for _, e := range v {
			if volatileFields[e.Key] {
				continue
			}
			if n, ok := e.Value.(int64); ok && e.Key == "id" && n != 0 {
				e.Value = int64(1)
			}
			out = append(out, bson.E{Key: e.Key, Value: steady(e.Value)})
		}
		return out
	case bson.A:
		out := bson.A{}
		for _, e := range v {
			out = append(out, steady(e))
		}
		return out
	}
	return v
}

func decode(t *testing.T, raw bson.Raw) bson.D {
	t.Helper()
	var d bson.D
	if err := bson.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestRecordedReads sends the recorded reads to a member and expects what the
// server answered.
func TestRecordedReads(t *testing.T) {
	scenarios, err := corpus.Open("../../../testdata/corpus/commands")
	if err != nil {
		t.Fatal(err)
	}
	m := newReadMember(t, storage.Options{})
	reads := []string{
		"find", "getMore", "killCursors", "aggregate", "count", "distinct", "listIndexes", "listCollections", "dbHash", "nosuchcommand",
	}
	ids := map[int64]int64{} // cursor ids by recorded ones
	line, compared := 0, 0
	for c, err := range scenarios[0].Commands() {
		if err != nil {
			t.Fatal(err)
		}
		if line++; line > 62 {
			break
		}
		cmd := withCursors(decode(t, c.Command), ids)
		raw, err := bson.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		reply := m.CallOn(t.Context(), m.conn, raw)
		if !slices.Contains(reads, cmd[0].Key) {
			if reply.Lookup("ok").Double() != 1 {
				t.Fatalf("line %d: %s: %s", line, c.Command, reply)
			}
			continue
		}
		compared++
		got := steady(decode(t, reply)).(bson.D)
		var want bson.D
		if c.Error != nil {
			e := steady(decode(t, c.Error)).(bson.D)
			want = obj("ok", 0.0, "errmsg", lookup(e, "errmsg"), "code", lookup(e, "code"), "codeName", lookup(e, "codeName"))
		} else {
			want = steady(decode(t, c.Reply)).(bson.D)
			if was, now := c.Reply.Lookup("cursor", "id"), reply.Lookup("cursor", "id"); was.Type == bson.TypeInt64 && now.Type == bson.TypeInt64 {
				ids[was.Int64()] = now.Int64()
			}
			if killed := lookup(want, "cursorsKilled"); killed != nil && len(killed.(bson.A)) > 0 {
				killed.(bson.A)[0] = ids[killed.(bson.A)[0].(int64)]
			}
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b bson.Decimal128) bool { return a == b })); diff != "" {
			t.Errorf("line %d: %.300s\n%s", line, c.Command, diff)
		}
	}
	if compared < 50 {
		t.Errorf("only %d replies compared", compared)
	}
}

// withCursors is a recorded command with the ids of the cursors of this run, and
// without what differs in every run.
func withCursors(recorded bson.D, ids map[int64]int64) bson.D {
	cmd := bson.D{}
	for _, e := range recorded {
		if volatileFields[e.Key] {
			continue
		}
		switch v := e.Value.(type) {
		case int64:
			if id, ok := ids[v]; ok {
				e.Value = id
			}
		case bson.A:
			for i := range v {
				if n, ok := v[i].(int64); ok && ids[n] != 0 {
					v[i] = ids[n]
				}
			}
		}
		cmd = append(cmd, e)
	}
	return cmd
}

func lookup(d bson.D, key string) any {
	for _, e := range d {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}
