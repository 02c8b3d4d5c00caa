package command

import (
	"context"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

// TestSnapshotReadsOfCollections: what a read at an earlier time answers for collections that were
// dropped, made again, renamed, or that are capped, as measured on 5.0; 7.0 has an older catalog,
// too.
func TestSnapshotReadsOfCollections(t *testing.T) {
	for version, want := range map[string]map[string]int{
		"5.0.7":  {"stays": 1, "indexed": 1, "dropped": 0, "again": -246, "renamed": 0, "name": -246, "new": -246, "capped": -246, "none": 0},
		"7.0.15": {"stays": 1, "indexed": 1, "dropped": 1, "again": 1, "renamed": 1, "name": 0, "new": 0, "capped": -246, "none": 0},
	} {
		t.Run(version, func(t *testing.T) {
			m := newMember(t, version)
			m.run(t, `{create: "capped", capped: true, size: 4096, $db: "db"}`)
			var reply bson.Raw
			for _, coll := range []string{"stays", "indexed", "dropped", "again", "renamed", "capped"} {
				reply = m.run(t, fmt.Sprintf(`{insert: %q, documents: [{_id: 1}], $db: "db"}`, coll))
			}
			at := reply.Lookup("operationTime")
			ts, i := at.Timestamp()
			release, err := m.store.Pin(bson.Timestamp{T: ts, I: i})
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			for _, cmd := range []string{
				`{createIndexes: "indexed", indexes: [{name: "a", key: {a: 1}}], $db: "db"}`,
				`{drop: "dropped", $db: "db"}`,
				`{drop: "again", $db: "db"}`, `{insert: "again", documents: [{_id: 2}, {_id: 3}], $db: "db"}`,
				`{renameCollection: "db.renamed", to: "db.name", $db: "admin"}`,
				`{insert: "new", documents: [{_id: 2}], $db: "db"}`,
			} {
				if reply := m.run(t, cmd); reply.Lookup("ok").Double() != 1 {
					t.Fatalf("%s: %s", cmd, reply)
				}
			}
			for coll, want := range want {
				for _, cmd := range []string{`find: %q`, `aggregate: %q, pipeline: [], cursor: {}`} {
					reply := m.run(t, fmt.Sprintf(`{`+cmd+`, readConcern: {level: "snapshot", atClusterTime: {$timestamp: {t: %d, i: %d}}}, $db: "db"}`, coll, ts, i))
					code, refused := reply.Lookup("code").Int32OK()
					got := -int(code)
					if !refused {
						docs, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
						got = len(docs)
					}
					if got != want {
						t.Errorf("%s of %s: %d, want %d: %s", cmd, coll, got, want, reply)
					}
				}
			}
		})
	}
}

// TestOperationTimeOfWrites: that of a write is the time of its entry, although others write
// before it is acknowledged.
func TestOperationTimeOfWrites(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{create: "c", $db: "db"}`)
	m.node.concern = func(context.Context, oplog.OpTime, repl.WriteConcern) error {
		m.node.concern = nil
		m.CallOn(t.Context(), m.NewConn("test"), parse(t, `{insert: "c", documents: [{_id: 2}], $db: "db"}`))
		return nil
	}
	reply := m.run(t, `{insert: "c", documents: [{_id: 1}], writeConcern: {w: "majority"}, $db: "db"}`)
	list := m.entries(t)
	first, second := list[len(list)-2], list[len(list)-1]
	if first.Lookup("o", "_id").Int32() != 1 || second.Lookup("o", "_id").Int32() != 2 {
		t.Fatalf("%s %s", first, second)
	}
	if got := reply.Lookup("operationTime"); !got.Equal(first.Lookup("ts")) {
		t.Errorf("%s, want %s; the next one is %s", got, first.Lookup("ts"), second.Lookup("ts"))
	}
}
