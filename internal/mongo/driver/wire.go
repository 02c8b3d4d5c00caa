package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	headerSize = 16
	// maxMessage is the largest message that servers accept and send, in bytes.
	maxMessage = 48_000_000
	// smallBuffer is a size that suffices for most commands, keepBuffer that of the
	// largest buffer that is reused, in bytes: large enough for a flush of 8 MiB and its
	// overhead, small enough to keep one per lane.
	smallBuffer = 64 << 10
	keepBuffer  = 10 << 20
)

// Small and large messages have separate pools: a transaction begins and ends with small
// messages, which should not occupy large buffers.
var smallBuffers, largeBuffers = newBuffers(), newBuffers()

func newBuffers() *sync.Pool { return &sync.Pool{New: func() any { return new([]byte) }} }

// bufferFor returns a buffer for a message of about size bytes.
func bufferFor(size int) *[]byte {
	if size <= smallBuffer {
		return smallBuffers.Get().(*[]byte)
	}
	return largeBuffers.Get().(*[]byte)
}

func release(buf *[]byte) {
	switch c := cap(*buf); {
	case c <= smallBuffer:
		smallBuffers.Put(buf)
	case c <= keepBuffer && c/4 <= len(*buf):
		largeBuffers.Put(buf)
	}
}

// outline has the properties of a command's top-level fields.
type outline struct {
	name string // a view
	// inTransaction reports that the command has autocommit, hasPreference that it has a
	// read preference, and so on.
	inTransaction, hasPreference, hasTime, hasConcern, hasLimit bool
}

func outlineOf(cmd *mongo.Command) (outline, error) {
	var o outline
	it := rawbson.NewIter(cmd.Body)
	for it.Next() {
		switch {
		case o.name == "":
			o.name = it.Name()
		case it.Is("autocommit"):
			o.inTransaction = true
		case it.Is("$readPreference"):
			o.hasPreference = true
		case it.Is("$clusterTime"):
			o.hasTime = true
		case it.Is("readConcern"):
			o.hasConcern = true
		case it.Is("maxTimeMS"):
			o.hasLimit = true
		case it.Is("$db"):
			return o, fmt.Errorf("run %s: its body has a $db", o.name)
		}
	}
	if err := it.Err(); err != nil {
		return o, fmt.Errorf("run %s: its body: %w", o.name, err)
	}
	switch {
	case o.name == "":
		return o, errors.New("run a command: its body is empty")
	case cmd.DB == "":
		return o, fmt.Errorf("run %s: no database is given", o.name)
	case len(cmd.Docs) > 0 && cmd.Sequence == "":
		return o, fmt.Errorf("run %s: its document sequence has no name", o.name)
	}
	return o, nil
}

// additions are the fields that are added to a body.
type additions struct {
	clusterTime bson.Raw // {$clusterTime: …} or nil
	preferred   bool     // $readPreference: {mode: "primaryPreferred"}
	local       bool     // readConcern: {level: "local"}
	unlimited   bool     // maxTimeMS: the longest there is
}

// concerned are the commands to which two defaults of a set apply, where they name nothing else:
//   - its read concern (setDefaultRWConcern): under majority the primary would not return what it has just written;
//   - from 8.0 on, the time that a read may take, its getMores included (setClusterParameter, defaultMaxTimeMS): a scan of
//     a large collection would end, and begin again, for ever.
var concerned = []string{"find", "aggregate", "count", "distinct"}

// sizeOf returns the size of a command's message, without additions, plus a margin.
func sizeOf(cmd *mongo.Command) int {
	size := headerSize + 128 + len(cmd.Body) + len(cmd.DB) + len(cmd.Sequence)
	for _, doc := range cmd.Docs {
		size += len(doc)
	}
	return size
}

// appendMessage appends the OP_MSG of a command.
func appendMessage(dst []byte, id int32, cmd *mongo.Command, add additions) ([]byte, error) {
	size := sizeOf(cmd) + len(add.clusterTime)
	if size > maxMessage+128 {
		return dst, errTooLarge
	}
	dst = slices.Grow(dst, size)
	start, dst := wiremessage.AppendHeaderStart(dst, id, 0, wiremessage.OpMsg)
	dst = wiremessage.AppendMsgFlags(dst, 0)
	dst = wiremessage.AppendMsgSectionType(dst, wiremessage.SingleDocument)
	body := len(dst)
	dst = append(dst, cmd.Body[:len(cmd.Body)-1]...)
	dst = bsoncore.AppendString(append(dst, "\x02$db\x00"...), cmd.DB)
	if add.clusterTime != nil {
		dst = append(dst, add.clusterTime[4:len(add.clusterTime)-1]...)
	}
	if add.local {
		dst = append(dst, local...)
	}
	if add.unlimited {
		dst = append(dst, unlimited...)
	}
	if add.preferred {
		dst = append(dst, preferred...)
	}
	dst = append(dst, 0)
	dst = bsoncore.UpdateLength(dst, int32(body), int32(len(dst)-body))
	if cmd.Sequence != "" {
		dst = wiremessage.AppendMsgSectionType(dst, wiremessage.DocumentSequence)
		section := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		dst = append(append(dst, cmd.Sequence...), 0)
		for i, doc := range cmd.Docs {
			if len(doc) < rawbson.MinSize || int(binary.LittleEndian.Uint32(doc)) != len(doc) {
				return dst, fmt.Errorf("%s.%d is not a document", cmd.Sequence, i)
			}
			dst = append(dst, doc...)
		}
		dst = bsoncore.UpdateLength(dst, int32(section), int32(len(dst)-section))
	}
	if len(dst)-int(start) > maxMessage {
		return dst, errTooLarge
	}
	return bsoncore.UpdateLength(dst, start, int32(len(dst)-int(start))), nil
}

