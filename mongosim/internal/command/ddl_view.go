package command

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// checkView checks the arguments of a view.
func (a *createOptions) checkView(*request) error {
	if !a.has("viewOn") {
		if a.has("pipeline") {
			return servererr.New(servererr.InvalidOptions, "'pipeline' requires 'viewOn' to also be specified")
		}
		return nil
	}
	switch {
	case a.flag("capped") || a.has("timeseries"):
		return servererr.New(servererr.InvalidOptions, "the 'viewOn' option cannot be used with 'capped' or 'timeseries'")
	case a.text("viewOn") == "":
		return servererr.New(servererr.BadValue, "'viewOn' cannot be empty.'")
	case strings.HasPrefix(a.ns.Collection(), "system."):
		return servererr.New(servererr.InvalidNamespace,
			"View name cannot start with 'system.', which is reserved for system namespaces")
	}
	return nil
}

// pipeline is the pipeline of a view, by default without a stage.
func (a *createOptions) pipeline() bson.Raw {
	if v, ok := a.given["pipeline"]; ok {
		return v.Value
	}
	return emptyArray
}

// createView writes the definition into system.views.
func (r *request) createView(ops opwrite.Ops, args *createOptions) error {
	def := viewDef{on: args.text("viewOn"), pipeline: args.pipeline(), collation: args.collation}
	if err := checkDefinition(args.ns, def); err != nil {
		return err
	}
	// The server makes the collection first, and keeps it if the view is refused.
	if _, err := needViews(ops, args.ns.DB()); err != nil {
		return err
	}
	if err := checkViewGraph(ops.View(), args.ns, def); err != nil {
		return err
	}
	return insertView(ops, args.ns, viewDocument(args.ns, def))
}

// insertView stores a view's definition, making system.views if need be.
func insertView(ops opwrite.Ops, ns oplog.Namespace, def bson.Raw) error {
	views, err := needViews(ops, ns.DB())
	if err != nil {
		return err
	}
	_, err = ops.Insert(views, []bson.Raw{def}, nil)
	return err
}

// checkDefinition checks what can be told of a view alone.
func checkDefinition(ns oplog.Namespace, def viewDef) error {
	if strings.HasPrefix(def.on, "$") || strings.HasPrefix(def.on, ".") || strings.ContainsRune(def.on, 0) {
		return servererr.New(servererr.InvalidNamespace, "invalid name for 'viewOn': %s", def.on)
	}
	stages, err := arrayOfDocuments(def.pipeline)
	if err != nil {
		return err
	}
	for i, stage := range stages {
		first := firstElem(stage)
		switch name := first.Name(); name {
		case "$out", "$merge":
			return servererr.New(servererr.OptionNotSupportedOnView, "Invalid pipeline for view %s :: caused by :: The aggregation stage %s "+
				"in location %d of the pipeline cannot be used in the view definition of %s because it writes to disk", ns, name, i, ns)
		case "$changeStream":
			return servererr.New(servererr.OptionNotSupportedOnView,
				"Invalid pipeline for view %s :: caused by :: $changeStream cannot be used in a view definition", ns)
		}
	}
	return checkViewPipeline(def.pipeline)
}

// needViews returns the collection of a database's views, and makes it if need be.
func needViews(ops opwrite.Ops, db string) (*storage.Collection, error) {
	ns := oplog.NewNamespace(db, "system.views")
	if coll, ok := ops.View().Collection(ns); ok {
		return coll, nil
	}
	return ops.Create(ns, emptyDocument, storage.IDIndex(2, nil))
}

// viewDocument is a definition as system.views holds it.
func viewDocument(ns oplog.Namespace, def viewDef) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "_id", string(ns))
	doc = bsoncore.AppendStringElement(doc, "viewOn", def.on)
	doc = bsoncore.AppendArrayElement(doc, "pipeline", def.pipeline)
	if def.collation != nil {
		doc = bsoncore.AppendDocumentElement(doc, "collation", def.collation)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// viewGraph is the views of a database while one of them is about to change.
type viewGraph struct {
	db    string
	views map[string]viewDef
	// path are the names that lead to the one that is looked at.
	path []string
	// heights are how many views stand on one another from here down, the
	// collection included.
	heights map[string]int
}

// checkViewGraph refuses a view that stands on itself, too high, or on a view of
// another collation, and one that a view of another collation stands on.
func checkViewGraph(v storage.View, ns oplog.Namespace, def viewDef) error {
	all, err := viewsOf(v, ns.DB())
	if err != nil {
		return err
	}
	g := viewGraph{db: ns.DB(), views: map[string]viewDef{}, heights: map[string]int{}}
	for _, view := range all {
		g.views[view.ns.Collection()] = view.viewDef
	}
	self := ns.Collection()
	g.views[self] = def
	for _, on := range g.standsOn(self) {
		if other, ok := g.views[on]; ok && string(other.collation) != string(def.collation) && !other.timeseries {
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
	if height+above > maxViewDepth {
		return errViewDepth()
	}
	return nil
}

func errViewDepth() error {
	return servererr.New(servererr.ViewDepthLimitExceeded, "View depth limit exceeded; maximum depth is %d", maxViewDepth)
}

// standsOn are the names that a view reads from; nil for a collection.
func (g *viewGraph) standsOn(name string) []string {
	def, ok := g.views[name]
	if !ok {
		return nil
	}
	return append(readFrom(def.pipeline, 0), def.on)
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
		e := firstElem(stage)
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

// height follows what a view stands on, and refuses a way back to start.
func (g *viewGraph) height(name, start string) (int, error) {
	if h, ok := g.heights[name]; ok {
		return h, nil
	}
	if len(g.path) > 0 && name == start {
		return 0, g.cycle(start)
	}
	if len(g.path) > maxViewDepth {
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

func (g *viewGraph) cycle(start string) error {
	path := append(slices.Clone(g.path), start)
	slices.Reverse(path)
	for i, name := range path {
		path[i] = g.db + "." + name
	}
	return servererr.New(servererr.GraphContainsCycle, "View cycle detected: %s", strings.Join(path, " => "))
}

// above is how many views stand on one another upwards from here, without it.
func (g *viewGraph) above(name string, depth int) (int, error) {
	if depth > maxViewDepth {
		return 0, errViewDepth()
	}
	highest := 0
	for other, def := range g.views {
		if other == name || !slices.Contains(g.standsOn(other), name) {
			continue
		}
		if string(def.collation) != string(g.views[name].collation) {
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
