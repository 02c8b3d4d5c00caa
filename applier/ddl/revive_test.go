package ddl_test

import (
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestReviveInVain: an index that the documents are the reason of that it cannot be built, by what they contain or by how many they are, is not
// built again when another index is dropped: each try reads the collection, while everything waits. One that another index may be the reason of is.
func TestReviveInVain(t *testing.T) {
	t.Parallel()
	for code, want := range map[servererr.Code]int{
		servererr.ExceededMemoryLimit: 0, 16755: 0, 17261: 0,
		servererr.CannotCreateIndex: 2, // there may be too many, or another one of that type
	} {
		for _, deferred := range []bool{false, true} { // by the command that builds it, or since a copy
			t.Run(strconv.Itoa(int(code))+" "+strconv.FormatBool(deferred), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
				apply := func(line string) {
					t.Helper()
					must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
				}
				apply(`c db.$cmd {"create": "a"}`)
				for _, name := range []string{"p", "q", "r"} {
					apply(`c db.$cmd {"createIndexes": "a", "v": 2, "key": {"` + name + `": 1}, "name": "` + name + `"}`)
				}
				tries := 0
				b.before = func(cmd mongo.Command) error {
					if _, err := cmd.Body.LookupErr("createIndexes"); err == nil {
						tries++
						return servererr.New(code, "no")
					}
					return nil
				}
				x := b.operation(t, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x_1"}`)
				if deferred {
					must.Succeed(t, b.exec.DeferBuild(t.Context(), x, "x_1"))
					apply(`c db.$cmd {"dropIndexes": "a", "index": "r"}`) // the first try shows why
				} else {
					must.Succeed(t, b.exec.Apply(t.Context(), x, ddl.Once))
				}
				tries = 0
				b.restart(t)
				apply(`c db.$cmd {"dropIndexes": "a", "index": "p"}`)
				apply(`c db.$cmd {"dropIndexes": "a", "index": "q"}`)
				if tries != want {
					t.Errorf("%d tries, want %d", tries, want)
				}
				b.before = nil
				must.Succeed(t, b.exec.EndCopy(t.Context(), b.operation(t, `c db.$cmd {"create": "z"}`).OpTime))
				if l := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t); len(l.Indexes) != 0 {
					t.Errorf("lacking %v", l.Indexes)
				}
			})
		}
	}
}

// TestReviveAfterConflict: an index that was dropped for a document of a copy, and that another index keeps from being built at its end, is built
// once that one is dropped.
func TestReviveAfterConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	for _, line := range []string{
		`c db.$cmd {"create": "a"}`, `c db.$cmd {"createIndexes": "a", "v": 2, "key": {"p": 1}, "name": "p"}`,
		`c db.$cmd {"createIndexes": "a", "v": 2, "key": {"x": 1}, "name": "x"}`,
	} {
		must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once))
	}
	op := b.operation(t, `i db.a {"_id": 1}`)
	isX := func(spec bson.Raw) bool { return spec.Lookup("name").StringValue() == "x" }
	if names := must.Get(b.exec.DeferIndexes(t.Context(), op, "db.a", isX))(t); len(names) != 1 {
		t.Fatalf("deferred are %v", names)
	}
	b.before = func(cmd mongo.Command) error {
		if _, err := cmd.Body.LookupErr("createIndexes"); err == nil {
			return servererr.New(servererr.IndexOptionsConflict, "no")
		}
		return nil
	}
	must.Succeed(t, b.exec.EndCopy(t.Context(), op.OpTime))
	b.before = nil
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"dropIndexes": "a", "index": "p"}`), ddl.Once))
	if l := must.Get(ddl.ReadLacking(t.Context(), b, "replicator", "link"))(t); len(l.Indexes) != 0 {
		t.Errorf("lacking %v", l.Indexes)
	}
}
