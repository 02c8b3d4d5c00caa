package wire

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// The bits of OP_QUERY's flags that matter for a command.
const (
	querySecondaryOK = 1 << 2
	queryExhaust     = 1 << 6
)

// replyAwaitCapable is the one flag that the server sets in every OP_REPLY.
const replyAwaitCapable = 1 << 3

const commandCollection = ".$cmd"

// parseQuery takes an OP_QUERY apart that carries a command: flags, namespace,
// how many to skip and to return, the command, and maybe a projection, which
// means nothing for a command.
func parseQuery(frame []byte) (*Message, error) {
	m := newMessage(frame)
	m.Legacy = true
	c := &cursor{frame: frame, pos: headerSize, end: len(frame)}
	flags, err := c.uint32("OP_QUERY flags")
	if err != nil {
		return nil, err
	}
	if flags&queryExhaust != 0 {
		return nil, c.fault("OP_QUERY flags", "the exhaust flag on a command")
	}
	ns, err := c.cstring("OP_QUERY namespace")
	if err != nil {
		return nil, err
	}
	db, ok := strings.CutSuffix(ns, commandCollection)
	if !ok || db == "" || strings.Contains(db, ".") {
		return nil, c.fault("OP_QUERY namespace", fmt.Sprintf("%q is not the command collection of a database", ns))
	}
	if _, err := c.uint32("OP_QUERY numberToSkip"); err != nil {
		return nil, err
	}
	limit, err := c.uint32("OP_QUERY numberToReturn")
	if err != nil {
		return nil, err
	}
	if n := int32(limit); n != 1 && n != -1 {
		return nil, c.fault("OP_QUERY numberToReturn", fmt.Sprintf("%d, a command takes 1 or -1", n))
	}
	query, err := c.document("OP_QUERY command")
	if err != nil {
		return nil, err
	}
	if c.pos < c.end {
		if _, err := c.document("OP_QUERY projection"); err != nil {
			return nil, err
		}
	}
	if c.pos < c.end {
		return nil, c.fault("OP_QUERY", fmt.Sprintf("%d bytes after the end", c.end-c.pos))
	}
	if m.Body, err = modernBody(query, db, flags&querySecondaryOK != 0); err != nil {
		return nil, err
	}
	return m, nil
}

// modernBody brings the command of an OP_QUERY into the form that OP_MSG has.
// The server does the same before it looks at the command.
func modernBody(query bson.Raw, db string, secondaryOK bool) (bson.Raw, error) {
	command, outer := query, bson.Raw(nil)
	it := rawbson.NewIter(query)
	if it.Next() && (it.Is("$query") || it.Is("query")) {
		if inner, ok := it.Document(); ok {
			command, outer = inner, query
		}
	}
	body := make([]byte, 4, len(query)+64)
	body = append(body, command[4:len(command)-1]...)
	if stated, ok := rawbson.Lookup(command, "$db"); !ok {
		body = bsoncore.AppendStringElement(body, "$db", db)
	} else if name, text := stated.Text(); !text || name != db {
		return nil, &ProtocolError{
			Where: "OP_QUERY command", Offset: headerSize,
			What: fmt.Sprintf("$db is not %q, the database of its namespace", db),
		}
	}
	if _, ok := rawbson.Lookup(command, "$readPreference"); !ok {
		if pref, ok := rawbson.Lookup(outer, "$readPreference"); ok {
			body = bsoncore.AppendValueElement(body, "$readPreference",
				bsoncore.Value{Type: bsoncore.Type(pref.Type), Data: pref.Value})
		} else if secondaryOK {
			body = bsoncore.AppendDocumentElement(body, "$readPreference",
				bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "mode", "secondaryPreferred")))
		}
	}
	body = append(body, 0)
	return bson.Raw(bsoncore.UpdateLength(body, 0, int32(len(body)))), nil
}

// parseReply takes an OP_REPLY apart: flags, cursor, position, count, documents.
func parseReply(frame []byte) (*Message, error) {
	m := newMessage(frame)
	m.Legacy = true
	c := &cursor{frame: frame, pos: headerSize, end: len(frame)}
	// Flags, the two halves of a cursor id, and a position: a reply to a
	// command needs none of them.
	for range 4 {
		if _, err := c.uint32("OP_REPLY"); err != nil {
			return nil, err
		}
	}
	count, err := c.uint32("OP_REPLY numberReturned")
	if err != nil {
		return nil, err
	}
	if count != 1 {
		return nil, c.fault("OP_REPLY numberReturned", fmt.Sprintf("%d documents, a command is answered with 1", int32(count)))
	}
	if m.Body, err = c.document("OP_REPLY document"); err != nil {
		return nil, err
	}
	if c.pos < c.end {
		return nil, c.fault("OP_REPLY", fmt.Sprintf("%d bytes after the end", c.end-c.pos))
	}
	return m, nil
}
