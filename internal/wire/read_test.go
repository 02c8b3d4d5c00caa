package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/wire"
)

func doc(elems ...[]byte) bson.Raw { return bson.Raw(bsoncore.BuildDocument(nil, elems...)) }

func number(name string, n int32) []byte { return bsoncore.AppendInt32Element(nil, name, n) }

func text(name, s string) []byte { return bsoncore.AppendStringElement(nil, name, s) }

func ping() bson.Raw { return doc(number("ping", 1), text("$db", "admin")) }

// must is for encodings that cannot fail.
func must(t testing.TB) func(buf []byte, err error) []byte {
	return func(buf []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return buf
	}
}

func read(frame []byte) (*wire.Message, error) {
	return wire.NewReader(bytes.NewReader(frame)).ReadMessage()
}

func documents() *rapid.Generator[bson.Raw] { return rapid.Custom(bsongen.Document) }

func messages() *rapid.Generator[*wire.Message] {
	return rapid.Custom(func(t *rapid.T) *wire.Message {
		m := &wire.Message{
			RequestID:  rapid.Int32().Draw(t, "id"),
			ResponseTo: rapid.Int32().Draw(t, "to"),
			Body:       documents().Draw(t, "body"),
		}
		for _, f := range []wire.Flags{wire.ChecksumPresent, wire.MoreToCome, wire.ExhaustAllowed, 1 << 20} {
			if rapid.Bool().Draw(t, "flag") {
				m.Flags |= f
			}
		}
		for i := range rapid.IntRange(0, wire.MaxSequences).Draw(t, "sequences") {
			m.Sequences = append(m.Sequences, wire.Sequence{
				Name: fmt.Sprintf("sequence%d", i),
				Docs: rapid.SliceOfN(documents(), 0, 5).Draw(t, "docs"),
			})
		}
		return m
	})
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var stream []byte
		sent := rapid.SliceOfN(messages(), 1, 3).Draw(rt, "messages")
		for _, m := range sent {
			stream = must(t)(wire.AppendMessage(stream, m))
		}
		var in io.Reader = bytes.NewReader(stream)
		if rapid.Bool().Draw(rt, "in small pieces") {
			in = iotest.OneByteReader(in)
		}
		r := wire.NewReader(in)
		for _, want := range sent {
			got, err := r.ReadMessage()
			if err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatal(diff)
			}
		}
		if _, err := r.ReadMessage(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			rt.Fatalf("after the last message: %v", err)
		}
	})
}

func TestSequenceIsFoundByName(t *testing.T) {
	m := &wire.Message{Sequences: []wire.Sequence{{Name: "ops"}, {Name: "nsInfo", Docs: []bson.Raw{ping()}}}}
	if docs, ok := m.Sequence("nsInfo"); !ok || len(docs) != 1 {
		t.Errorf("nsInfo has %d documents, %t", len(docs), ok)
	}
	if _, ok := m.Sequence("documents"); ok {
		t.Error("a sequence that is not there was found")
	}
}

// The bytes of a checksum that a well-known implementation gives: CRC-32C of
// "123456789" is e3069283.
func TestChecksumIsCastagnoli(t *testing.T) {
	if got := crc32.Checksum([]byte("123456789"), crc32.MakeTable(crc32.Castagnoli)); got != 0xe3069283 {
		t.Fatalf("the table is another one: %#x", got)
	}
	frame := must(t)(wire.AppendMessage(nil, &wire.Message{RequestID: 1, Flags: wire.ChecksumPresent, Body: ping()}))
	want := crc32.Checksum(frame[:len(frame)-4], crc32.MakeTable(crc32.Castagnoli))
	if got := binary.LittleEndian.Uint32(frame[len(frame)-4:]); got != want {
		t.Errorf("the checksum is %#x, want %#x", got, want)
	}
}

// frame puts the length and a header in front of a body.
func frame(op uint32, parts ...[]byte) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint32(b[4:], 7)
	binary.LittleEndian.PutUint32(b[12:], op)
	b = append(b, bytes.Join(parts, nil)...)
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	return b
}

