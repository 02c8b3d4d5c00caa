package command

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// FuzzReads sends any document as a command that reads, and continues with the
// cursor that it may get: there is always a reply, and it is valid.
func FuzzReads(f *testing.F) {
	for _, seed := range []string{
		`{"find":"c","filter":{"x":{"$gt":3}},"sort":{"_id":-1},"skip":1,"limit":5,"batchSize":2,"$db":"db"}`,
		`{"find":"c","hint":{"$natural":1},"$_requestResumeToken":true,"$_resumeAfter":{"$recordId":{"$numberLong":"3"}},"$db":"db"}`,
		`{"find":"oplog.rs","filter":{"ts":{"$gte":{"$timestamp":{"t":1,"i":1}}}},"tailable":true,"awaitData":true,"term":1,"$db":"local"}`,
		`{"find":"v","projection":{"x":1},"collation":{"locale":"en","strength":2},"$db":"db"}`,
		`{"aggregate":"v","pipeline":[{"$match":{"_id":{"$in":[1,2]}}},{"$group":{"_id":"$x","n":{"$sum":1}}}],"cursor":{"batchSize":1},"$db":"db"}`,
		`{"aggregate":"c","pipeline":[{"$collStats":{"count":{},"storageStats":{"scale":2}}}],"cursor":{},"$db":"db"}`,
		`{"aggregate":1,"pipeline":[],"cursor":{},"$db":"db"}`,
		`{"count":"c","query":{"x":1},"limit":-2,"skip":1,"$db":"db"}`,
		`{"distinct":"c","key":"x","query":{},"$db":"db"}`,
		`{"getMore":{"$numberLong":"5"},"collection":"c","lastKnownCommittedOpTime":{"ts":{"$timestamp":{"t":1,"i":1}},"t":{"$numberLong":"1"}},"$db":"db"}`,
		`{"killCursors":"c","cursors":[{"$numberLong":"5"}],"$db":"db"}`,
		`{"listCollections":1,"filter":{"type":"view"},"nameOnly":true,"cursor":{"batchSize":0},"$db":"db"}`,
		`{"listIndexes":"c","includeBuildUUIDs":true,"$db":"db"}`,
		`{"listDatabases":1,"filter":{"name":"db"},"$db":"admin"}`,
		`{"collStats":"c","scale":2,"$db":"db"}`, `{"dbStats":1,"$db":"db"}`, `{"dbHash":1,"collections":["c"],"$db":"db"}`,
		`{"validate":"c","$db":"db"}`,
	} {
		var cmd bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(seed), false, &cmd); err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(cmd))
	}
	m := newReadMember(f, storage.Options{})
	m.numbered(f, "c", 0, 20)
	m.must(f, "db", obj("create", "v", "viewOn", "c", "pipeline", bson.A{obj("$set", obj("y", 1))}))
	reads := []string{
		"find", "aggregate", "count", "distinct", "explain", "mapReduce", "getMore",
		"killCursors", "listDatabases", "listCollections", "listIndexes", "collStats", "dbStats", "dbHash", "validate", "top",
	}
	f.Fuzz(func(t *testing.T, cmd []byte) {
		first := dispatch.FirstElem(cmd)
		if rawbson.Validate(cmd) != nil || !slices.Contains(reads, first.Name()) {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		reply := m.CallOn(ctx, m.conn, cmd)
		if err := rawbson.Validate(reply); err != nil {
			t.Fatalf("%v: %v", reply, err)
		}
		if id, ok := reply.Lookup("cursor", "id").Int64OK(); ok && id != 0 {
			m.refused(t, "nodb", obj("getMore", id, "collection", "none"), 13)
			m.must(t, "db", obj("killCursors", "c", "cursors", bson.A{id}))
		}
	})
}
