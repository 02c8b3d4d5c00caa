package viewdef

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Document returns a definition as it is stored in system.views.
func Document(ns oplog.Namespace, def Def) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "_id", string(ns))
	doc = bsoncore.AppendStringElement(doc, "viewOn", def.On)
	doc = bsoncore.AppendArrayElement(doc, "pipeline", def.Pipeline)
	if def.Collation != nil {
		doc = bsoncore.AppendDocumentElement(doc, "collation", def.Collation)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// graph is the views of a database while one of them is about to change.
type graph struct {
	db    string
	views map[string]Def
	// path are the names that lead to the current one.
	path []string
	// heights are the depths of nested views from here down, the collection
	// included.
	heights map[string]int
}

// CheckGraph refuses cycles, too deep nesting, and views on one another with
// different collations.
func CheckGraph(v storage.View, ns oplog.Namespace, def Def) error {
	all, err := All(v, ns.DB())
	if err != nil {
		return err
	}
	g := graph{db: ns.DB(), views: map[string]Def{}, heights: map[string]int{}}
	for _, view := range all {
		g.views[view.NS.Collection()] = view.Def
	}
	self := ns.Collection()
	g.views[self] = def
	for _, on := range g.standsOn(self) {
		if other, ok := g.views[on]; ok && string(other.Collation) != string(def.Collation) && !other.Timeseries {
			return servererr.New(servererr.OptionNotSupportedOnView, "View %s has conflicting collation with view %s.%s", ns, g.db, on)
		}
	}
	height, err := g.height(self, self)
	if err != nil {
		return err
	}
	above, err := g.above(self, 0)
	if err != nil {
		return err
	}
	if height+above > MaxDepth {
		return errViewDepth()
	}
	return nil
}

func errViewDepth() error {
	return servererr.New(servererr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", MaxDepth)
}

// standsOn are the names that a view reads from; nil for a collection.
func (g *graph) standsOn(name string) []string {
	def, ok := g.views[name]
	if !ok {
		return nil
	}
	return append(readFrom(def.Pipeline, 0), def.On)
}

// maxNestedStages is how deep stages are followed into pipelines of their own.
const maxNestedStages = 20

// readFrom are the collections and views that the stages of a pipeline name.
func readFrom(array bson.Raw, depth int) (names []string) {
	if depth > maxNestedStages {
		return nil
	}
	stages := rawbson.NewIter(array)
	for stages.Next() {
		stage, _ := stages.Document()
		e := arg.First(stage)
		spec, isDoc := e.Document()
		switch name := e.Name(); {
		case name == "$unionWith" && !isDoc:
			if text, ok := e.Text(); ok {
				names = append(names, strings.Clone(text))
			}
		case name == "$lookup" || name == "$graphLookup" || name == "$unionWith":
			for _, field := range []string{"from", "coll"} {
				if text, ok := arg.Text(spec, field); ok {
					names = append(names, strings.Clone(text))
				}
			}
			inner, _ := rawbson.Lookup(spec, "pipeline")
			nested, _ := inner.Array()
			names = append(names, readFrom(nested, depth+1)...)
		case name == "$facet":
			parts := rawbson.NewIter(spec)
			for parts.Next() {
				nested, _ := parts.Array()
				names = append(names, readFrom(nested, depth+1)...)
			}
		}
	}
	return names
}

// height follows the sources of a view, and refuses a cycle through start.
func (g *graph) height(name, start string) (int, error) {
	if h, ok := g.heights[name]; ok {
		return h, nil
	}
	if len(g.path) > 0 && name == start {
		return 0, g.cycle(start)
	}
	if len(g.path) > MaxDepth {
		return 0, errViewDepth()
	}
	g.path = append(g.path, name)
	highest := 0
	for _, on := range g.standsOn(name) {
		h, err := g.height(on, start)
		if err != nil {
			return 0, err
		}
		if _, isView := g.views[on]; isView {
			highest = max(highest, h)
		}
	}
	g.path = g.path[:len(g.path)-1]
	g.heights[name] = highest + 1
	return highest + 1, nil
}

func (g *graph) cycle(start string) error {
	path := append(slices.Clone(g.path), start)
	slices.Reverse(path)
	for i, name := range path {
		path[i] = g.db + "." + name
	}
	return servererr.New(servererr.GraphContainsCycle, "View cycle detected: %s", strings.Join(path, " => "))
}

// above is the depth of the views nested on this one, without it.
func (g *graph) above(name string, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, errViewDepth()
	}
	highest := 0
	for other, def := range g.views {
		if other == name || !slices.Contains(g.standsOn(other), name) {
			continue
		}
		if string(def.Collation) != string(g.views[name].Collation) {
			return 0, servererr.New(servererr.OptionNotSupportedOnView,
				"View %s.%s has a collation that does not match the collation of view %s.%s", g.db, name, g.db, other)
		}
		h, err := g.above(other, depth+1)
		if err != nil {
			return 0, err
		}
		highest = max(highest, h+1)
	}
	return highest, nil
}
