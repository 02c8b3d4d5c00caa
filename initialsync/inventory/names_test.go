package inventory_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

func (m *model) take(names scope.Config) (*inventory.Inventory, error) {
	return inventory.Take(m.t.Context(), inventory.Config{Source: m, Scope: newScope(m.t, names), Log: m, Begin: m.begin})
}

// TestNames plays the history of a source: before Begin (the line "begin"), until the
// collections are listed ("list", for one database or all that are not yet listed), and
// until their details are read. It shows the collections to copy, as "name number
// (listed name)": collections are numbered as they are created.
func TestNames(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/names", func(t *testing.T, d *datadriven.TestData) string {
		m := newModel(t)
		for line := range strings.Lines(d.Input) {
			if !m.do(strings.TrimSpace(line)) {
				d.Fatalf(t, "it makes no sense to %s", line)
			}
		}
		var names scope.Config
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "include":
				names.Include = arg.Vals
			case "users":
				names.UsersAndRoles = true
			}
		}
		inv, err := m.take(names)
		if err != nil {
			return err.Error() + "\n"
		}
		var out strings.Builder
		for _, c := range inv.Collections {
			fmt.Fprintf(&out, "%s %d", c.NS, c.UUID[15])
			for ns, u := range m.byName {
				if u == c.UUID && ns != c.NS {
					fmt.Fprintf(&out, " (%s)", ns)
				}
			}
			out.WriteByte('\n')
		}
		for _, v := range inv.Views {
			fmt.Fprintf(&out, "view %s\n", v.Lookup("_id").StringValue())
		}
		if out.Len() == 0 {
			return "nothing\n"
		}
		return out.String()
	})
}

// TestNamesModel: whatever happens to the names of a source before Begin, between it
// and the lists, between those of two databases, and after them: exactly the
// collections that existed at Begin and still exist are found, with their names at
// Begin. The same applies to views whose name no collection has had since.
func TestNamesModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t)
		names := []string{"a.x", "a.y", "a.z", "a.tmp.agg_out.1", "a.w", "b.x", "b.y", "out.x", "out.y"}
		step := rapid.Custom(func(rt *rapid.T) string {
			word := rapid.SampledFrom([]string{
				"create", "create", "create", "rename", "rename", "rename", "rename", "drop", "view", "view", "unview",
				"txn", "more", "prepare", "commit", "commit", "abort", "whole", "note",
			}).Draw(rt, "word")
			return word + " " + rapid.SampledFrom(names).Draw(rt, "name") + " " + rapid.SampledFrom(names).Draw(rt, "other")
		})
		life := func(what string) {
			for _, line := range rapid.SliceOfN(step, 0, 25).Draw(rt, what) {
				m.do(line)
			}
		}
		life("before")
		m.do("begin")
		life("until the first list")
		m.do("list " + rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "first"))
		life("until the second list")
		for _, db := range []string{"a", "b", "out"} {
			m.do("list " + db)
		}
		life("after the lists")
		want := map[oplog.UUID]oplog.Namespace{}
		for _, u := range m.byName {
			if ns, was := m.atBegin[u]; was && ns.DB() != "out" {
				want[u] = ns
			}
		}
		inv := must.Get(m.take(scope.Config{Exclude: []string{"out"}}))(rt)
		got := map[oplog.UUID]oplog.Namespace{}
		for _, c := range inv.Collections {
			got[c.UUID] = c.NS
		}
		if !maps.Equal(got, want) || len(got) != len(inv.Collections) {
			rt.Fatalf("found %v, want %v", got, want)
		}
		m.checkViews(rt, inv.Views)
	})
}

// checkViews compares the views that were found with those that were listed.
func (m *model) checkViews(rt *rapid.T, found []bson.Raw) {
	listed := map[oplog.Namespace]bool{}
	for db, docs := range m.lists {
		for _, d := range docs {
			if d.Lookup("type").StringValue() == "view" {
				listed[oplog.NewNamespace(db, d.Lookup("name").StringValue())] = true
			}
		}
	}
	var views []oplog.Namespace
	for _, v := range found {
		views = append(views, oplog.Namespace(v.Lookup("_id").StringValue()))
	}
	for ns := range listed {
		has := slices.Contains(views, ns)
		u, lives := m.byName[ns]
		switch {
		case ns.DB() == "out":
			if has {
				rt.Fatalf("the view %s is not mirrored", ns)
			}
		case has && m.used[ns]:
			rt.Fatalf("the view %s is made now, and a collection had its name", ns)
		case !has && !m.used[ns]:
			rt.Fatalf("the view %s is not made", ns)
		case !has && lives && u.IsZero() && !m.inserted[ns]:
			rt.Fatalf("the view %s is left to the log, which does not make it", ns)
		}
	}
	for _, ns := range views {
		if !listed[ns] {
			rt.Fatalf("the view %s was not listed", ns)
		}
	}
}

// TestDuplicate: two collections cannot have had the same name.
func TestDuplicate(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	for _, line := range []string{"create db.a", "begin", "rename db.a db.b"} {
		m.do(line)
	}
	u := m.newUUID()
	m.byName["db.a"] = u // without an entry in the oplog
	_, err := m.take(scope.Config{})
	e, ok := errors.AsType[*inventory.DuplicateError](err)
	if !ok || e.NS != "db.a" || !strings.Contains(err.Error(), "db.b") || !strings.Contains(err.Error(), u.String()) {
		t.Errorf("%v", err)
	}
}
