package ddl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// LeftView is a view that the target does not have: its definition is invalid at the
// source, or the target refused it. It is stored in the metadata, with
// the deferred specs, so that every process of the link can report it, and can create the
// view once the log changes a part of its definition.
type LeftView struct {
	// NS is its name on the target, Source that at the source. If the definition's _id is
	// not the name of a view, they are those of system.views.
	NS, Source oplog.Namespace
	// ID is such an _id as text, empty where it is a name.
	ID string
	// Why describes the fault of the definition, or the target's refusal.
	Why string
	// Def is its definition as the source has it.
	Def bson.Raw
}

// Name returns the view's name at the source.
func (v *LeftView) Name() string {
	if v.ID != "" {
		return string(v.Source) + " " + v.ID
	}
	return string(v.Source)
}

// Lacking lists mirrored views and indexes of a link's source, and options of its collections, that the
// target does not have at all.
type Lacking struct {
	Views   []LeftView
	Indexes Specs
	Options []LeftOption
}

// ReadLacking reads which views, indexes and options a target lacks.
func ReadLacking(ctx context.Context, target mongo.Caller, metaDB, link string) (Lacking, error) {
	docs, err := findDeferred(ctx, target, metaDB, func(dst []byte) []byte {
		absent := bsoncore.NewDocumentBuilder().AppendBoolean("absent", true).Build()
		view := bsoncore.NewDocumentBuilder().AppendBoolean(fieldView, true).Build()
		either := bsoncore.NewArrayBuilder().AppendDocument(absent).AppendDocument(view)
		for _, name := range clientsOptions {
			either.AppendDocument(bsoncore.NewDocumentBuilder().AppendString("deferred", name).Build())
		}
		return bsoncore.AppendArrayElement(ofLink(link)(dst), "$or", either.Build())
	})
	if err != nil {
		return Lacking{}, err
	}
	var l Lacking
	for _, doc := range docs {
		if isView(doc) {
			v, err := parseLeftView(doc)
			if err != nil {
				return Lacking{}, deferredFault(metaDB, doc, err)
			}
			l.Views = append(l.Views, v)
			continue
		}
		h, err := parseDeferred(doc)
		if err != nil {
			return Lacking{}, deferredFault(metaDB, doc, err)
		}
		l.Options = append(l.Options, h.leftOptions()...)
		if h.Absent {
			l.Indexes = append(l.Indexes, h)
		}
	}
	return l, nil
}

// fieldView is true in the _id of a view that is left out.
const fieldView = "_id.view"

func isView(doc bson.Raw) bool {
	view, _ := doc.Lookup("_id", "view").BooleanOK()
	return view
}

func parseLeftView(doc bson.Raw) (LeftView, error) {
	r := metadata.NewReader(doc)
	id, _ := r.Doc("_id", false)
	v := LeftView{
		NS: oplog.Namespace(id.Text("ns")), ID: id.Text("index"),
		Source: oplog.Namespace(r.Text("source")), Why: r.Text("why"), Def: r.Raw("spec"),
	}
	r.Take(id)
	if v.Def == nil || !v.NS.IsCollection() || !v.Source.IsCollection() {
		r.Fault("spec", "the definition of a view")
	}
	return v, r.Err()
}

// leftViews reads the views of the source's database that are left out.
func (s *step) leftViews(ctx context.Context, which filter) ([]LeftView, error) {
	docs, err := findDeferred(ctx, s.reader, s.cfg.MetaDB, func(dst []byte) []byte {
		return bsoncore.AppendBooleanElement(which(dst), fieldView, true)
	})
	list := make([]LeftView, len(docs))
	for i := 0; i < len(docs) && err == nil; i++ {
		if list[i], err = parseLeftView(docs[i]); err != nil {
			err = deferredFault(s.cfg.MetaDB, docs[i], err)
		}
	}
	return list, err
}

// leftView returns the operation's view, if it is left out.
func (s *step) leftView(ctx context.Context, ns oplog.Namespace) (*LeftView, error) {
	list, err := s.leftViews(ctx, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(s.deferredFilter(ns)(dst), "_id.index", "")
	})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return &list[0], nil
}

// leaveView records that a view is left out, in place of an earlier record of it.
func (s *step) leaveView(ctx context.Context, v *LeftView) error {
	err := s.put(ctx, metadata.Deferred, s.leftViewID(v), func(dst []byte) []byte {
		dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, make([]byte, len(oplog.UUID{})))
		dst = bsoncore.AppendStringElement(dst, "source", string(v.Source))
		dst = bsoncore.AppendStringElement(dst, "why", v.Why)
		return metadata.AppendRaw(dst, "spec", v.Def)
	})
	if err != nil {
		return fmt.Errorf("note that the view %s is left out: %w", v.Name(), err)
	}
	return nil
}

