package verify

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// stock is a collection of which no document exists before it is read. Its replies have page documents.
type stock struct {
	shelf
	docs, page int
	// other has each thousandth document with another value.
	other bool
	heap  *heap
}

// heap is the largest heap that was in use when a reply was sent.
type heap struct {
	mu    sync.Mutex // guards the rest
	calls int
	most  uint64
}

// lookEvery is how many replies are sent between two looks, each of which collects garbage.
const lookEvery = 8

func (h *heap) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.calls++; h.calls%lookEvery > 0 {
		return
	}
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	h.most = max(h.most, stats.HeapAlloc)
}

// Call implements mongo.Caller.
func (s *stock) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	from, batch := 0, "firstBatch"
	switch it.Name() {
	case "find":
	case "getMore":
		n, _ := it.Int64()
		from, batch = int(n), "nextBatch"
	default:
		return s.shelf.Call(ctx, cmd)
	}
	s.heap.look()
	to := min(s.docs, from+s.page)
	list := bsoncore.NewArrayBuilder()
	for i := from; i < to; i++ {
		var id [12]byte
		binary.BigEndian.PutUint64(id[:], uint64(i))
		v := int32(i)
		if s.other && i%1000 == 0 {
			v++
		}
		list.AppendDocument(document().AppendObjectID("_id", id).AppendInt32("v", v).AppendString("pad", "some text of a few words").Build())
	}
	next := int64(to)
	if to == s.docs {
		next = 0
	}
	cursor := document().AppendInt64("id", next).AppendString("ns", "d.c").AppendArray(batch, list.Build()).Build()
	return bson.Raw(document().AppendDocument("cursor", cursor).AppendInt32("ok", 1).Build()), nil
}

// TestMemoryIsFlat: ten times as many documents, and differences, take no more memory.
func TestMemoryIsFlat(t *testing.T) { //nolint:paralleltest // The heap is that of the process.
	const few, slack = 10_000, 3 << 20
	used := func(docs int) uint64 {
		h := &heap{}
		source, target := &stock{docs: docs, page: 1000, heap: h}, &stock{docs: docs, page: 1000, heap: h, other: true}
		n := 0
		v := must.Get(New(Config{
			Source: source, Target: target, Scope: everything(t), Memory: LeastMemory, Found: func(*Difference) error { n++; return nil },
		}))(t)
		summary := must.Get(v.Run(t.Context()))(t)
		if c := &summary.Collections[0]; n != docs/1000 || c.Differs != int64(n) || c.EqualDocs != int64(docs-n) {
			t.Fatalf("%d differences, %+v", n, c)
		}
		if h.most == 0 {
			t.Fatal("nobody has looked")
		}
		return h.most
	}
	one, ten := used(few), used(10*few)
	t.Logf("%d documents: %d KiB, %d documents: %d KiB", few, one>>10, 10*few, ten>>10)
	if ten > one+slack {
		t.Errorf("%d documents take %d bytes, %d take %d", few, one, 10*few, ten)
	}
}
