package ddl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// Fence is the right to change the target: the link under its lease. Its answers may be
// out of date when they arrive.
type Fence interface {
	// Check returns an error if the lease is lost, or if that is unknown. It is called
	// right before every command that changes the target.
	Check(ctx context.Context) error
	// Within runs work in a transaction of the target that commits, with a majority, only
	// if the lease is not lost by then. It may run work again.
	Within(ctx context.Context, work func(txn mongo.Caller) error) error
}

const (
	// sendWithin is the time in which a command must be sent after its process was found
	// to have the lease: another process needs several round trips, each committed by a
	// majority, to take the lease and execute anything. Where that was too short it is
	// doubled, up to sendAtLast, because one round trip may take longer.
	sendWithin, sendAtLast = time.Second, 16 * time.Second
	// endWithin is how long the target may work on a command that it cannot restrict to
	// the intended collection, mostly waiting for locks. Such a command must not wait in
	// the target while another process takes over and continues. After a timeout the
	// limit is doubled, up to endAtLast: a contended lock has a queue, and to make an
	// index unique takes time in proportion to its size.
	endWithin, endAtLast = 10 * time.Second, time.Hour
	// tellWithin is the time limit for finding out that a command was late, and reporting
	// it, after everything else has ended.
	reportWithin = 30 * time.Second
	// uuidWire is the wire version of the first server that takes collectionUUID: 6.0.
	uuidWire = 17
	// convertWire is that of the first server whose collMod makes an index unique: 6.0.
	convertWire = 17
	// notUniqueWire is that of the first server whose collMod makes an index one that is not unique: 6.1.
	notUniqueWire = 18
)

// LateError reports a command that was executed, or may have been, although another
// process had taken the lease: the command was in flight, or its process was suspended.
// The target could not verify the intended collection. The namespaces that the command may
// have changed have to be checked, or copied again.
type LateError struct {
	OpTime oplog.OpTime
	// Name is the command's name, NS the target's namespace.
	Name string
	NS   oplog.Namespace
	// Hit are the target's namespaces that it may have changed: NS, and for a rename also
	// the other one.
	Hit []oplog.Namespace
	// Err is the fence's error.
	Err error
}

func (e *LateError) Error() string {
	return fmt.Sprintf("ddl: %s %s of %s was sent after another process had taken over the link, and may have changed what that process wrote: "+
		"compare %s with the source, and run replicator resync for collections that differ: %v", e.Name, e.NS, e.OpTime, joined(e.Hit), e.Err)
}

// Unwrap returns the fence's error.
func (e *LateError) Unwrap() error { return e.Err }

func joined(names []oplog.Namespace) string {
	text := make([]string, len(names))
	for i, ns := range names {
		text[i] = string(ns)
	}
	return strings.Join(text, " and ")
}

// change is a command that changes the target.
type change struct {
	db   string
	name string
	// first is the value of the command's first field, rest are the other fields.
	first string
	rest  fields
	// coll is the collection with the command's name, as the catalog has it; nil for
	// none.
	coll *catalog.Collection
	// replaces is the collection that a rename replaces, nil for none.
	replaces *catalog.Collection
	// builds is set if the duration depends on the number of documents.
	builds bool
	// session is the session of a head start's build, nil for other commands. Such a build is
	// late only if it was still on its way when another process applied the commit or the
	// abort; that it ends under another lease is normal.
	session bson.Raw
}

// ns returns the command's namespace on the target.
func (d *change) ns() oplog.Namespace {
	if d.name == "renameCollection" {
		return oplog.Namespace(d.first)
	}
	return oplog.NewNamespace(d.db, d.first)
}

// hits returns the names whose collections it changes, on the target.
func (d *change) hits() []oplog.Namespace {
	if to, named := d.rest.get("to"); named && d.name == "renameCollection" {
		return []oplog.Namespace{d.ns(), oplog.Namespace(to.StringValue())}
	}
	return []oplog.Namespace{d.ns()}
}

// body builds the command, with limit where it needs one. By UUID it names the intended
// collections.
func (d *change) body(byUUID bool, limit time.Duration) bson.Raw {
	doc := d.rest.appendTo(command(d.name, d.first))
	if d.replaces != nil && !byUUID {
		doc.AppendBoolean("dropTarget", true)
	}
	if byUUID {
		if d.replaces != nil {
			doc.AppendBinary("dropTarget", bson.TypeBinaryUUID, d.replaces.UUID[:])
		}
		doc.AppendBinary("collectionUUID", bson.TypeBinaryUUID, d.coll.UUID[:])
	}
	if !d.builds && (!byUUID || !d.final()) {
		doc.AppendInt64("maxTimeMS", limit.Milliseconds())
	}
	if d.session != nil {
		doc.AppendDocument("lsid", bsoncore.Document(d.session))
	}
	majority := bsoncore.NewDocumentBuilder().AppendString("w", "majority").Build()
	return bson.Raw(doc.AppendDocument("writeConcern", majority).Build())
}

