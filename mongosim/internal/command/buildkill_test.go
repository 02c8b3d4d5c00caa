package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// killing is a member on which builds hang.
type killing struct {
	*member
	t       *testing.T
	replies map[string]chan bson.Raw
}

func newKilling(t *testing.T) *killing {
	t.Helper()
	k := &killing{member: newMember(t, "5.0"), t: t, replies: map[string]chan bson.Raw{}}
	for _, coll := range []string{"c", "d"} {
		k.run(t, `{insert: "`+coll+`", documents: [{_id: 1}], $db: "d"}`)
	}
	k.run(t, hang)
	return k
}

// build starts to build an index on a field, in a session of that name, and returns once it
// hangs or waits.
func (k *killing) build(ctx context.Context, coll, field string) {
	conn, reply := k.NewConn("builder"), make(chan bson.Raw, 1)
	k.replies[field] = reply
	cmd := parse(k.t, fmt.Sprintf(`{createIndexes: "%s", indexes: [{key: {%s: 1}, name: "%[2]s"}], %s, $db: "d"}`, coll, field, sessionOf(field)))
	go func() { reply <- k.CallOn(ctx, conn, cmd) }()
	synctest.Wait()
}

func sessionOf(field string) string {
	return fmt.Sprintf(`lsid: {id: {$uuid: "00000000-0000-4000-8000-0000000000%x"}}`, field)
}

func (k *killing) kill(field string) {
	k.t.Helper()
	k.want(k.t, `{killSessions: [`+strings.TrimPrefix(sessionOf(field), "lsid: ")+`], $db: "admin"}`, ok)
	synctest.Wait()
}

// in fails unless exactly these indexes of a collection are listed; those in progress have a
// "?".
func (k *killing) in(coll string, want ...string) {
	k.t.Helper()
	reply := k.run(k.t, `{listIndexes: "`+coll+`", includeBuildUUIDs: true, $db: "d"}`)
	docs, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
	var got []string
	for _, v := range docs[1:] {
		name := ""
		if spec, building := v.Document().Lookup("spec").DocumentOK(); building {
			name = spec.Lookup("name").StringValue() + "?"
		} else {
			name = v.Document().Lookup("name").StringValue()
		}
		got = append(got, name)
	}
	if !slices.Equal(got, want) {
		k.t.Errorf("%s has %v, want %v", coll, got, want)
	}
}

// answers fails unless the command for a field has that answer.
func (k *killing) answers(field string, want servererr.Code) {
	k.t.Helper()
	select {
	case r := <-k.replies[field]:
		if code, _ := r.Lookup("code").AsInt64OK(); servererr.Code(code) != want {
			k.t.Errorf("%s: %s, want code %d", field, r, want)
		}
	default:
		k.t.Errorf("%s has no answer", field)
	}
}

// A session that is killed ends a build that its command has started, and not one that the
// command only waits for.
func TestKilledBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKilling(t)
		k.build(t.Context(), "c", "x")
		k.in("c", "x?")
		joined := k.replies["x"]
		k.run(t, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}], maxTimeMS: 1, $db: "d"}`)
		k.in("c", "x?")
		k.kill("y")
		k.in("c", "x?")
		k.kill("x")
		k.in("c")
		k.replies["x"] = joined
		k.answers("x", servererr.Interrupted)
	})
}

// More builds than may run wait, and are not listed; they outlive their clients.
func TestBuildsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKilling(t)
		k.run(t, `{setParameter: 1, maxNumActiveUserIndexBuilds: 1, $db: "admin"}`)
		k.build(t.Context(), "c", "x")
		for _, field := range []string{"y", "z"} {
			ctx, leave := context.WithCancelCause(t.Context())
			k.build(ctx, "d", field)
			leave(nil)
			synctest.Wait()
		}
		k.in("d")
		k.kill("z")
		k.run(t, proceed)
		synctest.Wait()
		k.answers("x", 0)
		k.in("c", "x")
		k.in("d", "y")
	})
}
