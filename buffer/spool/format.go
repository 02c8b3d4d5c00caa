package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// A segment file is a preamble and records. All numbers are little-endian.
//
//	preamble  magic 8 | version 4 | length of ID 4 | number 8 | previous 16 | made 8 | ID | sum 4
//	record    magic 4 | length 4 | entries 4 | sum of payload 4 | offset 8 | synced 8 |
//	          received 8 | first 16 | last 16 | sum of the 72 bytes before 4 | payload
//
// An optime is seconds 4 | increment 4 | term 8. The checksums of records are seeded
// with that of the preamble, so that no record is valid in another file, or in an older
// one of the same number.
const (
	fileMagic   = "RPLSPOOL"
	version     = 1
	idAt        = 48 // where the ID is in a preamble
	maxID       = 4 << 10
	recordMagic = "\xf1rec"
	headSize    = 76 // of a record without its payload, in bytes
	entrySize   = int64(unsafe.Sizeof(oplog.Entry{}))
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// noTime stands for the zero time.
const noTime = math.MinInt64

// preamble is the beginning of a segment file.
type preamble struct {
	number uint64
	// previous is the last entry before the file, null if there is none.
	previous oplog.OpTime
	// made distinguishes a file from an older one of the same number.
	made int64
	id   string
	// sum is the checksum of the preamble, which seeds the checksums of the records.
	sum uint32
}

func (p *preamble) size() int64 { return preambleSize(p.id) }

func preambleSize(id string) int64 { return idAt + int64(len(id)) + 4 }

// encode returns the bytes of p and sets its sum.
func (p *preamble) encode() []byte {
	b := make([]byte, 0, p.size())
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.id)))
	b = binary.LittleEndian.AppendUint64(b, p.number)
	b = appendOpTime(b, p.previous)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.made))
	b = append(b, p.id...)
	p.sum = crc32.Checksum(b, castagnoli)
	return binary.LittleEndian.AppendUint32(b, p.sum)
}

// errShort reports that a file ends within its preamble.
var errShort = errors.New("the file ends within its preamble")

// parsePreamble parses the preamble at the beginning of b.
func parsePreamble(b []byte) (preamble, error) {
	var p preamble
	if len(b) < idAt {
		return p, errShort
	}
	if string(b[:8]) != fileMagic {
		return p, errors.New("it is not a spool file")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return p, fmt.Errorf("it has format %d, this program knows %d", v, version)
	}
	n := int64(binary.LittleEndian.Uint32(b[12:]))
	if n > maxID {
		return p, fmt.Errorf("its ID has an invalid length of %d bytes", n)
	}
	end := idAt + n
	if int64(len(b)) < end+4 {
		return p, errShort
	}
	p = preamble{
		number:   binary.LittleEndian.Uint64(b[16:]),
		previous: opTimeAt(b[24:]),
		made:     int64(binary.LittleEndian.Uint64(b[40:])),
		id:       string(b[idAt:end]),
		sum:      binary.LittleEndian.Uint32(b[end:]),
	}
	if crc32.Checksum(b[:end], castagnoli) != p.sum {
		return p, errors.New("the checksum of its preamble is wrong")
	}
	return p, nil
}

// head is a record without its payload.
type head struct {
	length  uint32
	entries uint32
	sum     uint32
	// offset is where the record begins in its file, in bytes. synced is up to where
	// the file was known to be on disk when the record was written: a fault before that
	// is damage, not a torn end.
	offset, synced int64
	received       time.Time
	first, last    oplog.OpTime
}

// size returns the size of the record, in bytes.
func (h *head) size() int64 { return headSize + int64(h.length) }

// memory returns the memory that its entries take, in bytes.
func (h *head) memory() int64 { return int64(h.length) + int64(h.entries)*entrySize }

// encode writes h, and sets its sum, before the payload that b contains from byte 76
// on.
func (h *head) encode(b []byte, seed uint32) {
	h.length = uint32(len(b) - headSize)
	h.sum = crc32.Update(seed, castagnoli, b[headSize:])
	received := int64(noTime)
	if !h.received.IsZero() {
		received = h.received.UnixNano()
	}
	w := b[:0]
	w = append(w, recordMagic...)
	w = binary.LittleEndian.AppendUint32(w, h.length)
	w = binary.LittleEndian.AppendUint32(w, h.entries)
	w = binary.LittleEndian.AppendUint32(w, h.sum)
	w = binary.LittleEndian.AppendUint64(w, uint64(h.offset))
	w = binary.LittleEndian.AppendUint64(w, uint64(h.synced))
	w = binary.LittleEndian.AppendUint64(w, uint64(received))
	w = appendOpTime(w, h.first)
	w = appendOpTime(w, h.last)
	binary.LittleEndian.AppendUint32(w, crc32.Update(seed, castagnoli, w))
}

