package ddl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Converter sets the deferred options on a target to which nothing is applied any more, or removes
// them again. It compares the collection "deferred" with the target, and changes what differs, so it may
// be called again after any interruption. The documents of deferred are the record by which conversions
// are undone. A Converter must not be used concurrently.
//
//	present, with Convert          present, with Revert
//	unique      collMod prepareUnique, then unique: the index stays; before 6.0 it is
//	            dropped and built again          dropped and built again
//	absent      built                            dropped
//	validator, validationAction (refused)
//	            set, if the target accepts it    removed
//	expireAfterSeconds: Expire only, once there is no way back: what the target's own
//	            TTL monitor deletes, the source does not have deleted
type Converter struct {
	step *step
	// Ended means that the link has ended, and applications use the target: what they have removed stays so.
	Ended bool
}

// Converted is a change of a Converter.
type Converted struct {
	NS oplog.Namespace
	// Index is empty for an option of the collection.
	Index string
	// What describes the change.
	What string
}

// RefusedError reports that documents of the target violate the uniqueness of an index.
type RefusedError struct {
	NS    oplog.Namespace
	Index string
	UUID  oplog.UUID
	Err   error
	// Back is why the index could not be made what it was before; nil if it is that.
	Back error
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("index %s of %s cannot become unique: %v", e.Index, e.NS, e.Err)
	if e.Back != nil {
		text += "; nor is it what it was before: " + e.Back.Error()
	}
	return text
}

// Unwrap returns the target's errors.
func (e *RefusedError) Unwrap() []error {
	if e.Back == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Back}
}

// RefusedErrors are all indexes that documents of the target violate; the others are converted.
type RefusedErrors []*RefusedError

func (e RefusedErrors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns each of them.
func (e RefusedErrors) Unwrap() []error {
	list := make([]error, len(e))
	for i, one := range e {
		list[i] = one
	}
	return list
}

// everything is the scope of what goes by the names of the target.
type everything struct{}

// Target implements Scope.
func (everything) Target(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, true }

// Source implements Scope.
func (everything) Source(ns oplog.Namespace) (oplog.Namespace, bool) { return ns, true }

// TargetDBs implements Scope.
func (everything) TargetDBs(db string) []string { return []string{db} }

// NewConverter returns a Converter for a link's target. The fence is that of the link.
func NewConverter(ctx context.Context, target mongo.Caller, fence Fence, metaDB, link string) (*Converter, error) {
	cat, err := catalog.Load(ctx, target, nil)
	if err != nil {
		return nil, fmt.Errorf("ddl: convert the deferred options of %s: %w", link, err)
	}
	e, err := New(Config{Target: target, Fence: fence, Catalog: cat, Scope: everything{}, MetaDB: metaDB, Link: link})
	if err != nil {
		return nil, err
	}
	return &Converter{step: e.step(&oplog.Op{Kind: oplog.KindCommand}, Maybe)}, nil
}

// Convert makes indexes unique, builds those that the target lacks, and sets the options that it lacks; nothing expires. It calls
// done after each change. Indexes that documents violate do not keep it from the others: the error is
// RefusedErrors then.
func (c *Converter) Convert(ctx context.Context, done func(Converted)) error {
	var refused RefusedErrors
	err := c.each(ctx, converting, done, func(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
		if h.Index == "" {
			return c.validate(ctx, coll, h)
		}
		what, err := c.convert(ctx, coll, h)
		if e, is := errors.AsType[*RefusedError](err); is && e.Back == nil {
			refused = append(refused, e)
			return "", nil
		}
		return what, err
	})
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return refused
	}
	return nil
}

// Expire makes indexes and collections expire their documents, as at the source, and forgets the
// deferred options, except for the indexes of kept: the target has everything. It must not be called before nothing
// can be taken back.
func (c *Converter) Expire(ctx context.Context, kept RefusedErrors, done func(Converted)) error {
	keeps := func(h *DeferredSpec) bool {
		return slices.ContainsFunc(kept, func(e *RefusedError) bool { return e.UUID == h.UUID && e.Index == h.Index })
	}
	err := c.each(ctx, converting, done, func(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
		if keeps(h) {
			return "", nil // to build it again would fail
		}
		what, err := c.expire(ctx, coll, h)
		if err == nil { // at once: what applications change from then on stays so if this is repeated
			err = c.step.releaseIndex(ctx, h.NS, h.Index)
		}
		return what, err
	})
	if err != nil {
		return err
	}
	specs, err := ReadDeferred(ctx, c.step.reader, c.step.cfg.MetaDB, c.step.cfg.Link)
	for i := 0; i < len(specs) && err == nil; i++ {
		if keeps(&specs[i]) {
			continue
		}
		err = c.step.releaseIndex(ctx, specs[i].NS, specs[i].Index)
	}
	if err != nil {
		return fmt.Errorf("ddl: delete the records of deferred options: %w", err)
	}
	return nil
}

