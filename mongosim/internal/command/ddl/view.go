package ddl

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

// checkView checks the arguments of a view.
func (a *createOptions) checkView(*dispatch.Request) error {
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
	return dispatch.EmptyArray
}

// createView writes the definition into system.views.
func createView(ops opwrite.Ops, args *createOptions) error {
	def := viewdef.Def{On: args.text("viewOn"), Pipeline: args.pipeline(), Collation: args.collation}
	if err := checkDefinition(args.ns, def); err != nil {
		return err
	}
	// The server makes the collection first, and keeps it if the view is refused.
	if _, err := needViews(ops, args.ns.DB()); err != nil {
		return err
	}
	if err := viewdef.CheckGraph(ops.View(), args.ns, def); err != nil {
		return err
	}
	return InsertView(ops, args.ns, viewdef.Document(args.ns, def))
}

// InsertView stores a view's definition, creating system.views if necessary.
func InsertView(ops opwrite.Ops, ns oplog.Namespace, def bson.Raw) error {
	views, err := needViews(ops, ns.DB())
	if err != nil {
		return err
	}
	_, err = ops.Insert(views, []bson.Raw{def}, nil)
	return err
}

// checkDefinition checks a view by itself.
func checkDefinition(ns oplog.Namespace, def viewdef.Def) error {
	if strings.HasPrefix(def.On, "$") || strings.HasPrefix(def.On, ".") || strings.ContainsRune(def.On, 0) {
		return servererr.New(servererr.InvalidNamespace, "invalid name for 'viewOn': %s", def.On)
	}
	stages, err := viewdef.Stages(def.Pipeline)
	if err != nil {
		return err
	}
	for i, stage := range stages {
		first := dispatch.FirstElem(stage)
		switch name := first.Name(); name {
		case "$out", "$merge":
			return servererr.New(servererr.OptionNotSupportedOnView, "Invalid pipeline for view %s :: caused by :: The aggregation stage %s "+
				"in location %d of the pipeline cannot be used in the view definition of %s because it writes to disk", ns, name, i, ns)
		case "$changeStream":
			return servererr.New(servererr.OptionNotSupportedOnView,
				"Invalid pipeline for view %s :: caused by :: $changeStream cannot be used in a view definition", ns)
		}
	}
	return viewdef.CheckPipeline(def.Pipeline)
}

// needViews returns the collection of a database's views, and creates it if
// necessary.
func needViews(ops opwrite.Ops, db string) (*storage.Collection, error) {
	ns := oplog.NewNamespace(db, "system.views")
	if coll, ok := ops.View().Collection(ns); ok {
		return coll, nil
	}
	return ops.Create(ns, dispatch.EmptyDocument, storage.IDIndex(2, nil))
}