func u32(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

func body(d []byte) []byte { return append([]byte{0}, d...) }

func sequence(name string, docs ...[]byte) []byte {
	rest := append([]byte(name+"\x00"), bytes.Join(docs, nil)...)
	return append(append([]byte{1}, u32(uint32(len(rest)+4))...), rest...)
}

func query(flags uint32, ns string, limit int32, docs ...[]byte) []byte {
	return frame(2004, u32(flags), []byte(ns+"\x00"), u32(0), u32(uint32(limit)), bytes.Join(docs, nil))
}

func withSize(f []byte, size int32) []byte {
	binary.LittleEndian.PutUint32(f, uint32(size))
	return f
}

func TestMalformedMessages(t *testing.T) {
	broken := doc(text("a", "b"))
	broken[len(broken)-2] = 'x' // the string's terminator
	bigDoc := binary.LittleEndian.AppendUint32(nil, wire.MaxDocumentSize+1)
	bigDoc = append(bigDoc, make([]byte, wire.MaxDocumentSize-3)...)
	summed := must(t)(wire.AppendMessage(nil, &wire.Message{Flags: wire.ChecksumPresent, Body: ping()}))
	summed[20] = 9 // the section's kind: the checksum comes first
	flipped := must(t)(wire.AppendMessage(nil, &wire.Message{Flags: wire.ChecksumPresent, Body: ping()}))
	flipped[len(flipped)-1] ^= 1
	for _, tc := range []struct {
		name   string
		frame  []byte
		where  string
		offset int
		what   string
	}{
		{"length 0", withSize(frame(2013), 0), "header", 0, "a length of 0"},
		{"length 15", withSize(frame(2013), 15), "header", 0, "a length of 15"},
		{"negative length", withSize(frame(2013), -1), "header", 0, "a length of -1"},
		{"too long", withSize(frame(2013), wire.MaxMessageSize+1), "header", 0, "a length of 48000001"},
		{"compressed", frame(2012, make([]byte, 9)), "header", 12, "unknown opcode 2012"},
		{"insert", frame(2002, make([]byte, 9)), "header", 12, "unknown opcode 2002"},
		{"a reply", frame(1, make([]byte, 20), doc()), "header", 12, "unknown opcode 1"},
		{"no flags", frame(2013, []byte{0, 0}), "OP_MSG flags", 16, "ends in a number"},
		{"unknown flag", frame(2013, u32(1<<2), body(ping())), "OP_MSG flags", 16, "0x4"},
		{"highest required flag", frame(2013, u32(1<<15|1<<16), body(ping())), "OP_MSG flags", 16, "0x8000"},
		{"no section", frame(2013, u32(0)), "OP_MSG", 20, "no body"},
		{"only a sequence", frame(2013, u32(0), sequence("documents")), "OP_MSG", 35, "no body"},
		{"two bodies", frame(2013, u32(0), body(doc()), body(doc())), "OP_MSG", 26, "a second body"},
		{"section kind 2", frame(2013, u32(0), []byte{2}, doc()), "OP_MSG", 20, "unknown section kind 2"},
		{"body cut off", frame(2013, u32(0), []byte{0, 5, 0}), "OP_MSG body", 21, "takes at least 5 bytes, there are 2"},
		{"body too long", frame(2013, u32(0), body([]byte{6, 0, 0, 0, 0})), "OP_MSG body", 21, "a length of 6 with 5"},
		{"body of length 4", frame(2013, u32(0), body([]byte{4, 0, 0, 0, 0})), "OP_MSG body", 21, "a length of 4"},
		{"negative body", frame(2013, u32(0), body([]byte{0, 0, 0, 0x80, 0})), "OP_MSG body", 21, "a length of -2147483648"},
		{"body beyond the limit", frame(2013, u32(0), body(bigDoc)), "OP_MSG body", 21, "16793601 bytes, the limit is 16793600"},
		{"corrupt body", frame(2013, u32(0), body(broken)), "OP_MSG body", 21, "a string without its terminator"},
		{"sequence without length", frame(2013, u32(0), body(doc()), []byte{1, 9}), "OP_MSG document sequence", 27, "ends in a number"},
		{"sequence too long", frame(2013, u32(0), []byte{1}, u32(99), []byte("a\x00")), "OP_MSG document sequence", 21, "a length of 99 with 6"},
		{"sequence of length 3", frame(2013, u32(0), []byte{1}, u32(3), body(doc())), "OP_MSG document sequence", 21, "a length of 3"},
		{"negative sequence", frame(2013, u32(0), []byte{1}, u32(1<<31), body(doc())), "OP_MSG document sequence", 21, "a length of -2147483648"},
		{"sequence without name", frame(2013, u32(0), []byte{1}, u32(4), body(doc())), "OP_MSG document sequence", 25, "a name without an end"},
		{"document over the sequence's end", frame(2013, u32(0), []byte{1}, u32(10), []byte("a\x00"), []byte{6, 0, 0, 0}, body(doc())), "OP_MSG document sequence", 27, "takes at least 5 bytes, there are 4"},
		{"corrupt document", frame(2013, u32(0), sequence("a", doc(), broken), body(doc())), "OP_MSG document sequence", 32, "a string without its terminator"},
		{"a sequence twice", frame(2013, u32(0), sequence("a"), sequence("a"), body(doc())), "OP_MSG", 34, `a second document sequence "a"`},
		{"three sequences", frame(2013, u32(0), sequence("a"), sequence("b"), sequence("c"), body(doc())), "OP_MSG", 34, "more than 2"},
		{"sequence and field", frame(2013, u32(0), sequence("a"), body(doc(number("a", 1)))), "OP_MSG", 40, `"a" is a document sequence and a field`},
		{"sequence and inner field", frame(2013, u32(0), sequence("a.b"), body(doc(bsoncore.AppendDocumentElement(nil, "a", doc(number("b", 1)))))), "OP_MSG", 50, `"a.b" is a document sequence and a field`},
		{"sequence and array", frame(2013, u32(0), sequence("a.b"), body(doc(bsoncore.AppendArrayElement(nil, "a", doc())))), "OP_MSG", 43, `"a.b" is a document sequence and a field`},
		{"no room for a checksum", frame(2013, u32(1), []byte{0, 0, 0}), "OP_MSG checksum", 20, "ends before it"},
		{"wrong checksum", flipped, "OP_MSG checksum", len(flipped) - 4, "the message has"},
		{"changed bytes", summed, "OP_MSG checksum", len(summed) - 4, "the message has"},
		{"a query", query(0, "db.coll", -1, doc()), "OP_QUERY namespace", 28, "not the command collection"},
		{"a query without database", query(0, ".$cmd", -1, doc()), "OP_QUERY namespace", 26, "not the command collection"},
		{"a query on sys", query(0, "db.$cmd.sys.inprog", -1, doc()), "OP_QUERY namespace", 39, "not the command collection"},
		{"a query on a dotted database", query(0, "a.b.$cmd", -1, doc()), "OP_QUERY namespace", 29, "not the command collection"},
		{"a namespace without end", frame(2004, u32(0), []byte("db")), "OP_QUERY namespace", 20, "a name without an end"},
		{"an exhaust query", query(1<<6, "db.$cmd", -1, doc()), "OP_QUERY flags", 20, "exhaust"},
		{"a query for two", query(0, "db.$cmd", 2, doc()), "OP_QUERY numberToReturn", 36, "2, a command takes 1 or -1"},
		{"a query for all", query(0, "db.$cmd", 0, doc()), "OP_QUERY numberToReturn", 36, "0, a command takes 1 or -1"},
		{"a query of nothing", query(0, "db.$cmd", -1), "OP_QUERY command", 36, "there are 0"},
		{"a query with more", query(0, "db.$cmd", -1, doc(), doc(), []byte{0}), "OP_QUERY", 46, "1 bytes after the end"},
		{"a query with half a projection", query(0, "db.$cmd", -1, doc(), []byte{0}), "OP_QUERY projection", 41, "there are 1"},
		{"a query of another database", query(0, "db.$cmd", -1, doc(text("$db", "x"))), "OP_QUERY command", 16, `$db is not "db"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, err := read(tc.frame)
			fault, ok := errors.AsType[*wire.ProtocolError](err)
			if !ok {
				t.Fatalf("got %v and error %v, want a *ProtocolError", m, err)
			}
			if fault.Where != tc.where || fault.Offset != tc.offset || !strings.Contains(err.Error(), tc.what) {
				t.Errorf("error is %q, want %q in %s at byte %d", err, tc.what, tc.where, tc.offset)
			}
		})
	}
}

func TestCorruptDocumentIsNamedByItsCause(t *testing.T) {
	_, err := read(frame(2013, u32(0), body([]byte{6, 0, 0, 0, 0x14, 0})))
	if c, ok := errors.AsType[*rawbson.CorruptError](err); !ok || c.Offset == 0 {
		t.Errorf("error is %v, want the fault of the document", err)
	}
}

func TestMessageCutOffAnywhere(t *testing.T) {
	whole := must(t)(wire.AppendMessage(nil, &wire.Message{
		Flags: wire.ChecksumPresent, Body: ping(),
		Sequences: []wire.Sequence{{Name: "documents", Docs: []bson.Raw{ping()}}},
	}))
	for n := 1; n < len(whole); n++ {
		if _, err := read(whole[:n]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestMemoryGrowsWithWhatComes(t *testing.T) {
	header := withSize(frame(2013), wire.MaxMessageSize)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := read(header); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("a header alone made the reader allocate %d bytes", n)
	}
	big := &wire.Message{Body: ping(), Sequences: []wire.Sequence{{Name: "documents"}}}
	for range 5 {
		big.Sequences[0].Docs = append(big.Sequences[0].Docs, doc(text("s", strings.Repeat("x", 1<<20))))
	}
	got, err := read(must(t)(wire.AppendMessage(nil, big)))
	if err != nil {
		t.Fatal(err)
	}
	docs, _ := got.Sequence("documents")
	for i, d := range big.Sequences[0].Docs {
		if !bytes.Equal(docs[i], d) {
			t.Errorf("document %d of 5 MiB was read as another one", i)
		}
	}
}

func TestDocumentsMayBeAppendedTo(t *testing.T) {
	in := &wire.Message{Body: ping(), Sequences: []wire.Sequence{{Name: "a", Docs: []bson.Raw{ping(), ping()}}}}
	m, err := read(must(t)(wire.AppendMessage(nil, in)))
	if err != nil {
		t.Fatal(err)
	}
	docs, _ := m.Sequence("a")
	_ = append(docs[0], 0xff)
	if !bytes.Equal(docs[1], ping()) {
		t.Error("appending to a document wrote into the next one")
	}
}

func FuzzReadMessage(f *testing.F) {
	for _, flags := range []wire.Flags{0, wire.ChecksumPresent, wire.MoreToCome, wire.ExhaustAllowed | 1<<30} {
		f.Add(must(f)(wire.AppendMessage(nil, &wire.Message{
			RequestID: 3, Flags: flags, Body: ping(),
			Sequences: []wire.Sequence{{Name: "a", Docs: []bson.Raw{ping(), doc()}}, {Name: "b"}},
		})))
	}
	f.Add(must(f)(wire.AppendLegacyQuery(nil, &wire.Message{Body: doc(number("isMaster", 1))}, "admin")))
	f.Add(query(4, "admin.$cmd", 1, doc(bsoncore.AppendDocumentElement(nil, "$query", ping())), doc()))
	f.Add(must(f)(wire.AppendLegacyReply(nil, &wire.Message{Body: ping()})))
	f.Add(frame(2012, make([]byte, 9)))
	f.Add(withSize(frame(2013), wire.MaxMessageSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := wire.NewReader(bytes.NewReader(b)).ReadReply(); err == nil && rawbson.Validate(m.Body) != nil {
			t.Errorf("a reply with a corrupt body: %x", m.Body)
		}
		m, err := read(b)
		if err != nil {
			return
		}
		for _, s := range m.Sequences {
			for _, d := range s.Docs {
				if err := rawbson.Validate(d); err != nil {
					t.Errorf("sequence %q: %v", s.Name, err)
				}
			}
		}
		if err := rawbson.Validate(m.Body); err != nil {
			t.Errorf("body: %v", err)
		}
		// An accepted message has to survive being written. The order of the
		// sections is not kept, and a legacy body may grow beyond the limit.
		again, err := wire.AppendMessage(nil, m)
		if err != nil {
			return
		}
		m.Legacy = false
		if got, err := read(again); err != nil || !cmp.Equal(m, got) {
			t.Errorf("written again it is read as %v, %v, want %v", got, err, m)
		}
	})
}