// Revert reverts Convert.
func (c *Converter) Revert(ctx context.Context, done func(Converted)) error {
	return c.each(ctx, "put back", done, func(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
		if h.Index == "" {
			return c.invalidate(ctx, coll, h)
		}
		what, err := c.revert(ctx, coll, h)
		if err == nil {
			err = c.built(ctx, h, false)
		}
		return what, err
	})
}

// ErrUnknownDeferred reports deferred options that this release does not restore: nothing is restored, as their records
// would be deleted.
var ErrUnknownDeferred = errors.New("a later release has deferred options that this one does not restore: go on with that release")

// converting is what Convert and Expire do.
const converting = "convert"

// each calls change for the deferred options whose collection is there, absent indexes last: they may
// equal others that are not unique yet. A command that the server has ended because of its time limit
// is sent again.
func (c *Converter) each(ctx context.Context, verb string, done func(Converted), change func(context.Context, *catalog.Collection, *DeferredSpec) (string, error)) error {
	specs, err := ReadDeferred(ctx, c.step.reader, c.step.cfg.MetaDB, c.step.cfg.Link)
	if err != nil {
		return fmt.Errorf("ddl: %w", err)
	}
	for i := range specs {
		if unknown := specs[i].Unknown(); len(unknown) > 0 && verb == converting {
			return fmt.Errorf("ddl: %s %s: %w: %s", verb, label(&specs[i]), ErrUnknownDeferred, strings.Join(unknown, ", "))
		}
	}
	slices.SortStableFunc(specs, func(a, b DeferredSpec) int {
		switch {
		case a.Absent == b.Absent:
			return 0
		case b.Absent:
			return -1
		}
		return 1
	})
	for i := range specs {
		h := &specs[i]
		coll, exists, err := c.collection(ctx, h)
		if err == nil && !exists {
			continue // of an earlier collection of that name
		}
		what := ""
		for err == nil {
			if what, err = change(ctx, coll, h); !expired(err) {
				break
			}
			c.step.limit = min(2*c.step.limit, endAtLast)
			err = mongo.Pause(ctx, lookPause)
		}
		if err != nil {
			return fmt.Errorf("ddl: %s %s: %w", verb, label(h), err)
		}
		if what != "" && done != nil {
			done(Converted{NS: h.NS, Index: h.Index, What: what})
		}
	}
	return nil
}

// collection returns the collection of a deferred spec, false if it is gone. Applications may have renamed that
// of a link that has ended.
func (c *Converter) collection(ctx context.Context, h *DeferredSpec) (*catalog.Collection, bool, error) {
	coll, exists, err := c.step.cfg.Catalog.Get(ctx, h.NS)
	if err != nil || exists && coll.UUID == h.UUID {
		return coll, exists, err
	}
	if c.Ended {
		colls, _ := c.step.cfg.Catalog.Known()
		for _, coll := range colls {
			if coll.UUID == h.UUID {
				return coll, true, nil
			}
		}
	}
	return nil, false, nil
}

// built records that the index of a spec is dropped, or there, as this process has left it.
func (c *Converter) built(ctx context.Context, h *DeferredSpec, dropped bool) error {
	absent := h.Absent && !c.Ended // otherwise nobody takes back that it is there
	if h.Dropped == dropped && h.Absent == absent {
		return nil
	}
	h.Dropped, h.Absent = dropped, absent
	return c.step.store(ctx, h)
}

// drop drops the index of a spec, which is built again.
func (c *Converter) drop(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) error {
	if err := c.built(ctx, h, true); err != nil {
		return err
	}
	if err := c.step.dropIndex(ctx, coll, h.Index); err != nil && !says(err, servererr.IsNoIndex) {
		return err
	}
	return nil
}

