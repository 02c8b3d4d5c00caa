package ddl_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// frozen is a process that is suspended, as by SIGSTOP, when it is about to send a
// command of some name.
type frozen struct {
	*server
	name string
	// reached is closed when it is suspended, thaw when it is to continue.
	reached, thaw chan struct{}
}

func (f *frozen) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if elems, err := cmd.Body.Elements(); err == nil && f.name != "" && elems[0].Key() == f.name {
		f.name = ""
		close(f.reached)
		<-f.thaw
	}
	return f.server.Call(ctx, cmd)
}

// process is a process that runs the link.
type process struct {
	*bench
	link *checkpoint.Link
	late []*ddl.LateError
}

func newProcess(t *testing.T, s *server, target mongo.Caller) *process {
	t.Helper()
	sc, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "link"})
	if err != nil {
		t.Fatal(err)
	}
	at := oplog.NewOpTime(50, 1, 1)
	first := checkpoint.State{Writers: 1, Applied: at, FetchFrom: at}
	if err := store.Create(t.Context(), first); err != nil && !errors.Is(err, checkpoint.ErrExists) {
		t.Fatal(err)
	}
	p := &process{bench: &bench{server: s}}
	if p.link, err = store.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.cfg = ddl.Config{
		Target: target, Fence: p.link, Scope: sc, Link: "link", UniqueIndexes: ddl.Relaxed,
		Observer: func(e event.Event) { p.events = append(p.events, e) },
		Late:     func(_ context.Context, e *ddl.LateError) { p.late = append(p.late, e) },
	}
	p.restart(t)
	return p
}

func (p *process) apply(t *testing.T, again ddl.Mode, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if err := p.exec.Apply(t.Context(), p.operation(t, line), again); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

// wholeState is all of a target: catalog, deferred specs and documents.
func (s *server) wholeState(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, c := range s.state(t, false).Collections {
		fmt.Fprintln(&out, c.NS, c.Type, c.Options, c.Indexes)
		if c.Type == memstore.TypeCollection && !c.NS.IsSystemViews() {
			docs := must.Get(catalog.ReadAll(t.Context(), s, c.NS.DB(), bsongen.FromJSON(t, fmt.Sprintf(`{"find": %q}`, c.NS.Collection()))))(t)
			fmt.Fprintln(&out, docs)
		}
	}
	deferred := must.Get(ddl.ReadDeferred(t.Context(), s, "replicator", "link"))(t)
	for _, h := range deferred {
		fmt.Fprintln(&out, "deferred", h.NS, h.Index, h.Fields, h.Absent, h.Spec)
	}
	return out.String()
}

const idIndex = `"idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}`

// frozenCases are all kinds of commands: the setup by the first process; the operation
// and the command before which it is suspended; the operations of the next process. kept
// is the version from which on the target itself prevents an effect of the late command:
// "" for all, "-" for none.
var frozenCases = []struct {
	name, command string
	before        []string
	op            string
	after         []string
	docs          string
	kept          string
}{
	{
		"create", "create", nil, `c db.$cmd {"create": "c", ` + idIndex + `}`,
		[]string{`c db.$cmd {"drop": "c"}`},
		"", "",
	},
	{
		"create, its end", "commitTransaction", nil, `c db.$cmd {"create": "c", ` + idIndex + `}`,
		[]string{`c db.$cmd {"drop": "c"}`},
		"", "",
	},
	{
		"drop", "drop",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"drop": "c"}`,
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "6.0",
	},
	{
		"drop, a view is there then", "drop",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"drop": "c"}`,
		[]string{`i db.system.views {"_id": "db.c", "viewOn": "x", "pipeline": []}`},
		"", "6.0",
	},
	{
		"dropDatabase", "drop",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"dropDatabase": 1}`,
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "6.0",
	},
	{
		"rename", "renameCollection",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"renameCollection": "db.c", "to": "db.d"}`,
		[]string{`c db.$cmd {"drop": "d"}`, `c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "6.0",
	},
	{
		"rename over", "renameCollection",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`, `c db.$cmd {"create": "d", ` + idIndex + `}`},
		`c db.$cmd {"renameCollection": "db.c", "to": "db.d", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}`,
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		"d", "6.0",
	},
	{
		"rename over, and back", "renameCollection",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`, `c db.$cmd {"create": "d", ` + idIndex + `}`},
		`c db.$cmd {"renameCollection": "db.c", "to": "db.d", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}`,
		[]string{`c db.$cmd {"renameCollection": "db.d", "to": "db.c"}`, `c db.$cmd {"create": "d", ` + idIndex + `}`},
		"d", "6.0",
	},
	{
		"dropIndexes, of a collection that is another one then", "dropIndexes",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`, `c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`},
		`c db.$cmd {"dropIndexes": "c", "index": "x_1"}`,
		[]string{
			`c db.$cmd {"drop": "c"}`, `c db.$cmd {"create": "c", ` + idIndex + `}`,
			`c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`,
		},
		"c", "6.0",
	},
	{
		"dropIndexes, of one that is built again", "dropIndexes",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`, `c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`},
		`c db.$cmd {"dropIndexes": "c", "index": "x_1"}`,
		[]string{`c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`},
		"c", "-",
	},
	{
		"createIndexes", "createIndexes",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`,
		[]string{`c db.$cmd {"drop": "c"}`, `c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "6.0",
	},
	{
		"the deferred spec of an index", "commitTransaction",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`,
		[]string{`c db.$cmd {"drop": "c"}`},
		"", "",
	},
	{
		"what is forgotten of a collection", "commitTransaction",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"drop": "c"}`,
		[]string{
			`c db.$cmd {"create": "c", ` + idIndex + `}`, `c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1", "unique": true}`,
		},
		"", "",
	},
	{
		"collMod, of a collection that is another one then", "collMod",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"collMod": "c", "validationLevel": "off"}`,
		[]string{`c db.$cmd {"drop": "c"}`, `c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "6.0",
	},
	{
		"collMod, followed by another one", "collMod",
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		`c db.$cmd {"collMod": "c", "validationLevel": "off"}`,
		[]string{`c db.$cmd {"collMod": "c", "validationLevel": "strict"}`},
		"c", "-",
	},
	{
		"drop of a view", "drop",
		[]string{`i db.system.views {"_id": "db.c", "viewOn": "x", "pipeline": []}`},
		`d db.system.views {"_id": "db.c"}`,
		[]string{`c db.$cmd {"create": "c", ` + idIndex + `}`},
		"c", "-",
	},
	{
		"change of a view", "collMod",
		[]string{`i db.system.views {"_id": "db.c", "viewOn": "x", "pipeline": []}`},
		`u db.system.views {"_id": "db.c", "viewOn": "y", "pipeline": []} {"_id": "db.c"}`,
		[]string{`u db.system.views {"_id": "db.c", "viewOn": "z", "pipeline": []} {"_id": "db.c"}`},
		"", "-",
	},
	{
		"create of a view", "create", nil, `i db.system.views {"_id": "db.c", "viewOn": "x", "pipeline": []}`,
		[]string{`d db.system.views {"_id": "db.c"}`},
		"", "-",
	},
}

