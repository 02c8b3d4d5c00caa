package ddl

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// A view is a document in the collection system.views of its database:
//
//	{_id: "DB.VIEW", viewOn: COLLECTION, pipeline: [...], collation: {...}}

// viewDef is the definition of a view on the target.
type viewDef struct {
	// on is the collection that the view reads, by the target's name. buckets reports
	// whether it is the buckets of a time-series collection.
	on      string
	buckets bool
	// pipeline is an array, collation nil where there is none.
	pipeline, collation bson.Raw
}

// viewName returns the view that a write to system.views concerns.
func viewName(op *oplog.Op) (oplog.Namespace, error) {
	id, ok := op.ID.StringValueOK()
	ns := oplog.Namespace(id)
	if !ok || !ns.IsCollection() || ns.DB() != op.NS.DB() {
		return "", op.Fault("o._id", fmt.Errorf("%w: no view of %s: %s", oplog.ErrBadField, op.NS.DB(), op.ID))
	}
	return ns, nil
}

// view applies a write to system.views. A definition that is invalid at the source is not
// created on the target: no client could use it, and a server refuses it. It is left out,
// with its definition recorded, until the log corrects or removes it.
func (s *step) view(ctx context.Context) (oplog.Namespace, error) {
	source, err := viewName(s.op)
	if err != nil {
		return s.op.NS, s.nameless(ctx)
	}
	ns, _ := s.target(source)
	left, err := s.leftView(ctx, ns)
	if err != nil {
		return ns, err
	}
	switch s.op.Kind {
	case oplog.KindDelete:
		if err := s.dropView(ctx, ns); err != nil || left == nil {
			return ns, err
		}
		return ns, s.takeView(ctx, left)
	case oplog.KindUpdate:
		return ns, s.updateView(ctx, source, ns, left)
	default:
		if why := faultOf(s.op.O); why != "" {
			var coll *catalog.Collection
			if s.mode == Copied {
				if coll, _, err = s.cfg.Catalog.Get(ctx, ns); err != nil {
					return ns, err
				}
			}
			return ns, s.becomeInvalid(ctx, s.leftViewOf(source, s.op.O, why), coll)
		}
		def, err := s.whole(source, split(s.op.O).without("_id"))
		if err == nil {
			err = s.createView(ctx, ns, def)
		}
		return ns, s.settleView(ctx, left, source, s.op.O, err)
	}
}

// nameless handles a write to a definition whose _id is not the name of a view. Changing
// a part of it does not make it valid.
func (s *step) nameless(ctx context.Context) error {
	id := bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", bsoncore.Value{Type: bsoncore.Type(s.op.ID.Type), Data: s.op.ID.Value}).Build())
	v := s.leftViewOf(s.op.NS, id, "its _id is no name of a view of the database: "+s.op.ID.String())
	if s.op.Kind == oplog.KindDelete {
		return s.takeView(ctx, v)
	}
	s.invalid(s.op.NS, v.Why)
	return s.leaveView(ctx, v)
}

// faultOf returns why the source considers a definition invalid, "" if it does not, or if
// there is a field in it that a newer server may define.
func faultOf(def bson.Raw) string {
	for _, f := range split(def) {
		if !slices.Contains([]string{"_id", "viewOn", "pipeline", "collation", "timeseries"}, f.name) {
			return ""
		}
	}
	return mongo.FaultOfView(def)
}

func (s *step) invalid(ns oplog.Namespace, why string) {
	s.log(slog.LevelWarn, "view is invalid at the source and left out", slog.String(keyNS, string(ns)), slog.String(keyWhat, why))
}

// becomeInvalid leaves out a view that the source cannot use any more, and removes it.
// The view of a copy may be newer; the log creates it again from the definition.
func (s *step) becomeInvalid(ctx context.Context, v *LeftView, coll *catalog.Collection) error {
	s.invalid(v.NS, v.Why)
	return s.replaceView(ctx, v, coll)
}

// whole is definition, for a definition that must be complete.
func (s *step) whole(source oplog.Namespace, f fields) (viewDef, error) {
	def, err := s.definition(source, f)
	if err == nil && def.on == "" {
		err = s.op.Fault("o.viewOn", oplog.ErrMissingField)
	}
	return def, err
}

