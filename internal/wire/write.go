package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// AppendMessage appends m to dst in the form of OP_MSG: its sequences, its body
// and, if its flags say so, the checksum. It fails on a message that the other
// side would refuse for its size; that the documents are valid BSON is trusted.
func AppendMessage(dst []byte, m *Message) ([]byte, error) {
	start := len(dst)
	dst = appendHeader(dst, m, opMsg)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Flags))
	for _, s := range m.Sequences {
		dst = append(dst, kindSequence)
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		dst = append(append(dst, s.Name...), 0)
		for _, doc := range s.Docs {
			dst = append(dst, doc...)
		}
		binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	}
	dst = append(dst, kindBody)
	dst = append(dst, m.Body...)
	if !m.Flags.Has(ChecksumPresent) {
		return finish(dst, start, m)
	}
	// The checksum covers the length, which counts the checksum.
	dst, err := finish(append(dst, 0, 0, 0, 0), start, m)
	if err != nil {
		return dst, err
	}
	end := len(dst) - checksumSize
	binary.LittleEndian.PutUint32(dst[end:], crc32.Checksum(dst[start:end], castagnoli))
	return dst, nil
}

// appendHead appends all of an OP_MSG that comes before its body, for one without
// sequences and without a checksum. It fails like AppendMessage.
func appendHead(dst []byte, m *Message) ([]byte, error) {
	start := len(dst)
	dst = appendHeader(dst, m, opMsg)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.Flags))
	dst = append(dst, kindBody)
	return finishAt(dst, start, len(dst)-start+len(m.Body), m)
}

// AppendLegacyReply appends the body of m to dst in the form of OP_REPLY, the
// answer to an OP_QUERY. It fails like AppendMessage.
func AppendLegacyReply(dst []byte, m *Message) ([]byte, error) {
	start := len(dst)
	dst = appendHeader(dst, m, opReply)
	dst = binary.LittleEndian.AppendUint32(dst, replyAwaitCapable)
	dst = binary.LittleEndian.AppendUint64(dst, 0) // no cursor
	dst = binary.LittleEndian.AppendUint32(dst, 0) // from the first document
	dst = binary.LittleEndian.AppendUint32(dst, 1) // of one
	return finish(append(dst, m.Body...), start, m)
}

// AppendLegacyQuery appends the body of m to dst in the form of OP_QUERY on the
// command collection of db, as the first message of older drivers. It fails
// like AppendMessage.
func AppendLegacyQuery(dst []byte, m *Message, db string) ([]byte, error) {
	start := len(dst)
	dst = appendHeader(dst, m, opQuery)
	dst = binary.LittleEndian.AppendUint32(dst, querySecondaryOK)
	dst = append(append(append(dst, db...), commandCollection...), 0)
	dst = binary.LittleEndian.AppendUint32(dst, 0)          // skip none
	dst = binary.LittleEndian.AppendUint32(dst, ^uint32(0)) // return one, -1
	return finish(append(dst, m.Body...), start, m)
}

func appendHeader(dst []byte, m *Message, op uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, 0) // the length, by finish
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.RequestID))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(m.ResponseTo))
	return binary.LittleEndian.AppendUint32(dst, op)
}

// finish writes the length of the message that starts at start and ends dst.
func finish(dst []byte, start int, m *Message) ([]byte, error) {
	return finishAt(dst, start, len(dst)-start, m)
}

// finishAt writes the length of the message that starts at start.
func finishAt(dst []byte, start, size int, m *Message) ([]byte, error) {
	if len(m.Body) < rawbson.MinSize || len(m.Body) > MaxDocumentSize {
		return dst, fmt.Errorf("wire: write message %d: a body of %d bytes, it may have %d to %d",
			m.RequestID, len(m.Body), rawbson.MinSize, MaxDocumentSize)
	}
	if size > MaxMessageSize {
		return dst, fmt.Errorf("wire: write message %d: it has %d bytes, the limit is %d",
			m.RequestID, size, MaxMessageSize)
	}
	return bsoncore.UpdateLength(dst, int32(start), int32(size)), nil
}
