package workload

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

const (
	// wideSize is from which size on, in bytes, documents have ten fields to set.
	wideSize   = 192
	manyFields = 10
	// mostElements is the length at which an array is cut back.
	mostElements = 12
	// stampDigits is the length of the number that a text begins with.
	stampDigits = 13
	// firstDate is where the dates of updates begin, in milliseconds; those of
	// documents are before it.
	firstDate = 1_700_000_000_000
)

// field is a scalar field of a document.
type field struct {
	name string
	typ  bson.Type
}

// layout is what the documents of a workload look like:
//
//	{_id, scalars…, in: {a, b}, l: [numbers], [x.y], s: text, [p]}
//
// The last field is there for updates that remove and add one: p turns to q and
// back. A small document has few scalars, so that a size below a hundred bytes can be
// had.
type layout struct {
	scalars []field
	// elements is how many an array has at first.
	elements int
	dotted   bool
	toggled  bool
	// least is the size without text, in bytes, size the median and spread that of
	// its logarithm.
	least, size int
	spread      float64
}

func newLayout(w Workload) *layout {
	l := &layout{elements: 1, dotted: w.Deltas.Dotted > 0, toggled: w.Deltas.Unset > 0, size: w.Size, spread: w.Spread}
	l.scalars = []field{{"at", bson.TypeDateTime}, {"n", bson.TypeInt32}}
	if w.Size >= wideSize {
		l.elements = 3
		l.scalars = []field{
			{"a", bson.TypeInt32},
			{"at", bson.TypeDateTime},
			{"b", bson.TypeInt32},
			{"c", bson.TypeInt32},
			{"d", bson.TypeInt32},
			{"e", bson.TypeInt32},
			{"f", bson.TypeDouble},
			{"g", bson.TypeInt32},
			{"k", bson.TypeInt64},
			{"n", bson.TypeInt32},
		}
	}
	measure := maker{layout: l, pcg: rand.NewPCG(0, 0), words: []byte{' '}}
	l.least = len(measure.appendDocument(nil, 0, 0, 0))
	return l
}

// keys are the fields that can have an index, the most usual first.
func (l *layout) keys() []string {
	var keys []string
	for _, f := range l.scalars {
		keys = append(keys, f.name)
	}
	slices.Reverse(keys)
	return append(keys, "in.a", "l")
}

// maker makes documents. The same number and version give the same document, so that
// none has to be kept. It is for one goroutine.
type maker struct {
	*layout
	seed  uint64
	pcg   *rand.PCG
	rand  *rand.Rand
	words []byte
}

func newMaker(seed uint64, l *layout) *maker {
	pcg := rand.NewPCG(seed, 0)
	return &maker{layout: l, seed: seed, pcg: pcg, rand: rand.New(pcg), words: newWords(seed)}
}

// document returns a document in memory of the arena. Version 0 is the one that is
// inserted.
func (m *maker) document(a *arena, number uint32, version uint64) bson.Raw {
	size := m.start(number, version)
	return a.end(m.appendDocument(a.begin(size), number, version, size))
}

// start makes the random numbers those of a document, and draws its size.
func (m *maker) start(number uint32, version uint64) int {
	m.pcg.Seed(m.seed^mix64(version), uint64(number))
	if m.spread == 0 {
		return max(m.size, m.least)
	}
	size := float64(m.size) * math.Exp(m.spread*m.rand.NormFloat64())
	return int(min(max(size, float64(m.least)), maxDocument))
}

// appendDocument appends a document with a size in bytes, or a larger one if its other
// fields take more. The random numbers are those that start has left.
func (m *maker) appendDocument(dst []byte, number uint32, version uint64, size int) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = appendID(dst, m.seed, number)
	for _, f := range m.scalars {
		dst = m.appendFirst(dst, f)
	}
	r := m.pcg.Uint64()
	in, dst := bsoncore.AppendDocumentElementStart(dst, "in")
	dst = appendInt32(dst, "a", first32(r))
	dst = appendInt32(dst, "b", first32(r>>32))
	dst = endDocument(dst, in)
	dst = m.appendArray(dst, m.pcg.Uint64())
	if m.dotted {
		dst = appendInt32(dst, "x.y", first32(m.pcg.Uint64()))
	}
	dst = m.appendText(dst, max(size-m.least, 0), version)
	if m.toggled {
		dst = appendInt32(dst, "p", first32(m.pcg.Uint64()))
	}
	return endDocument(dst, start)
}