// hasUUID reports whether the command can identify its collection by UUID, on a server
// that supports it. Views have none, and a time-series collection is a view to the
// commands that take one (jstests/core/timeseries/timeseries_collection_uuid.js).
//
//	create                        no UUID yet: nothing must have the name
//	drop, dropIndexes, collMod,
//	createIndexes, delete         collectionUUID
//	renameCollection              collectionUUID, and dropTarget: UUID
//	emptycapped, dropDatabase     never: the former is for servers under test, the
//	                              latter is not sent at all
//
// since 6.0, under the feature compatibility version 6.0
// (jstests/core/collection_uuid_*.js; drop_indexes.idl, coll_mod.cpp).
func (d *change) hasUUID() bool {
	return d.coll != nil && d.coll.Type == catalog.TypeCollection && d.coll.NS == d.ns() && d.name != "emptycapped"
}

// final reports whether the command, sent by UUID, can take effect at most once: it
// removes a collection, and no other one will ever have its UUID. Any other command may
// still find its collection after the next leader has executed the same operation and
// later ones: an index dropped and built again, a collection renamed and renamed back.
func (d *change) final() bool { return d.name == "drop" || d.replaces != nil }

// gate is the only way for commands to the target's data. Everything that changes it goes
// through run or within.
type gate struct {
	target mongo.Caller
	fence  Fence
	// uuids says whether the target supports collectionUUID, converts whether collMod can make an index unique there, loosens
	// whether it can make one not unique; nil until it was asked.
	uuids, converts, loosens *bool
}

// readOnly is a target that cannot be changed.
type readOnly struct{ target mongo.Caller }

// Call implements mongo.Caller for commands that change nothing.
func (r readOnly) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	switch it.Name() {
	case "find", "getMore", "listCollections", "listIndexes", "hello":
		return r.target.Call(ctx, cmd)
	}
	return nil, fmt.Errorf("ddl: %s is sent past the fence", it.Name())
}

// takesUUID reports whether the target supports collectionUUID.
func (g *gate) takesUUID(ctx context.Context) (bool, error) {
	return g.isSince(ctx, uuidWire, &g.uuids)
}

// takesConversion reports whether collMod can make an index unique on the target.
func (g *gate) takesConversion(ctx context.Context) (bool, error) {
	return g.isSince(ctx, convertWire, &g.converts)
}

// takesNotUnique reports whether collMod can make a unique index one that is not. A server before 5.0 ignores what it does not know
// next to what it does, and takes the index for another one then.
func (g *gate) takesNotUnique(ctx context.Context) (bool, error) {
	return g.isSince(ctx, notUniqueWire, &g.loosens)
}

// isSince reports whether the target has a wire version, or a later one. It asks once for each answer.
func (g *gate) isSince(ctx context.Context, wire int64, answer **bool) (bool, error) {
	if *answer == nil {
		reply, err := mongo.Hello(ctx, g.target)
		if err != nil {
			return false, fmt.Errorf("ask the target for its version: %w", err)
		}
		e, _ := rawbson.Lookup(reply, "maxWireVersion")
		version, _ := e.Int64()
		since := version >= wire
		*answer = &since
	}
	return **answer, nil
}

// refusesUUID reports whether a refusal is about that argument: another server, or an
// older feature compatibility version.
func refusesUUID(err error) bool {
	if !says(err, servererr.IsNotUnderstood) {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "collectionUUID") || strings.Contains(text, "dropTarget")
}

// run sends a command once, if the lease is not lost.
func (s *step) run(ctx context.Context, d *change) (bson.Raw, error) {
	if d.hasUUID() {
		takes, err := s.gate.takesUUID(ctx)
		if err != nil {
			return nil, err
		}
		if takes {
			reply, err := s.sendNow(ctx, d.db, d.body(true, s.limit))
			if !refusesUUID(err) {
				return s.answered(ctx, d, d.final(), reply, err)
			}
			*s.gate.uuids = false
		}
	}
	if err := s.verifyCollections(ctx, d); err != nil {
		return nil, err
	}
	reply, err := s.sendNow(ctx, d.db, d.body(false, s.limit))
	return s.answered(ctx, d, false, reply, err)
}

// answered handles the outcome of a command that was sent. Fenced is set if the target
// has restricted it to the intended collection.
func (s *step) answered(ctx context.Context, d *change, fenced bool, reply bson.Raw, err error) (bson.Raw, error) {
	if fenced || d.session != nil || errors.Is(err, errNotSent) || busy(err) {
		return reply, err
	}
	if late := s.late(ctx, d, err); late != nil {
		return nil, late
	}
	return reply, err
}