// definition parses a definition and maps its names to the target's. Missing fields stay
// empty.
func (s *step) definition(source oplog.Namespace, f fields) (viewDef, error) {
	var def viewDef
	empty := bson.Raw{rawbson.MinSize, 0, 0, 0, 0}
	def.pipeline = empty
	for _, x := range f {
		e := rawbson.Elem{Type: x.value.Type, Value: x.value.Value}
		ok := true
		switch x.name {
		case "viewOn":
			def.on, ok = e.Text()
			ok = ok && def.on != ""
		case "pipeline":
			def.pipeline, ok = e.Array()
		case "collation":
			def.collation, ok = e.Document()
		case "timeseries": // as 4.9 wrote it
		default:
			return def, s.op.Fault("o."+x.name, fmt.Errorf("%w: a view with an unknown field", oplog.ErrUnsupported))
		}
		if !ok {
			return def, s.op.Fault("o."+x.name, fmt.Errorf("%w: it is %s", oplog.ErrBadField, x.value))
		}
	}
	on := oplog.NewNamespace(source.DB(), def.on)
	if def.buckets = on.IsBuckets(); def.buckets {
		return def, nil
	}
	ns, _ := s.target(source)
	if def.on != "" {
		var err error
		if def.on, err = s.reads("o.viewOn", source, ns, on); err != nil {
			return def, err
		}
	}
	for _, name := range readFrom(def.pipeline) {
		on := oplog.NewNamespace(source.DB(), name)
		shown, err := s.reads("o.pipeline", source, ns, on)
		if err == nil && shown != name {
			err = s.op.Fault("o.pipeline", fmt.Errorf("%w: the view %s reads %s, which is %s.%s on the target; exclude the view",
				oplog.ErrUnsupported, source, on, ns.DB(), shown))
		}
		if err != nil {
			return def, err
		}
	}
	return def, nil
}

// reads returns the name, in the view's database of the target, of a collection that a
// view reads. Field is the place of the name in the definition.
func (s *step) reads(field string, source, ns, on oplog.Namespace) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", s.op.Fault(field, fmt.Errorf("%w: the view %s reads %s, which %s", oplog.ErrUnsupported, source, on, fmt.Sprintf(format, args...)))
	}
	to, in := targetIn(s.cfg.Names, on)
	switch {
	case in && to.DB() != ns.DB():
		return refuse("goes to the database %s of the target, and the view to %s; map both to one, or exclude the view", to.DB(), ns.DB())
	case in:
		return to.Collection(), nil
	}
	if other, taken := s.cfg.Names.Source(oplog.NewNamespace(ns.DB(), on.Collection())); taken {
		return refuse("is not mirrored, and %s has its name on the target; exclude the view", other)
	}
	// On the target the view returns less, or reads another collection with that name.
	s.log(slog.LevelWarn, "view reads a collection that is not mirrored", slog.String(keyNS, string(ns)), slog.String(keyReads, string(on)))
	return on.Collection(), nil
}

// createView creates a view. That of a time-series collection is created with its
// buckets.
func (s *step) createView(ctx context.Context, ns oplog.Namespace, def viewDef) error {
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	switch {
	case err != nil:
		return err
	case def.buckets && exists && coll.Type == catalog.TypeTimeseries:
		return nil
	case def.buckets && s.mode != Copied:
		return s.diverged(ns, "there is no time-series collection for its view")
	case def.buckets:
		s.tolerate(ns, "there is no such time-series collection")
		return nil
	case exists && (s.mode == Copied && !s.misplaced(coll) || s.mode == Maybe && coll.Type == catalog.TypeView):
		if s.mode == Copied {
			s.tolerate(ns, "there is a "+coll.Type.String())
		}
		return nil
	case exists:
		return s.diverged(ns, "there is a %s already", coll.Type)
	}
	f := fields{{"viewOn", stringValue(def.on)}, {"pipeline", bson.RawValue{Type: bson.TypeArray, Value: def.pipeline}}}
	if def.collation != nil {
		f = append(f, field{"collation", documentValue(def.collation)})
	}
	if _, err := s.send(ctx, change{db: ns.DB(), name: "create", first: ns.Collection(), rest: f}); err != nil {
		return s.unlessLater(ns, err)
	}
	return s.cfg.Catalog.Refresh(ctx, ns)
}

// misplaced reports whether a collection has a name under which only a view can be.
func (s *step) misplaced(coll *catalog.Collection) bool {
	return s.placed() && coll.Type == catalog.TypeCollection
}

// unlessLater ignores that a view is incompatible with others: in a copy those may be
// newer. At the source they are compatible, so the log changes or drops this one before.
func (s *step) unlessLater(ns oplog.Namespace, err error) error {
	if s.mode == Copied && says(err, servererr.IsViewClash) {
		s.tolerate(ns, err.Error())
		return nil
	}
	return err
}

// dropView removes a view. A missing one was that of a time-series collection, which was
// dropped with its buckets.
func (s *step) dropView(ctx context.Context, ns oplog.Namespace) error {
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	switch {
	case err != nil:
		return err
	case !exists || coll.Type == catalog.TypeTimeseries:
		return nil
	case coll.Type == catalog.TypeView:
		return s.dropNow(ctx, ns)
	case s.mode == Copied && !s.misplaced(coll):
		s.tolerate(ns, "it is a "+coll.Type.String())
		return nil
	}
	return s.diverged(ns, "it is a %s", coll.Type)
}

