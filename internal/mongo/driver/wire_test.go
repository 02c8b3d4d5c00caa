package driver

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
)

// FuzzReadMessage: no message causes a panic, and a returned document has the bytes of the
// message.
func FuzzReadMessage(f *testing.F) {
	ok := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "ok", 1))
	payload := append([]byte{0, 0, 0, 0, 0}, ok...)
	f.Add(append(wiremessage.AppendHeader(nil, int32(16+len(payload)), 1, 7, wiremessage.OpMsg), payload...))
	for _, id := range []wiremessage.CompressorID{wiremessage.CompressorNoOp, wiremessage.CompressorSnappy, wiremessage.CompressorZLib, wiremessage.CompressorZstd} {
		packed, err := driver.CompressPayload(payload, driver.CompressionOpts{Compressor: id, ZlibLevel: 6, ZstdLevel: 6})
		if err != nil {
			f.Fatal(err)
		}
		m := wiremessage.AppendHeader(nil, int32(25+len(packed)), 1, 7, wiremessage.OpCompressed)
		m = wiremessage.AppendCompressedOriginalOpCode(m, wiremessage.OpMsg)
		m = wiremessage.AppendCompressedUncompressedSize(m, int32(len(payload)))
		m = wiremessage.AppendCompressedCompressorID(m, id)
		f.Add(append(m, packed...))
	}
	f.Fuzz(func(t *testing.T, wm []byte) {
		doc, err := readMessage(wm, 7)
		if err != nil {
			return
		}
		if len(doc) < 5 {
			t.Errorf("the document has %d bytes", len(doc))
		}
		if v, err := verdictOf(doc); err == nil && v.ok {
			_ = mongo.Check(doc)
		}
	})
}

// TestMessageBuffers: a message is built without allocations once it has a buffer.
func TestMessageBuffers(t *testing.T) {
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	docs := make([]bson.Raw, 100)
	for i := range docs {
		docs[i] = body
	}
	cmd := mongo.Command{DB: "app", Body: body, Sequence: "documents", Docs: docs}
	buf := make([]byte, 0, 1<<16)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := outlineOf(&cmd); err != nil {
			t.Fatal(err)
		}
		if _, err := appendMessage(buf, 1, &cmd, additions{preferred: true}); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestMessageLimit(t *testing.T) {
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	frame, err := appendMessage(nil, 1, &mongo.Command{DB: "app", Body: body, Sequence: "documents"}, additions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []int{0, 1} {
		doc := make([]byte, maxMessage-len(frame)+more)
		doc = bsoncore.UpdateLength(doc, 0, int32(len(doc)))
		wm, err := appendMessage(nil, 1, &mongo.Command{DB: "app", Body: body, Sequence: "documents", Docs: []bson.Raw{doc}}, additions{})
		if more == 0 && (err != nil || len(wm) != maxMessage) {
			t.Errorf("a message of %d bytes: %v", len(wm), err)
		}
		if more == 1 && !errors.Is(err, errTooLarge) {
			t.Errorf("a byte more: %v", err)
		}
	}
}