var errTooLarge = fmt.Errorf("it is larger than a message may be, %d bytes", maxMessage)

// preferred is the element that drivers add on a direct connection, so that a secondary
// answers.
var preferred = bsoncore.AppendDocumentElement(nil, "$readPreference",
	bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "mode", "primaryPreferred")))

// local is the element that is added to a read without a read concern.
var local = bsoncore.AppendDocumentElement(nil, "readConcern",
	bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "level", "local")))

// defaultTime is the wire version of the first servers that have a default time for reads: 8.0.
const defaultTime = 25

// unlimited is the element that is added to a read without a limit: the largest that servers accept, 24 days.
var unlimited = bsoncore.AppendInt64Element(nil, "maxTimeMS", math.MaxInt32)

// readMessage returns the document of the reply to message id, a view into wm
// unless that was compressed.
func readMessage(wm []byte, id int32) (bson.Raw, error) {
	length, _, to, op, rest, ok := wiremessage.ReadHeader(wm)
	switch {
	case !ok || int(length) != len(wm):
		return nil, fmt.Errorf("its header says %d bytes, it has %d", length, len(wm))
	case to != id:
		return nil, fmt.Errorf("it is a reply to message %d, not to %d", to, id)
	}
	if op == wiremessage.OpCompressed {
		var err error
		if op, rest, err = decompress(rest); err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
	}
	if op != wiremessage.OpMsg {
		return nil, fmt.Errorf("it is %s, not OP_MSG", op)
	}
	flags, rest, ok := wiremessage.ReadMsgFlags(rest)
	if !ok {
		return nil, errors.New("it ends within its flags")
	}
	if flags&wiremessage.ChecksumPresent != 0 {
		if len(rest) < 4 {
			return nil, errors.New("it ends within its checksum")
		}
		rest = rest[:len(rest)-4]
	}
	if flags&wiremessage.MoreToCome != 0 {
		return nil, errors.New("it has moreToCome, which was not requested")
	}
	if len(rest) < 1+rawbson.MinSize || wiremessage.SectionType(rest[0]) != wiremessage.SingleDocument ||
		int(binary.LittleEndian.Uint32(rest[1:])) != len(rest)-1 {
		return nil, errors.New("it is not one document")
	}
	return bson.Raw(rest[1:]), nil
}

func decompress(wm []byte) (wiremessage.OpCode, []byte, error) {
	op, wm, ok := wiremessage.ReadCompressedOriginalOpCode(wm)
	if !ok {
		return 0, nil, errors.New("it ends within its header")
	}
	size, wm, ok := wiremessage.ReadCompressedUncompressedSize(wm)
	if !ok || size < 0 || size > maxMessage {
		return 0, nil, fmt.Errorf("its size is given as %d", size)
	}
	compressor, wm, ok := wiremessage.ReadCompressedCompressorID(wm)
	if !ok {
		return 0, nil, errors.New("it ends within its header")
	}
	out, err := driver.DecompressPayload(wm, driver.CompressionOpts{Compressor: compressor, UncompressedSize: size})
	if err != nil {
		return 0, nil, err
	}
	if compressor != wiremessage.CompressorNoOp && len(out) != int(size) {
		return 0, nil, fmt.Errorf("it has %d bytes, not %d", len(out), size)
	}
	return op, out, nil
}

// verdict has the properties of a reply's top-level fields.
type verdict struct {
	ok, concern bool
	code        int64
	clusterTime rawbson.Elem
}

func verdictOf(reply bson.Raw) (verdict, error) {
	var v verdict
	it := rawbson.NewIter(reply)
	for it.Next() {
		switch {
		case it.Is("ok"):
			v.ok = it.Truth()
		case it.Is("code"):
			v.code, _ = it.Int64()
		case it.Is("writeConcernError"):
			v.concern = true
		case it.Is("$clusterTime"):
			v.clusterTime = it.Elem
		}
	}
	return v, it.Err()
}

// plainOnly are the commands that carry secrets. They are not compressed, because the
// compressed size would reveal something about the secret.
var plainOnly = []string{
	"hello", "isMaster", "ismaster", "saslStart", "saslContinue", "getnonce", "authenticate",
	"createUser", "updateUser", "copydbSaslStart", "copydbgetnonce", "copydb",
}