func label(h *DeferredSpec) string {
	if h.Index == "" {
		return "the options of " + string(h.NS)
	}
	return "index " + h.Index + " of " + string(h.NS)
}

// present returns an index of the target, nil for none, and whether the target is still building
// it: for a command that was interrupted by a failover, or is of an earlier process.
func (c *Converter) present(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (is fields, building bool, err error) {
	ready, builds, err := catalog.IndexBuilds(ctx, c.step.reader, coll.NS)
	if err != nil {
		return nil, false, err
	}
	for _, specs := range builds {
		if doc := named(specs, h.Index); doc != nil {
			return split(doc), true, nil
		}
	}
	if doc := named(ready, h.Index); doc != nil {
		is = split(doc)
	}
	return is, false, nil
}

// named returns the definition of an index, nil if it is not among them.
func named(specs []bson.Raw, index string) bson.Raw {
	i := slices.IndexFunc(specs, func(doc bson.Raw) bool { return textOf(doc, "name") == index })
	if i < 0 {
		return nil
	}
	return specs[i]
}

// ready is present, once the target does not build the index any more: documents may still
// make the build fail.
func (c *Converter) ready(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (fields, error) {
	for {
		is, building, err := c.present(ctx, coll, h)
		if err != nil || !building {
			return is, err
		}
		// A command for the same index waits for it, and builds it itself if the build has failed.
		same := &DeferredSpec{NS: coll.NS, Index: h.Index, Spec: is.document()}
		if err := c.step.make(ctx, coll, []*DeferredSpec{same}); err != nil && !says(err, servererr.IsDuplicateKey) {
			return nil, err
		}
	}
}

// convert makes one index unique, or builds it.
func (c *Converter) convert(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	is, err := c.ready(ctx, coll, h)
	if err != nil {
		return "", err
	}
	spec := split(h.Spec)
	unique, prepare := spec.truth("unique") && !is.truth("unique"), spec.truth("prepareUnique") && !is.truth("prepareUnique")
	switch {
	case is == nil && c.Ended && !h.Absent && !h.Dropped:
		return "", nil // applications have dropped it
	case is == nil:
		err := c.build(ctx, coll, h, optionExpire)
		if says(err, servererr.IsDuplicateKey) {
			var back error
			if !h.Absent { // makeUnique was interrupted after it had dropped the index
				back = c.restored(ctx, coll, h)
			}
			return "", &RefusedError{NS: coll.NS, Index: h.Index, UUID: h.UUID, Err: err, Back: back}
		}
		if h.Absent && says(err, servererr.IsIndexUnbuildable) && !contradicts(err) {
			// As when the link met it. Whoever cuts over has accepted that the target lacks it, and no later attempt would end.
			return fmt.Sprintf("is not built, as the target refuses it: %v", err), nil
		}
		if err == nil {
			err = c.built(ctx, h, false)
		}
		return "built", err
	case unique:
		return c.makeUnique(ctx, coll, h)
	case prepare:
		err := c.modify(ctx, coll, h, field{"prepareUnique", boolValue(true)})
		if says(err, servererr.IsNotUnderstood) {
			// Before 6.0, or under its feature compatibility version. To make it unique would be more than the source has.
			return fmt.Sprintf("accepts duplicates, as the target cannot prepare an index to become unique: %v", err), nil
		}
		return "prepared to become unique", err
	}
	return "", nil
}

// makeUnique makes an index unique that is there.
func (c *Converter) makeUnique(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	err := c.modify(ctx, coll, h, field{"prepareUnique", boolValue(true)})
	if err == nil {
		err = c.modify(ctx, coll, h, field{"unique", boolValue(true)})
	}
	switch {
	case err == nil:
		return "made unique", nil
	case says(err, servererr.IsNotUnique):
		// As before: it accepts every document, as the link's lanes need it.
		back := c.modify(ctx, coll, h, field{"prepareUnique", boolValue(false)})
		return "", &RefusedError{NS: coll.NS, Index: h.Index, UUID: h.UUID, Err: err, Back: back}
	case !says(err, servererr.IsNotUnderstood) && !says(err, servererr.IsOptionRefused):
		return "", err
	}
	// Before 6.0, or under its feature compatibility version.
	if err := c.drop(ctx, coll, h); err != nil {
		return "", err
	}
	err = c.build(ctx, coll, h, optionExpire)
	if says(err, servererr.IsDuplicateKey) {
		return "", &RefusedError{NS: coll.NS, Index: h.Index, UUID: h.UUID, Err: err, Back: c.restored(ctx, coll, h)}
	}
	if err == nil {
		err = c.built(ctx, h, false)
	}
	return "dropped, and built unique", err
}

// restored builds the index of a spec as it was before it was dropped.
func (c *Converter) restored(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) error {
	if err := c.build(ctx, coll, h, h.Fields...); err != nil {
		return err
	}
	return c.built(ctx, h, false)
}

// revert reverts convert for one index.
func (c *Converter) revert(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	is, building, err := c.present(ctx, coll, h)
	switch {
	case err != nil:
		return "", err
	case h.Absent && is == nil:
		return "", nil
	case h.Absent:
		return "dropped", c.step.dropIndex(ctx, coll, h.Index)
	case is == nil: // it was interrupted between the two
		return "built without its deferred options", c.build(ctx, coll, h, h.Fields...)
	case is.truth("unique") && slices.Contains(h.Fields, "unique"):
		if err := c.step.dropIndex(ctx, coll, h.Index); err != nil && !says(err, servererr.IsNoIndex) {
			return "", err
		}
		return "dropped, and built not unique", c.build(ctx, coll, h, h.Fields...)
	case building: // as it was before: the command waits for it
		return "built without its deferred options", c.build(ctx, coll, h, h.Fields...)
	case is.truth("prepareUnique"):
		return "not prepared to become unique any more", c.modify(ctx, coll, h, field{"prepareUnique", boolValue(false)})
	}
	return "", nil
}

// expire makes an index or a collection expire its documents.
func (c *Converter) expire(ctx context.Context, coll *catalog.Collection, h *DeferredSpec) (string, error) {
	after, expires := split(h.Spec).get(optionExpire)
	if !expires || isNaN(after) || !slices.Contains(h.Fields, optionExpire) {
		return "", nil
	}
	const what = "expires its documents"
	if h.Index == "" {
		if age, does := split(coll.Options).get(optionExpire); does && age.IsNumber() {
			return "", nil // it was changed since
		}
		m := modification{step: c.step, coll: coll, send: fields{{optionExpire, after}}}
		return what, m.change(ctx)
	}
	is, err := c.ready(ctx, coll, h)
	if err != nil {
		return "", err
	}
	age, does := is.get(optionExpire)
	if n, ok := age.AsFloat64OK(); does && (!ok || n < float64(heldAges[1])) { // of longer, it was held with its own, or is not a number
		return "", nil
	}
	if coll.Capped && !does {
		return "does not expire its documents, as servers before 7.1 expire none of a capped collection: if the source does, use collMod", nil
	}
	if is != nil {
		err := c.modify(ctx, coll, h, field{optionExpire, after})
		if err == nil || !says(err, servererr.IsNotUnderstood) && !says(err, servererr.IsOptionRefused) {
			return what, err
		}
		// Before 5.1.
		if err := c.drop(ctx, coll, h); err != nil {
			return "", err
		}
	} else if c.Ended && !h.Dropped {
		return "", nil // applications have dropped it
	}
	err = c.build(ctx, coll, h)
	if says(err, servererr.IsDefinitionRefused) && !says(err, servererr.IsDuplicateKey) {
		// The source has it of a server that accepted it, and expires nothing by it, or no document since 1970 yet: a lesser
		// age would expire those that have the date 0.
		return fmt.Sprintf("does not expire its documents, as the server refuses that: %v", err), c.build(ctx, coll, h, optionExpire)
	}
	return what, err
}

// build builds an index without some fields.
func (c *Converter) build(ctx context.Context, coll *catalog.Collection, h *DeferredSpec, without ...string) error {
	spec := *h
	spec.Fields = without
	err := c.step.make(ctx, coll, []*DeferredSpec{&spec})
	if says(err, servererr.IsIndexThere) {
		return nil
	}
	return err
}

// modify changes one field of an index. It takes time in proportion to its size to make it unique.
func (c *Converter) modify(ctx context.Context, coll *catalog.Collection, h *DeferredSpec, change field) error {
	doc := fields{change}.appendTo(bsoncore.NewDocumentBuilder().AppendString("name", h.Index))
	_, err := c.step.send(ctx, collModOf(coll, bson.Raw(doc.Build())))
	return err
}
