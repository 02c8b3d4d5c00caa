package wire_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/wire"
)

func mode(m string) []byte {
	return bsoncore.AppendDocumentElement(nil, "$readPreference", doc(text("mode", m)))
}

func wrapped(name string, command bson.Raw) []byte {
	return bsoncore.AppendDocumentElement(nil, name, command)
}

func TestLegacyBodyIsBroughtIntoTheModernForm(t *testing.T) {
	hello := number("isMaster", 1)
	for _, tc := range []struct {
		name  string
		flags uint32
		query bson.Raw
		want  bson.Raw
	}{
		{"plain", 0, doc(hello), doc(hello, text("$db", "admin"))},
		{"secondary ok", 4, doc(hello), doc(hello, text("$db", "admin"), mode("secondaryPreferred"))},
		{"own preference", 4, doc(hello, mode("nearest")), doc(hello, mode("nearest"), text("$db", "admin"))},
		{"wrapped", 0, doc(wrapped("$query", doc(hello))), doc(hello, text("$db", "admin"))},
		{"wrapped in the older way", 0, doc(wrapped("query", doc(hello))), doc(hello, text("$db", "admin"))},
		{"wrapped with a preference", 4, doc(wrapped("$query", doc(hello)), mode("nearest")), doc(hello, text("$db", "admin"), mode("nearest"))},
		{"a command named query", 0, doc(number("query", 1)), doc(number("query", 1), text("$db", "admin"))},
		{"with its database", 0, doc(hello, text("$db", "admin")), doc(hello, text("$db", "admin"))},
		{"empty", 0, doc(), doc(text("$db", "admin"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, limit := range []int32{1, -1} {
				for _, projection := range [][]byte{nil, doc()} {
					m, err := read(query(tc.flags, "admin.$cmd", limit, tc.query, projection))
					if err != nil {
						t.Fatal(err)
					}
					want := &wire.Message{RequestID: 7, Legacy: true, Body: tc.want}
					if diff := cmp.Diff(want, m); diff != "" {
						t.Error(diff)
					}
				}
			}
		})
	}
}

func TestLegacyReplyIsRead(t *testing.T) {
	want := &wire.Message{RequestID: 5, ResponseTo: 4, Legacy: true, Body: ping()}
	frame := must(t)(wire.AppendLegacyReply(nil, want))
	got, err := wire.NewReader(bytes.NewReader(frame)).ReadReply()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if frame[16] != 8 {
		t.Errorf("flags are %d, the server's are 8", frame[16])
	}
}

func TestMalformedLegacyReplies(t *testing.T) {
	for name, f := range map[string][]byte{
		"cut in the cursor": frame(1, u32(8), u32(0)),
		"no count":          frame(1, make([]byte, 16)),
		"two documents":     frame(1, make([]byte, 16), u32(2), doc(), doc()),
		"no document":       frame(1, make([]byte, 16), u32(1)),
		"bytes after":       frame(1, make([]byte, 16), u32(1), doc(), []byte{0}),
		"a query":           query(0, "admin.$cmd", -1, doc()),
	} {
		m, err := wire.NewReader(bytes.NewReader(f)).ReadReply()
		if _, ok := errors.AsType[*wire.ProtocolError](err); !ok {
			t.Errorf("%s: got %v and error %v", name, m, err)
		}
	}
}

func TestTooBigIsNotWritten(t *testing.T) {
	huge := make(bson.Raw, wire.MaxDocumentSize)
	for name, m := range map[string]*wire.Message{
		"no body":         {},
		"a big body":      {Body: append(huge, 0)},
		"a big message":   {Body: ping(), Sequences: []wire.Sequence{{Name: "a", Docs: []bson.Raw{huge, huge, huge}}}},
		"with a checksum": {Flags: wire.ChecksumPresent},
	} {
		if _, err := wire.AppendMessage(nil, m); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if _, err := wire.AppendLegacyReply(nil, &wire.Message{}); err == nil {
		t.Error("a legacy reply without a body was written")
	}
	if _, err := wire.AppendLegacyQuery(nil, &wire.Message{Body: append(huge, 0)}, "d"); err == nil {
		t.Error("a legacy query with a big body was written")
	}
}