// appendFirst appends a scalar field with a value that no update writes.
func (m *maker) appendFirst(dst []byte, f field) []byte {
	r := m.pcg.Uint64()
	switch f.typ {
	case bson.TypeInt64:
		return bsoncore.AppendInt64Element(dst, f.name, int64(r>>24))
	case bson.TypeDouble:
		return bsoncore.AppendDoubleElement(dst, f.name, float64(r>>40)/16)
	case bson.TypeDateTime:
		return bsoncore.AppendDateTimeElement(dst, f.name, firstDate-1-int64(r>>30))
	default:
		return appendInt32(dst, f.name, first32(r))
	}
}

// appendArray appends the array as it is at first, or is again once it has become
// too long.
func (m *maker) appendArray(dst []byte, r uint64) []byte {
	start, dst := bsoncore.AppendArrayElementStart(dst, "l")
	for i := range m.elements {
		dst = appendInt32(dst, indexNames[i], first32(r>>i))
	}
	return endDocument(dst, start)
}

// appendText appends a text of n bytes.
func (m *maker) appendText(dst []byte, n int, version uint64) []byte {
	dst = append(dst, byte(bson.TypeString), 's', 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n+1))
	at := int(m.pcg.Uint64() % uint64(len(m.words)))
	// The version comes first: an update never writes the text that is there.
	stamp := [stampDigits]byte{}
	for i := len(stamp) - 1; i >= 0; i-- {
		stamp[i] = '0' + byte(version%10)
		version /= 10
	}
	k := min(n, len(stamp))
	dst, n = append(dst, stamp[:k]...), n-k
	for n > 0 {
		k := min(n, len(m.words)-at)
		dst = append(dst, m.words[at:at+k]...)
		n, at = n-k, 0
	}
	return append(dst, 0)
}

// newWords returns words, as text has them: it can be compressed, but does not repeat
// itself.
func newWords(seed uint64) []byte {
	const length, vocabulary = 64 << 10, 1_500
	r := rand.New(rand.NewPCG(seed, 3))
	words := make([]string, vocabulary)
	for i := range words {
		word := make([]byte, 2+r.IntN(8))
		for j := range word {
			word[j] = "etaoinshrdlucmfwypvbgk"[min(r.IntN(22), r.IntN(22))]
		}
		words[i] = string(word)
	}
	text := make([]byte, 0, length+16)
	for len(text) < length {
		text = append(append(text, ' '), words[min(r.IntN(vocabulary), r.IntN(vocabulary))]...)
	}
	return text
}

// first32 is a number that a document has from the start, fresh32 one that the
// update of this number writes: they are never the same.
func first32(r uint64) int32 { return int32(r & (1<<30 - 1)) }

func fresh32(seq uint64) int32 { return int32(1<<30 | seq*0x9E3779B1&(1<<30-1)) }

// appendFresh appends a scalar field as the update of this number writes it.
func appendFresh(dst []byte, f field, seq uint64) []byte {
	switch f.typ {
	case bson.TypeInt64:
		return bsoncore.AppendInt64Element(dst, f.name, int64(1<<62|mix64(seq)&(1<<61-1)))
	case bson.TypeDouble:
		return bsoncore.AppendDoubleElement(dst, f.name, 1<<30+float64(seq)/4)
	case bson.TypeDateTime:
		return bsoncore.AppendDateTimeElement(dst, f.name, firstDate+int64(seq))
	default:
		return appendInt32(dst, f.name, fresh32(seq))
	}
}

// appendInt32 is bsoncore's function without its check of the name, which takes most
// of the time for so small a field.
func appendInt32(dst []byte, name string, value int32) []byte {
	dst = append(append(append(dst, byte(bson.TypeInt32)), name...), 0)
	return binary.LittleEndian.AppendUint32(dst, uint32(value))
}

// endDocument closes a document or an array that was begun at start.
func endDocument(dst []byte, start int32) []byte {
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst))-uint32(start))
	return dst
}

// indexNames are the field names of an array's elements.
var indexNames = [...]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"}