// late checks whether another process had the lease when a command was executed (as err
// says) that the target could not restrict to the intended collection. Only this process
// can detect that, so it does not end with ctx.
func (s *step) late(ctx context.Context, d *change, err error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), reportWithin)
	defer stop()
	check := mongo.Retry{For: mongo.Forever, Again: unanswered}
	lost := check.Do(ctx, func() error { return s.gate.fence.Check(ctx) })
	if lost == nil || ctx.Err() != nil || errors.Is(lost, lease.ErrExpired) {
		return nil // The next attempt finds out about the lease, which no other process has acquired yet.
	}
	if contradicts(err) || says(err, servererr.IsNoCommand) {
		return lost // it was late, and had no effect
	}
	e := &LateError{OpTime: s.op.OpTime, Name: d.name, NS: d.ns(), Hit: d.hits(), Err: lost}
	if s.cfg.Late != nil {
		s.cfg.Late(ctx, e)
	}
	return e
}

// errNotSent reports a command that was not sent.
var errNotSent = errors.New("not sent")

// sendNow checks the lease and sends a command immediately afterwards.
func (s *step) sendNow(ctx context.Context, db string, body bson.Raw) (bson.Raw, error) {
	asked := time.Now()
	if err := s.gate.fence.Check(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	reply, err := s.gate.target.Call(ctx, mongo.Command{DB: db, Body: body, SendBy: asked.Add(s.soon)})
	if errors.Is(err, mongo.ErrTooLate) {
		s.soon = min(2*s.soon, sendAtLast)
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	if err == nil {
		if concern := mongo.ConcernError(reply); concern != nil {
			return nil, fmt.Errorf("wait for a majority: %w", &mongo.UnconfirmedError{Err: concern})
		}
	}
	return reply, err
}

// verifyCollections verifies that the command's name still refers to the intended collection. It is
// the closest substitute where the server does not verify that.
func (s *step) verifyCollections(ctx context.Context, d *change) error {
	for _, want := range []*catalog.Collection{d.coll, d.replaces} {
		if want == nil {
			continue // the server does not overwrite an existing namespace
		}
		names := []oplog.Namespace{want.NS}
		if want.Type == catalog.TypeTimeseries {
			names = append(names, want.NS.Buckets())
		}
		for _, ns := range names {
			known, _, err := s.cfg.Catalog.Get(ctx, ns)
			if err != nil {
				return err
			}
			if ns == want.NS {
				known = want
			}
			found, err := catalog.Look(ctx, s.reader, ns)
			if err != nil {
				return err
			}
			if !same(known, found) {
				return &changedError{ns: ns, was: known, is: found}
			}
		}
	}
	return nil
}

// changedError reports a name that no longer refers to the same collection.
type changedError struct {
	ns      oplog.Namespace
	was, is *catalog.Collection
}

func (e *changedError) Error() string {
	switch {
	case e.is == nil:
		return fmt.Sprintf("%s is gone", e.ns)
	case e.was == nil:
		return fmt.Sprintf("%s is there again", e.ns)
	case e.is.Type == e.was.Type && e.is.UUID != e.was.UUID:
		return fmt.Sprintf("%s is another %s (%s, not %s)", e.ns, e.is.Type, e.is.UUID, e.was.UUID)
	case e.is.Type == e.was.Type:
		return fmt.Sprintf("%s is another %s", e.ns, e.is.Type)
	}
	return fmt.Sprintf("%s is a %s, not a %s", e.ns, e.is.Type, e.was.Type)
}

// same reports whether two lookups returned the same collection or view.
func same(a, b *catalog.Collection) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Type == b.Type && a.UUID == b.UUID && (a.Type != catalog.TypeView || bytes.Equal(a.Options, b.Options))
}

// unanswered reports whether an error of a read says nothing about the result.
func unanswered(err error) bool {
	switch servererr.Classify(err) {
	case servererr.None, servererr.Auth:
		return false
	default:
		return true
	}
}

// within runs writes of documents in one transaction that commits only if the lease is
// not lost.
func (s *step) within(ctx context.Context, cmds ...mongo.Command) error {
	return s.retry(busyTxn).Do(ctx, func() error {
		return s.gate.fence.Within(ctx, func(txn mongo.Caller) error {
			for _, cmd := range cmds {
				reply, err := txn.Call(ctx, cmd)
				if err != nil {
					return err
				}
				refused, err := mongo.WriteErrors(reply)
				if err != nil {
					return err
				}
				if len(refused) > 0 {
					return &refused[0].Error
				}
			}
			return nil
		})
	})
}
