package wire

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Limits that the server reports in hello, and enforces when it reads.
const (
	// MaxMessageSize is the size of the largest message, in bytes, header
	// included (maxMessageSizeBytes).
	MaxMessageSize = 48_000_000
	// MaxDocumentSize is the size of the largest document in a message, in
	// bytes: 16 MiB for a user's document (maxBsonObjectSize) and 16 KiB for
	// what commands put around it.
	MaxDocumentSize = 16<<20 + 16<<10
	// MaxSequences is how many document sequences a message may have. Two are
	// all that any command takes.
	MaxSequences = 2
)

// The opcodes. Others are refused.
const (
	opReply = 1
	opQuery = 2004
	opMsg   = 2013
)

const (
	headerSize   = 16
	checksumSize = 4
)

// The kinds of OP_MSG's sections.
const (
	kindBody     = 0
	kindSequence = 1
)

// Flags are the flag bits of OP_MSG. A bit below 16 that the reader does not
// know makes a message malformed; unknown bits from 16 on are ignored.
type Flags uint32

const (
	// ChecksumPresent says that the message ends with its CRC-32C.
	ChecksumPresent Flags = 1 << 0
	// MoreToCome says of a request that no reply is wanted, and of a reply that
	// the next one follows without being asked for.
	MoreToCome Flags = 1 << 1
	// ExhaustAllowed says of a request that its reply may have MoreToCome.
	ExhaustAllowed Flags = 1 << 16

	requiredFlags Flags = 1<<16 - 1
)

// Has reports whether all of bits are set.
func (f Flags) Has(bits Flags) bool { return f&bits == bits }

// Message is a request or a reply. A message that was read has its documents
// as views into memory that nothing else uses; they are valid BSON.
type Message struct {
	// RequestID is the sender's number of the message.
	RequestID int32
	// ResponseTo is the RequestID of the message that this answers, 0 for a request.
	ResponseTo int32
	// Flags are those of OP_MSG, 0 for a legacy message.
	Flags Flags
	// Legacy says that it came as OP_QUERY (a request) or OP_REPLY (a reply).
	Legacy bool
	// Body is the command or the reply. The body of a legacy request is brought
	// into the form that OP_MSG has: taken out of $query, with $db, and with
	// $readPreference if the message said that a secondary will do.
	Body bson.Raw
	// Sequences are the document sequences, in the order of the message. Their
	// names differ from each other and from the body's fields.
	Sequences []Sequence
}

// Sequence is a list of documents that belongs in the body as an array, but is
// sent as a section of its own.
type Sequence struct {
	// Name is the name of the field that it stands for.
	Name string
	// Docs are the documents, in order. There may be none.
	Docs []bson.Raw
}

// Sequence returns the documents of the sequence of this name.
func (m *Message) Sequence(name string) (docs []bson.Raw, ok bool) {
	for _, s := range m.Sequences {
		if s.Name == name {
			return s.Docs, true
		}
	}
	return nil, false
}

// ProtocolError is a message that breaks the rules of the protocol. The
// connection that it came over cannot be used any further.
type ProtocolError struct {
	// Where names the part of the message, such as "OP_MSG body".
	Where string
	// Offset is where the fault is, in bytes from the start of the message.
	Offset int
	// What names the violated rule. It is empty if Err is set.
	What string
	// Err is the fault of a document, a *rawbson.CorruptError; its offset counts
	// from the start of that document. It is nil for other faults.
	Err error
}

func (e *ProtocolError) Error() string {
	what := e.What
	if e.Err != nil {
		what = e.Err.Error()
	}
	return fmt.Sprintf("wire: malformed message: %s at byte %d: %s", e.Where, e.Offset, what)
}

// Unwrap returns Err.
func (e *ProtocolError) Unwrap() error { return e.Err }
