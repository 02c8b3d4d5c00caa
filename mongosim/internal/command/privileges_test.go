package command

import (
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// rules is access control that allows the listed privileges, as "action db coll".
type rules struct {
	gate
	may []string
}

func (g *rules) Check(_ *dispatch.Conn, action, db, coll string, _ bson.Raw) error {
	if what := strings.TrimSpace(action + " " + db + " " + coll); what == "" || slices.Contains(g.may, what) {
		return nil
	}
	return servererr.New(servererr.Unauthorized, "not authorized")
}

// UserID returns the id of me@d for every user.
func (g *rules) UserID(*dispatch.Conn) [32]byte { return sha256.Sum256([]byte("me@d")) }

// TestPrivilegesOfAll runs commands with all that they take, and then without each.
func TestPrivilegesOfAll(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cmd  string
		take []string
	}{
		{`{aggregate: "c", pipeline: [{$collStats: {count: {}}}], cursor: {}, $db: "d"}`, []string{"find d c", "collStats d c"}},
		{`{aggregate: "v", pipeline: [], cursor: {}, $db: "d"}`, []string{"find d v"}},
		{`{renameCollection: "d.c", to: "e.y", $db: "admin"}`, []string{"find d c", "dropCollection d c", "insert e y", "createIndex e y"}},
		{`{renameCollection: "d.c", to: "d.y", $db: "admin"}`, []string{"renameCollectionSameDB d"}},
		{`{renameCollection: "d.c", to: "d.y", dropTarget: true, $db: "admin"}`, []string{"renameCollectionSameDB d", "dropCollection d y"}},
		{`{usersInfo: {user: "x", db: "e"}, $db: "d"}`, []string{"viewUser e"}},
	} {
		for out := -1; out < len(c.take); out++ {
			g := &rules{may: slices.Clone(c.take)}
			if out >= 0 {
				g.may = slices.Delete(g.may, out, out+1)
			}
			m := newMember(t, "8.0.1", func(c *dispatch.Config) { c.Auth = g })
			inside := &dispatch.Conn{Internal: true}
			m.CallOn(t.Context(), inside, parse(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`))
			m.CallOn(t.Context(), inside, parse(t, `{create: "v", viewOn: "c", pipeline: [{$match: {a: 1}}], $db: "d"}`))
			reply := m.run(t, c.cmd)
			if code, _ := reply.Lookup("code").AsInt64OK(); (out < 0) != succeeded(reply) || out >= 0 && code != 13 {
				t.Errorf("%s with %q: %s", c.cmd, g.may, reply)
			}
		}
	}
}

// TestPrivilegesByUUID: naming a collection by its UUID requires the privileges of
// its name, and useUUID.
func TestPrivilegesByUUID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, action string
	}{{"find", "find d c"}, {"listIndexes", "listIndexes d c"}} {
		take := []string{"useUUID", c.action}
		for out := -1; out < len(take); out++ {
			g := &rules{may: slices.Clone(take)}
			if out >= 0 {
				g.may = slices.Delete(g.may, out, out+1)
			}
			m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.Auth = g })
			inside := &dispatch.Conn{Internal: true}
			m.CallOn(t.Context(), inside, parse(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`))
			listed := m.CallOn(t.Context(), inside, parse(t, `{listCollections: 1, $db: "d"}`))
			_, uuid := listed.Lookup("cursor", "firstBatch", "0", "info", "uuid").Binary()
			cmd := must(bson.Marshal(bson.D{{Key: c.name, Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: uuid}}, {Key: "$db", Value: "d"}}))
			reply := m.CallOn(t.Context(), m.conn, cmd)
			if code, _ := reply.Lookup("code").AsInt64OK(); (out < 0) != succeeded(reply) || out >= 0 && code != 13 {
				t.Errorf("%s with %q: %s", c.name, g.may, reply)
			}
		}
	}
}

func TestRefusedAggregateOptions(t *testing.T) {
	m := newMember(t, "5.0.7")
	for _, option := range []string{
		`fromMongos: true`, `runtimeConstants: {localNow: 1}`, `legacyRuntimeConstants: {}`, `unwrappedReadPref: {}`, `exchange: {}`, `needsMerge: true`,
	} {
		reply := m.run(t, `{aggregate: "c", pipeline: [], cursor: {}, `+option+`, $db: "d"}`)
		if code, _ := reply.Lookup("code").AsInt64OK(); code != int64(servererr.NotImplemented) {
			t.Errorf("%s: %s", option, reply)
		}
	}
	m.want(t, `{aggregate: "c", pipeline: [], cursor: {}, fromMongos: false, allowDiskUse: true, use44SortKeys: true, $db: "d"}`,
		`{cursor: {firstBatch: [], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`)
}

// TestPipelinesEnd ends stages that would run for very long.
func TestPipelinesEnd(t *testing.T) {
	m := newMember(t, "5.0.7")
	docs := make(bson.A, 50_000)
	for i := range docs {
		docs[i] = bson.D{}
	}
	insert := must(bson.Marshal(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}, {Key: "$db", Value: "d"}}))
	if reply := m.CallOn(t.Context(), m.conn, insert); !succeeded(reply) {
		t.Fatalf("%s", reply)
	}
	// Millions of sums, none of which comes out.
	const args = `pipeline: [{$set: {a: {$map: {input: {$range: [0, 100]}, in: {$add: ["$$this", 1]}}}}}, {$match: {a: -1}}], cursor: {}, $db: "d"}`
	start := time.Now()
	reply := m.run(t, `{aggregate: "c", maxTimeMS: 50, `+args)
	if code, _ := reply.Lookup("code").AsInt64OK(); code != int64(servererr.MaxTimeMSExpired) {
		t.Errorf("maxTimeMS: %s", reply)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if reply := m.CallOn(ctx, m.conn, parse(t, `{aggregate: "c", `+args)); succeeded(reply) {
		t.Errorf("hang-up: %s", reply)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}
