package origin

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Identity identifies the state of a member; it must not change while the member is
// copied.
type Identity struct {
	Host string
	// Set is the id of its replica set, zero if it is unknown.
	Set bson.RawValue
	// RBID is the member's rollback id.
	RBID int64
	// SyncID is the _id of its local.replset.initialSyncId, zero for none; Unread means
	// that it may not be read.
	SyncID bson.RawValue
	Unread bool
	// SyncMark is the UUID of that collection, which every initial sync drops and
	// creates again: noMark if there is none, empty if it may not be listed.
	SyncMark string
}

// noMark is the Identity.SyncMark of a member without local.replset.initialSyncId.
const noMark = "none"

// Blind reports whether an initial sync of the member could not be detected.
func (id *Identity) Blind() bool { return id.Unread && id.SyncMark == "" }

// GrantSyncID is the command that creates a role that may read the initial-sync id.
const GrantSyncID = `db.getSiblingDB("admin").createRole({role: "replicatorIdentity", roles: [], ` +
	`privileges: [{resource: {db: "local", collection: "replset.initialSyncId"}, actions: ["find"]}]})`

// Identify asks a member, which has to be primary or secondary (ErrState), for its
// identity.
func Identify(ctx context.Context, member mongo.Caller, host string) (Identity, error) {
	id, err := identify(ctx, member, host)
	if err != nil {
		return Identity{}, fmt.Errorf("identify %s: %w", host, err)
	}
	return id, nil
}

func identify(ctx context.Context, member mongo.Caller, host string) (Identity, error) {
	reply, err := checkState(ctx, member)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Host: host}
	if set, err := reply.LookupErr("$replData", "replicaSetId"); err == nil {
		id.Set = bson.RawValue{Type: set.Type, Value: bytes.Clone(set.Value)}
	}
	listed, err := id.readMark(ctx, member)
	if err != nil {
		return Identity{}, fmt.Errorf("list its local.%s: %w", syncIDs, err)
	}
	read, err := id.readSyncID(ctx, member)
	if err != nil {
		return Identity{}, fmt.Errorf("read its initial-sync id: %w", err)
	}
	for _, later := range []bson.Raw{listed, read} {
		if later != nil {
			reply = later
		}
	}
	id.RBID, err = rollbackID(ctx, member, reply)
	return id, err
}

// syncIDs is the collection of local that has the initial-sync id. Of the built-in
// roles, only __system may read it; backup and clusterMonitor may list it.
const syncIDs = "replset.initialSyncId"

// readSyncID reads the initial-sync id if that is allowed; otherwise reply is nil.
func (id *Identity) readSyncID(ctx context.Context, member mongo.Caller) (reply bson.Raw, err error) {
	f := replset.Find{DB: "local", Collection: syncIDs}
	reply, doc, err := f.Run(ctx, member)
	if denied(err) {
		id.Unread = true
		return nil, nil
	}
	if err != nil || doc == nil {
		return reply, err
	}
	e, ok := rawbson.Lookup(doc, "_id")
	if !ok {
		return nil, errors.New("a document without an _id")
	}
	id.SyncID = bson.RawValue{Type: e.Type, Value: bytes.Clone(e.Value)}
	return reply, nil
}

// readMark lists the collection of the initial-sync id if that is allowed.
func (id *Identity) readMark(ctx context.Context, member mongo.Caller) (reply bson.Raw, err error) {
	reply, err = run(ctx, member, "local", document().AppendInt32("listCollections", 1).
		AppendDocument("filter", document().AppendString("name", syncIDs).Build()))
	if denied(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	doc, err := replset.First(reply)
	if err != nil {
		return nil, err
	}
	id.SyncMark = noMark
	if doc != nil {
		e, _ := rawbson.Lookup(doc, "info")
		info, _ := e.Document()
		e, _ = rawbson.Lookup(info, "uuid")
		_, uuid, ok := e.Binary()
		if !ok {
			return nil, errors.New("a collection without a UUID")
		}
		id.SyncMark = hex.EncodeToString(uuid)
	}
	return reply, nil
}

// denied reports whether a server refused because a privilege is missing.
func denied(err error) bool { return servererr.IsDenied(err) }

// checkState reports whether a member can be read from, and returns its reply.
func checkState(ctx context.Context, member mongo.Caller) (bson.Raw, error) {
	reply, err := replset.Hello(ctx, member)
	if err != nil {
		return nil, fmt.Errorf("ask for its state: %w", err)
	}
	if name, _ := rawbson.Lookup(reply, "setName"); name.Type != bson.TypeString {
		return nil, fmt.Errorf("ask for its state: %w: it is in no replica set", ErrState)
	}
	for _, field := range []string{"isWritablePrimary", "ismaster", "secondary"} {
		if e, _ := rawbson.Lookup(reply, field); e.Truth() {
			return reply, nil
		}
	}
	return nil, fmt.Errorf("ask for its state: %w", ErrState)
}

// rollbackID returns the rollback id from a reply, or asks for it.
func rollbackID(ctx context.Context, member mongo.Caller, reply bson.Raw) (int64, error) {
	if rbid, ok := replset.RollbackID(reply); ok {
		return rbid, nil
	}
	reply, err := run(ctx, member, "admin", document().AppendInt32("replSetGetRBID", 1))
	if err != nil {
		return 0, fmt.Errorf("ask for its rollback id: %w", err)
	}
	e, _ := rawbson.Lookup(reply, "rbid")
	rbid, ok := e.Int64()
	if !ok {
		return 0, errors.New("ask for its rollback id: there is none in the reply")
	}
	return rbid, nil
}

// Check asks the member for its identity again and returns a *ChangedError if it has
// changed.
func Check(ctx context.Context, member mongo.Caller, was Identity) error {
	is, err := Identify(ctx, member, was.Host)
	if err != nil {
		return err
	}
	switch {
	case !is.Set.IsZero() && !was.Set.IsZero() && !is.Set.Equal(was.Set):
		return &ChangedError{was.Host, fmt.Sprintf("it is of the set %s, not of %s", is.Set, was.Set)}
	case is.RBID != was.RBID:
		return &ChangedError{was.Host, fmt.Sprintf("it rolled back (its rollback id was %d and is %d)", was.RBID, is.RBID)}
	case is.Unread || was.Unread:
		if is.SyncMark != was.SyncMark && is.SyncMark != "" && was.SyncMark != "" {
			return &ChangedError{was.Host, fmt.Sprintf("its data was copied again, or it is another member (the UUID of its local.%s was %s and is %s)",
				syncIDs, was.SyncMark, is.SyncMark)}
		}
	case is.SyncID.Type != was.SyncID.Type || !bytes.Equal(is.SyncID.Value, was.SyncID.Value):
		return &ChangedError{was.Host, fmt.Sprintf("its data was copied again, or it is another member (its initial-sync id was %s and is %s)",
			shown(was.SyncID), shown(is.SyncID))}
	}
	return nil
}

func shown(id bson.RawValue) string {
	if id.Type == 0 {
		return "none"
	}
	return id.String()
}

// run sends a command that a secondary may answer too.
func run(ctx context.Context, member mongo.Caller, db string, cmd *bsoncore.DocumentBuilder) (bson.Raw, error) {
	return member.Call(ctx, replset.Command(db, cmd))
}