// leftViewID appends the _id of a view that is left out.
func (s *step) leftViewID(v *LeftView) filter {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "link", s.cfg.Link)
			dst = bsoncore.AppendStringElement(dst, "ns", string(v.NS))
			dst = bsoncore.AppendStringElement(dst, "index", v.ID)
			return bsoncore.AppendBooleanElement(dst, "view", true)
		})
	}
}

// takeView deletes the record of a view that was left out.
func (s *step) takeView(ctx context.Context, v *LeftView) error {
	return s.release(ctx, s.leftViewID(v))
}

// takeViews deletes the records of a database of the source, as far as they are in scope.
func (s *step) takeViews(ctx context.Context, db string) error {
	list, err := s.leftViews(ctx, ofLink(s.cfg.Link))
	for i := 0; i < len(list) && err == nil; i++ {
		if v := &list[i]; v.Source.DB() == db {
			if _, in := s.cfg.Scope.Target(v.Source); in {
				err = s.takeView(ctx, v)
			}
		}
	}
	return err
}

// leftViewOf returns the LeftView for a definition.
func (e *Executor) leftViewOf(source oplog.Namespace, def bson.Raw, why string) *LeftView {
	v := &LeftView{Source: source, Why: why, Def: def}
	if v.NS, _ = e.target(source); v.NS == "" {
		v.NS = source
	}
	if source.IsSystemViews() {
		v.ID = def.Lookup("_id").String()
	}
	return v
}

// LeaveView records that a view of a database of the source was not copied. It is
// idempotent.
func (e *Executor) LeaveView(ctx context.Context, db string, def bson.Raw, why string) error {
	s := e.step(&oplog.Op{Kind: oplog.KindInsert, NS: oplog.NewNamespace(db, "system.views"), O: def, ID: def.Lookup("_id")}, Copied)
	source, err := viewName(s.op)
	if err != nil {
		source = s.op.NS
	}
	if err := s.leaveView(ctx, e.leftViewOf(source, def, why)); err != nil {
		return fmt.Errorf("ddl: %w", err)
	}
	return nil
}

// settleView records the outcome for a view that now has the definition def: err is nil if it was created, and left is nil if it was
// not left out. A view that the target refuses is left out: every attempt would meet its definition. What the configuration of the link
// or other views are the reason of is an error, unless the target had refused its earlier definition; if the source could not use that
// one, the view is treated as new.
func (s *step) settleView(ctx context.Context, left *LeftView, source oplog.Namespace, def bson.Raw, err error) error {
	switch {
	case err == nil && left == nil:
		return nil
	case err == nil:
		_, exists, err := s.cfg.Catalog.Get(ctx, left.NS)
		if err != nil {
			return err
		}
		if exists {
			return s.takeView(ctx, left)
		}
		left.Def = def
		return s.leaveView(ctx, left)
	case left != nil && refusesView(err) && faultOf(left.Def) == "":
		s.log(slog.LevelWarn, "view still cannot be made on the target", slog.String(keyNS, string(left.NS)), slog.Any(keyError, err))
	case !s.cfg.Copier && !isTyped(err) && says(err, servererr.IsViewRefused):
		left = s.leftViewOf(source, def, "")
		s.log(slog.LevelWarn, "view that the target refuses is left out", slog.String(keyNS, string(left.NS)), slog.Any(keyError, err))
	default:
		return err
	}
	left.Def, left.Why = def, err.Error()
	coll, _, err := s.cfg.Catalog.Get(ctx, left.NS)
	if err != nil {
		return err
	}
	return s.replaceView(ctx, left, coll)
}

// replaceView records that a view is left out, and removes the one with its earlier definition.
func (s *step) replaceView(ctx context.Context, v *LeftView, coll *catalog.Collection) error {
	// Record it first: without its definition a partial change could not be applied
	// later.
	if err := s.leaveView(ctx, v); err != nil || coll == nil || coll.Type != catalog.TypeView {
		return err
	}
	return s.dropNow(ctx, v.NS)
}

// refusesView reports whether an error is about a definition.
func refusesView(err error) bool {
	if _, ok := errors.AsType[*oplog.EntryError](err); ok {
		return true
	}
	return !isTyped(err) && !contradicts(err) && says(err, servererr.IsDefinitionRefused)
}

// sourceWords returns the source's definition for one of the target, with the source's
// name of the view's collection.
func (s *step) sourceWords(ns oplog.Namespace, coll *catalog.Collection, def bson.Raw) bson.Raw {
	before, _ := split(coll.Options).get("viewOn")
	f := split(def)
	after, _ := f.get("viewOn")
	on, isText := after.StringValueOK()
	if !isText || !before.Equal(after) {
		return def
	}
	source, ok := s.cfg.Names.Source(oplog.NewNamespace(ns.DB(), on))
	if !ok {
		return def
	}
	return f.set("viewOn", stringValue(source.Collection())).document()
}
