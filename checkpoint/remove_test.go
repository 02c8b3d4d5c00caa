package checkpoint

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// leavings returns the _ids of the documents that a link can have in each collection of the
// metadata.
func leavings(link string) map[string][]any {
	within := bson.D{{Key: "link", Value: link}, {Key: "part", Value: 0}}
	return map[string][]any{
		metadata.Links:     {link},
		metadata.Lanes:     {link + "/0", link + "/255", link + "/barrier"},
		metadata.Routes:    {link + "/d.c"},
		metadata.Copies:    {link + "/1/c", link + "/1/c/0"},
		metadata.Requests:  {link, link + "/d.c"},
		metadata.Control:   {link, link + "/1"},
		metadata.History:   {link},
		metadata.Deferred:  {within},
		metadata.Builds:    {within},
		metadata.Oversized: {within},
		metadata.Missing:   {link + "/d.c"},
		metadata.Renames:   {link},
		metadata.Cuts:      {link},
		metadata.Begins:    {link},
		metadata.Cutovers:  {link},
		metadata.Verified:  {link + "/d.c"},
		metadata.Diverged:  {link + "/0/d.c"},
		metadata.Terms:     {link},
		metadata.Guard:     {link, link + "/cleared"},
		metadata.Commands:  {within},
	}
}

// TestCollections: each collection of the metadata is in leavings, so that the tests of
// what a removed link leaves know of it.
func TestCollections(t *testing.T) {
	t.Parallel()
	file := must.Get(parser.ParseFile(token.NewFileSet(), "../internal/metadata/doc.go", nil, 0))(t)
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			names = append(names, must.Get(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value))(t))
		}
		return true
	})
	// Named locks, shares and agents are of no link.
	others := []string{metadata.Locks, metadata.LockPings, metadata.Shares, metadata.ShareMembers, metadata.AgentFailures}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(others, name) })
	slices.Sort(names)
	if known := slices.Sorted(maps.Keys(leavings("a"))); !slices.Equal(names, known) {
		t.Errorf("internal/metadata has %q, leavings %q", names, known)
	}
}

// remains is a set with the documents of the link "a" and of others whose names resemble it.
type remains struct {
	*target
	t *testing.T
}

// fill stores the documents of all links. Those that are there already stay.
func (r *remains) fill() {
	r.t.Helper()
	for _, link := range []string{"a", "a0", "ab", "a.b", "a-"} {
		for collection, ids := range leavings(link) {
			for _, id := range ids {
				doc := must.Get(bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "of", Value: "mirror"}}))(r.t)
				_, _ = r.Call(r.t.Context(), metadata.Majority(metadata.Write("replicator", "insert", collection, "documents", doc)))
			}
		}
	}
}

// check fails unless all documents of the other links are there and, of the link "a", only
// as many in each collection as left says.
func (r *remains) check(when string, left map[string]int) {
	r.t.Helper()
	for collection, ids := range leavings("a") {
		reply := must.Get(r.Call(r.t.Context(), metadata.Find("replicator", collection, 100, func(dst []byte) []byte { return dst })))(r.t)
		docs := slices.DeleteFunc(must.Get(metadata.Found(reply))(r.t), func(doc bson.Raw) bool { // that of the whole database
			id, _ := doc.Lookup("_id").StringValueOK()
			return collection == metadata.Terms && id == madeID
		})
		if got := len(docs) - 4*len(ids); got != left[collection] {
			r.t.Errorf("%s: %d documents of the link in %s, want %d: %v", when, got, collection, left[collection], docs)
		}
	}
}

// TestRemoved: a link that was removed, completely, up to any collection or by hand, leaves
// nothing that a later link of its name could find, except deferred index options and its
// last term. Links
// whose names resemble it keep their documents.
func TestRemoved(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	r := &remains{&target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}, t}
	s := link(t, r.target)
	created := map[string]int{metadata.Links: 1, metadata.Lanes: 3, metadata.Deferred: 1, metadata.Terms: 1}
	r.fill()
	must.Succeed(t, s.Remove(ctx))
	r.check("removed", map[string]int{metadata.Deferred: 1, metadata.Terms: 1})
	r.fill()
	must.Get(r.Call(ctx, metadata.Majority(metadata.Delete("replicator", metadata.Links, metadata.ByID("a")))))(t)
	must.Succeed(t, s.Create(ctx, first(2)))
	r.check("removed by hand and created", created)
	for n := 1; r.interrupted(s, n); n++ {
		must.Succeed(t, s.Create(ctx, first(2)))
		r.check("partly removed and created", created)
	}
	r.check("removed at last", map[string]int{metadata.Deferred: 1, metadata.Terms: 1})
}

// TestRemovedPart: Parts returns a part until all of its documents are removed.
func TestRemovedPart(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	r := &remains{&target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}, t}
	whole := must.Get(New(Config{Target: r, Link: "mirror"}))(t)
	part := must.Get(New(Config{Target: r, Link: "a", Of: "mirror"}))(t)
	for n := 1; r.interrupted(part, n); n++ {
		if !slices.Contains(must.Get(whole.Parts(ctx))(t), "a") {
			t.Errorf("after %d deletes the part is not listed", n)
		}
	}
	r.check("removed", map[string]int{metadata.Deferred: 1, metadata.Terms: 1})
}

// interrupted removes a link with all documents, but fails after n deletes. It returns
// false if these were all.
func (r *remains) interrupted(s *Store, n int) bool {
	r.t.Helper()
	r.fill()
	crash := errors.New("crash")
	r.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "delete" {
			n--
		}
		if n < 0 {
			return crash, false
		}
		return nil, false
	})
	err := s.Remove(r.t.Context())
	r.Intercept(nil)
	if err != nil {
		must.Fail(r.t, err, crash)
	}
	return err != nil
}

// TestTermsAreNotReused: the terms of a link continue those of the one of its name that was
// removed, with Remove or by hand.
func TestTermsAreNotReused(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	sim := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	s := link(t, sim)
	must.Succeed(t, s.Create(ctx, first(2)))
	for range 3 {
		must.Get(s.Acquire(ctx, 0))(t)
	}
	must.Succeed(t, s.Remove(ctx))
	must.Succeed(t, s.Create(ctx, first(2)))
	if h := must.Get(s.Acquire(ctx, 0))(t); h.Term() != 4 {
		t.Errorf("removed and created: term %d", h.Term())
	}
	must.Get(sim.Call(ctx, metadata.Majority(metadata.Delete("replicator", metadata.Links, metadata.ByID("a")))))(t)
	must.Succeed(t, s.Create(ctx, first(2)))
	if h := must.Get(s.Acquire(ctx, 0))(t); h.Term() != 5 {
		t.Errorf("removed by hand and created: term %d", h.Term())
	}
}