var (
	errMagic  = errors.New("no record starts here")
	errHead   = errors.New("the checksum of a record's header is wrong")
	errSum    = errors.New("the checksum of a record is wrong")
	errOffset = errors.New("the record belongs to another offset or file")
	errTorn   = errors.New("the file ends within a record")
)

// parseHead parses the head of a record at an offset of its file. b has at least 76
// bytes.
func parseHead(b []byte, offset int64, seed uint32) (head, error) {
	const sumAt = headSize - 4
	if string(b[:4]) != recordMagic {
		return head{}, errMagic
	}
	if crc32.Update(seed, castagnoli, b[:sumAt]) != binary.LittleEndian.Uint32(b[sumAt:]) {
		return head{}, errHead
	}
	h := head{
		length:  binary.LittleEndian.Uint32(b[4:]),
		entries: binary.LittleEndian.Uint32(b[8:]),
		sum:     binary.LittleEndian.Uint32(b[12:]),
		offset:  int64(binary.LittleEndian.Uint64(b[16:])),
		synced:  int64(binary.LittleEndian.Uint64(b[24:])),
		first:   opTimeAt(b[40:]),
		last:    opTimeAt(b[56:]),
	}
	if ns := int64(binary.LittleEndian.Uint64(b[32:])); ns != noTime {
		h.received = time.Unix(0, ns)
	}
	if h.offset != offset {
		return h, errOffset
	}
	return h, nil
}

// check reports whether payload belongs to h: its bytes, and the number of its entries.
func (h *head) check(payload []byte, seed uint32) error {
	if crc32.Update(seed, castagnoli, payload) != h.sum {
		return errSum
	}
	n := uint32(0)
	for rest := payload; len(rest) > 0; n++ {
		doc, err := cutDoc(rest)
		if err != nil {
			return err
		}
		rest = rest[len(doc):]
	}
	if n == 0 || n != h.entries {
		return fmt.Errorf("a record has %d entries, its header says %d", n, h.entries)
	}
	return nil
}

// parse returns the entries of a payload that was checked. They must match h.
func (h *head) parse(payload []byte) ([]oplog.Entry, error) {
	list := make([]oplog.Entry, h.entries)
	for i := range list {
		doc, err := cutDoc(payload)
		if err != nil {
			return nil, err
		}
		if err := list[i].Parse(doc); err != nil {
			return nil, err
		}
		if i > 0 && !follows(list[i].OpTime, list[i-1].OpTime) {
			return nil, notAfter(list[i-1].OpTime, list[i].OpTime)
		}
		payload = payload[len(doc):]
	}
	if list[0].OpTime != h.first || list[len(list)-1].OpTime != h.last {
		return nil, fmt.Errorf("a record has the entries %s to %s, its header says %s to %s",
			list[0].OpTime, list[len(list)-1].OpTime, h.first, h.last)
	}
	return list, nil
}

// cutDoc returns the document at the beginning of b.
func cutDoc(b []byte) (bson.Raw, error) {
	if len(b) < rawbson.MinSize {
		return nil, errors.New("a record ends within an entry")
	}
	n := binary.LittleEndian.Uint32(b)
	if n < rawbson.MinSize || uint64(n) > uint64(len(b)) {
		return nil, errors.New("a record ends within an entry")
	}
	return bson.Raw(b[:n:n]), nil
}

func appendOpTime(b []byte, o oplog.OpTime) []byte {
	b = binary.LittleEndian.AppendUint32(b, o.TS.T)
	b = binary.LittleEndian.AppendUint32(b, o.TS.I)
	return binary.LittleEndian.AppendUint64(b, uint64(o.Term))
}

func opTimeAt(b []byte) oplog.OpTime {
	return oplog.NewOpTime(binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]),
		int64(binary.LittleEndian.Uint64(b[8:])))
}

// follows reports whether an entry can come after another one: timestamps ascend
// strictly, and terms do not decrease.
func follows(o, before oplog.OpTime) bool {
	return oplog.CompareTimestamps(o.TS, before.TS) > 0 &&
		(o.Term >= before.Term || o.Term == oplog.UninitializedTerm)
}
