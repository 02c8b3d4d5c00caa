package replay

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// ApplyOps executes a client's applyOps command on a primary. It returns the
// server's reply fields applied and results (and for a failure code, codeName,
// errmsg), and logs as the server does.
//
// Inserts, updates and deletes alone take effect together and are logged as the
// command that was sent, unless allowAtomic is false or a collection is missing;
// else each operation takes effect and is logged by itself. If operations have
// failed there is an error and a reply; a command refused as a whole has no
// reply.
func ApplyOps(b *opwrite.Batch, cmd bson.Raw) (reply bson.Raw, err error) {
	return applyOps(b, cmd, 1)
}

func applyOps(b *opwrite.Batch, cmd bson.Raw, depth int) (bson.Raw, error) {
	c, err := parseApplyOps(b, cmd, depth)
	if err != nil {
		return nil, err
	}
	r := runner{b: b, cmd: c, depth: depth}
	if c.atomic {
		err := r.together()
		if err == nil || !errors.Is(err, errNotAtomic) {
			return r.reply(err), refusal(err)
		}
		r = runner{b: b, cmd: c, depth: depth}
	}
	err = r.singly()
	if err == nil && r.failed {
		err = servererr.New(servererr.UnknownError, "applyOps had one or more errors applying ops")
		return r.reply(nil), err
	}
	return r.reply(err), refusal(err)
}

// refusal converts any error to one of a server, except for conflicts, which
// the caller retries.
func refusal(err error) error {
	if err == nil || errors.Is(err, storage.ErrWriteConflict) {
		return err
	}
	if found, ok := errors.AsType[*servererr.Error](err); ok {
		return found
	}
	return servererr.New(servererr.FailedToParse, "%s", err)
}

// errNotAtomic is the reason for which the server retries a command without
// atomicity.
var errNotAtomic = errors.New("cannot be applied in atomic applyOps mode")

// applyOpsCommand is a checked command.
type applyOpsCommand struct {
	raw          bson.Raw
	docs         []bson.Raw
	ops          []oplog.Op
	atomic       bool
	alwaysUpsert bool
}

func parseApplyOps(b *opwrite.Batch, raw bson.Raw, depth int) (*applyOpsCommand, error) {
	c := &applyOpsCommand{raw: raw, atomic: true, alwaysUpsert: true}
	if depth > maxNesting {
		return nil, servererr.New(servererr.FailedToParse, "Too many nested applyOps")
	}
	it := rawbson.NewIter(raw)
	for n := 0; it.Next(); n++ {
		switch name := it.Name(); name {
		case "applyOps":
			array, ok := it.Array()
			if !ok || n > 0 {
				return nil, servererr.New(servererr.TypeMismatch, "Expected field \"applyOps\" to be of type array")
			}
			if err := c.parseOps(b, array); err != nil {
				return nil, err
			}
		case "allowAtomic":
			c.atomic = c.atomic && it.Truth()
		case "alwaysUpsert":
			c.alwaysUpsert = it.Truth()
		case "prepare", "partialTxn", "count":
			return nil, servererr.New(servererr.BadValue, "applyOps command can't have '%s' field", name)
		case "preCondition":
			return nil, servererr.New(servererr.NotImplemented, "applyOps with a preCondition is not implemented here")
		}
	}
	if err := it.Err(); err != nil {
		return nil, servererr.New(servererr.InvalidBSON, "applyOps: %s", err)
	}
	return c, nil
}

func (c *applyOpsCommand) parseOps(b *opwrite.Batch, array bson.Raw) error {
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return servererr.New(servererr.FailedToParse, "applyOps.%s is not an object", it.Name())
		}
		op, err := parseOp(doc)
		if err != nil {
			return err
		}
		if op.Kind == oplog.KindCommand {
			c.atomic = false
			if err := checkCommand(b, op); err != nil {
				return err
			}
		}
		c.docs = append(c.docs, doc)
		c.ops = append(c.ops, *op)
	}
	for i := range c.ops {
		if c.ops[i].Command == oplog.CommandDropDatabase && len(c.ops) > 1 {
			return servererr.New(servererr.BadValue, "dropDatabase in applyOps must be the only entry")
		}
	}
	if err := it.Err(); err != nil {
		return servererr.New(servererr.InvalidBSON, "applyOps: %s", err)
	}
	return nil
}

// parseOp reads an operation as the server does, with its oplog parser's error
// messages.
func parseOp(doc bson.Raw) (*oplog.Op, error) {
	for _, name := range []string{"op", "ns", "o"} {
		e, ok := rawbson.Lookup(doc, name)
		if !ok {
			return nil, servererr.New(40414, "BSON field 'OplogEntryBase.%s' is missing but a required field", name)
		}
		s, isText := e.Text()
		switch {
		case name == "o":
		case !isText:
			return nil, servererr.New(servererr.TypeMismatch, "BSON field 'OplogEntryBase.%s' is the wrong type, expected type 'string'", name)
		case name == "op" && s != "i" && s != "u" && s != "d" && s != "c" && s != "n":
			return nil, servererr.New(servererr.BadValue, "Enumeration value '%s' for field 'OplogEntryBase.op' is not a valid value.", s)
		}
	}
	// One operation is read like the element of a logged group.
	start, o := bsoncore.AppendDocumentStart(nil)
	array, o := bsoncore.AppendArrayElementStart(o, "applyOps")
	o = bsoncore.AppendDocumentElement(o, "0", bsoncore.Document(doc))
	o, _ = bsoncore.AppendArrayEnd(o, array)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	holder := oplog.Op{Kind: oplog.KindCommand, Command: oplog.CommandApplyOps, NS: "admin.$cmd", O: o}
	group, err := holder.ApplyOps()
	if err != nil {
		return nil, refusal(err)
	}
	for op, err := range group.Ops() {
		if err != nil {
			return nil, refusal(err)
		}
		return &op, nil
	}
	return nil, servererr.New(servererr.FailedToParse, "no operation in %s", bsontext.Document(doc))
}

// checkCommand refuses commands that only members write.
func checkCommand(b *opwrite.Batch, op *oplog.Op) error {
	switch op.Command {
	case oplog.CommandCreateIndexes, oplog.CommandStartIndexBuild, oplog.CommandCommitIndexBuild, oplog.CommandAbortIndexBuild:
		return servererr.New(servererr.CommandNotSupported, "The %s operation is not supported in applyOps mode", op.Command)
	case oplog.CommandCommitTransaction, oplog.CommandAbortTransaction:
		return servererr.New(servererr.CommandNotSupported, "%s is only used internally by secondaries.", op.Command)
	case oplog.CommandImportCollection, oplog.CommandDBCheck:
		return servererr.New(servererr.NotImplemented, "%s in applyOps is not implemented here", op.Command)
	case oplog.CommandApplyOps:
		if b.Dialect().Modern() {
			return servererr.New(servererr.FailedToParse, "Cannot have nested applyOps commands")
		}
	default:
	}
	return nil
}