// TestFrozen: a process is suspended between its check of the lease and the command.
// Another one takes the lease, executes the operation, and continues. When the first one
// resumes its command has no effect; or, where no server can prevent that, the process
// reports it.
func TestFrozen(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "6.0", "7.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			for _, c := range frozenCases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					s := connect(t, dialect)
					line := &frozen{server: s, reached: make(chan struct{}), thaw: make(chan struct{})}
					a := newProcess(t, s, line)
					a.apply(t, ddl.Once, c.before...)
					line.name = c.command
					op := a.operation(t, c.op)
					done := make(chan error, 1)
					go func() { done <- a.exec.Apply(t.Context(), op, ddl.Once) }()
					select {
					case <-line.reached:
					case err := <-done:
						t.Fatalf("it has not sent a %s: %v", c.command, err)
					}
					b := newProcess(t, s, s)
					b.apply(t, ddl.Maybe, c.op)
					b.apply(t, ddl.Once, c.after...)
					if c.docs != "" {
						s.must(t, "db", fmt.Sprintf(`{"insert": %q, "documents": [{"_id": 1}]}`, c.docs))
					}
					want := s.wholeState(t)
					close(line.thaw)
					err := <-done
					if !errors.Is(err, lease.ErrFenced) {
						t.Errorf("the first process: %v", err)
					}
					diff := cmp.Diff(want, s.wholeState(t))
					late, isLate := errors.AsType[*ddl.LateError](err)
					if kept := c.kept != "-" && dialect >= c.kept; kept {
						if diff != "" {
							t.Errorf("the late command has changed what the next process made (-want +got):\n%s", diff)
						}
						return
					}
					hit := []oplog.Namespace{"db.c"}
					if c.command == "renameCollection" {
						hit = append(hit, "db.d") // the renamed collection is there now
					}
					if diff != "" && (!isLate || len(a.late) != 1 || a.late[0] != late || !slices.Equal(late.Hit, hit)) {
						t.Errorf("a command that was late is not told of: %v, %v\n%s", err, a.late, diff)
					}
					if diff == "" {
						t.Error("the case shows nothing: no harm was done")
					}
				})
			}
		})
	}
}
