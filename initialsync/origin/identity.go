package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
)

// Identity is what a member must keep while it is copied.
type Identity struct {
	Host string
	// RBID is the member's rollback id.
	RBID int64
	// SyncID is the _id of its local.replset.initialSyncId, zero for none.
	SyncID bson.RawValue
}

// Identify asks a member, which has to be primary or secondary (ErrState), for
// its identity.
func Identify(ctx context.Context, member call.Caller, host string) (Identity, error) {
	id, err := identify(ctx, member, host)
	if err != nil {
		return Identity{}, fmt.Errorf("identify %s: %w", host, err)
	}
	return id, nil
}

func identify(ctx context.Context, member call.Caller, host string) (Identity, error) {
	if err := checkState(ctx, member); err != nil {
		return Identity{}, err
	}
	q := question{db: localDB, collection: "replset.initialSyncId", concern: local(), patience: patience}
	reply, doc, err := q.ask(ctx, member)
	if err != nil {
		return Identity{}, fmt.Errorf("read its initial-sync id: %w", err)
	}
	id := Identity{Host: host}
	if doc != nil {
		e, ok := rawbson.Lookup(doc, "_id")
		if !ok {
			return Identity{}, errors.New("read its initial-sync id: a document without an _id")
		}
		id.SyncID = bson.RawValue{Type: e.Type, Value: bytes.Clone(e.Value)}
	}
	id.RBID, err = rollbackID(ctx, member, reply)
	return id, err
}

// checkState tells whether a member is one to be read from.
func checkState(ctx context.Context, member call.Caller) error {
	reply, err := run(ctx, member, adminDB, document().AppendInt32("hello", 1))
	if refused, ok := errors.AsType[*servererr.Error](err); ok && refused.Code == servererr.CommandNotFound {
		reply, err = run(ctx, member, adminDB, document().AppendInt32("isMaster", 1)) // the first releases of 4.4
	}
	if err != nil {
		return fmt.Errorf("ask for its state: %w", err)
	}
	if name, _ := rawbson.Lookup(reply, "setName"); name.Type != bson.TypeString {
		return fmt.Errorf("ask for its state: %w: it is in no replica set", ErrState)
	}
	for _, field := range []string{"isWritablePrimary", "ismaster", "secondary"} {
		if e, _ := rawbson.Lookup(reply, field); e.Truth() {
			return nil
		}
	}
	return fmt.Errorf("ask for its state: %w", ErrState)
}

// rollbackID reads the rollback id that came with a reply, for which no privilege
// is needed, as it is for the command.
func rollbackID(ctx context.Context, member call.Caller, reply bson.Raw) (int64, error) {
	e, _ := rawbson.Lookup(reply, "$oplogQueryData")
	data, _ := e.Document()
	e, _ = rawbson.Lookup(data, "rbid")
	if rbid, ok := e.Int64(); ok {
		return rbid, nil
	}
	reply, err := run(ctx, member, adminDB, document().AppendInt32("replSetGetRBID", 1))
	if err != nil {
		return 0, fmt.Errorf("ask for its rollback id: %w", err)
	}
	e, _ = rawbson.Lookup(reply, "rbid")
	rbid, ok := e.Int64()
	if !ok {
		return 0, errors.New("ask for its rollback id: there is none in the reply")
	}
	return rbid, nil
}

// Check asks the member again and returns a *ChangedError if it is not what it
// was.
func Check(ctx context.Context, member call.Caller, was Identity) error {
	is, err := Identify(ctx, member, was.Host)
	if err != nil {
		return err
	}
	switch {
	case is.RBID != was.RBID:
		return &ChangedError{was.Host, fmt.Sprintf("it rolled back (its rollback id was %d and is %d)", was.RBID, is.RBID)}
	case is.SyncID.Type != was.SyncID.Type || !bytes.Equal(is.SyncID.Value, was.SyncID.Value):
		return &ChangedError{was.Host, fmt.Sprintf("its data was copied anew, or it is another member (its initial-sync id was %s and is %s)",
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