// updateView changes the definition of a view. Left is the view if it is left out.
func (s *step) updateView(ctx context.Context, source, ns oplog.Namespace, left *LeftView) error {
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil {
		return err
	}
	form, err := update.Classify(s.op.O)
	if err != nil {
		return s.op.Fault("o", err)
	}
	switch {
	case exists && coll.Type == catalog.TypeTimeseries:
		return nil // the collMod of its buckets does it
	case exists && coll.Type == catalog.TypeCollection && s.mode == Copied && !s.misplaced(coll):
		s.tolerate(ns, "it is a collection")
		return nil
	case exists && coll.Type == catalog.TypeCollection:
		return s.diverged(ns, "it is a collection")
	case !exists && form != update.FormReplacement && left == nil:
		return s.absent(ns, "there is no such view")
	}
	// A view that is replaced and missing was invalid before, or refused.
	post := s.op.O
	switch {
	case form == update.FormReplacement:
	case exists:
		post, err = update.Apply(s.present(coll), s.op.O)
	default:
		post, err = update.Apply(left.Def, s.op.O)
	}
	if err != nil {
		return s.op.Fault("o", err)
	}
	if why := faultOf(post); why != "" {
		if exists {
			post = s.sourceWords(ns, coll, post)
		}
		return s.becomeInvalid(ctx, s.leftViewOf(source, post, why), coll)
	}
	if !exists {
		def, err := s.whole(source, split(post).without("_id"))
		if err == nil {
			err = s.createView(ctx, ns, def)
		}
		return s.settleView(ctx, left, source, post, err)
	}
	err = s.redefineView(ctx, source, ns, coll, form, post)
	return s.settleView(ctx, left, source, s.sourceWords(ns, coll, post), err)
}

// redefineView gives an existing view the definition post.
func (s *step) redefineView(ctx context.Context, source, ns oplog.Namespace, coll *catalog.Collection, form update.Form, post bson.Raw) error {
	def, err := s.changed(source, coll, form, post)
	if err != nil {
		return err
	}
	if def.buckets {
		if s.mode != Copied {
			return s.diverged(ns, "it is a %s, and no time series", coll.Type)
		}
		s.tolerate(ns, "it is a "+coll.Type.String())
		return nil
	}
	options := split(coll.Options)
	had, _ := options.get("collation")
	if !bytes.Equal(had.Value, def.collation) {
		// Only a new view can have another collation.
		if err := s.dropNow(ctx, ns); err != nil {
			return err
		}
		return s.createView(ctx, ns, def)
	}
	f := fields{{"viewOn", stringValue(def.on)}, {"pipeline", bson.RawValue{Type: bson.TypeArray, Value: def.pipeline}}}
	if _, err := s.send(ctx, change{db: ns.DB(), name: "collMod", first: ns.Collection(), rest: f, coll: coll}); err != nil {
		return s.unlessLater(ns, err)
	}
	return s.cfg.Catalog.Refresh(ctx, ns)
}

// present returns the target's definition of the view.
func (s *step) present(coll *catalog.Collection) bson.Raw {
	return append(fields{{"_id", s.op.ID}}, split(coll.Options)...).document()
}

// changed returns the definition that results from an update, which is post. Unless it is
// a replacement, it changes the target's definition, in which viewOn is mapped already.
func (s *step) changed(source oplog.Namespace, coll *catalog.Collection, form update.Form, post bson.Raw) (viewDef, error) {
	f := split(post).without("_id")
	if form == update.FormReplacement {
		return s.whole(source, f)
	}
	before, _ := split(coll.Options).get("viewOn")
	after, _ := f.get("viewOn")
	if !before.Equal(after) {
		return s.whole(source, f)
	}
	def, err := s.definition(source, f.without("viewOn"))
	if err != nil {
		return def, err
	}
	def.on, _ = after.StringValueOK()
	return def, nil
}

// maxNested limits how deep pipelines in pipelines are followed: more than any server
// accepts.
const maxNested = 50

// readFrom returns the collections and views that the stages of a pipeline name.
func readFrom(pipeline bson.Raw) []string { return appendReads(nil, pipeline, 0) }

func appendReads(names []string, array bson.Raw, depth int) []string {
	stages := rawbson.NewIter(array)
	for depth < maxNested && stages.Next() {
		doc, _ := stages.Document()
		stage := rawbson.NewIter(doc)
		if !stage.Next() {
			continue
		}
		spec, isDoc := stage.Document()
		switch stage.Name() {
		case "$unionWith", "$lookup", "$graphLookup":
			if text, ok := stage.Text(); ok {
				names = append(names, text)
			}
			for _, name := range []string{"from", "coll"} {
				if text := textOf(spec, name); text != "" {
					names = append(names, text)
				}
			}
			inner, _ := rawbson.Lookup(spec, "pipeline")
			nested, _ := inner.Array()
			names = appendReads(names, nested, depth+1)
		case "$facet":
			if !isDoc {
				continue
			}
			parts := rawbson.NewIter(spec)
			for parts.Next() {
				nested, _ := parts.Array()
				names = appendReads(names, nested, depth+1)
			}
		}
	}
	return names
}
