package verify

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// cannedReplies is a shelf whose replies are made beforehand, so that a benchmark measures what
// compares.
type cannedReplies struct {
	*shelf
	replies map[int64]bson.Raw
}

func canned(b *testing.B, docs []bson.Raw) *cannedReplies {
	c := &cannedReplies{shelf: &shelf{docs: docs, batch: 10_000}, replies: map[int64]bson.Raw{}}
	for id := int64(0); ; {
		cmd := document().AppendString("find", "c")
		if id > 0 {
			cmd = document().AppendInt64("getMore", id)
		}
		reply := must.Get(c.shelf.Call(b.Context(), mongo.Command{DB: "d", Body: bson.Raw(cmd.Build())}))(b)
		c.replies[id] = reply
		if id = must.Get(mongo.ReadBatch(reply))(b).Cursor; id == 0 {
			return c
		}
	}
}

// Call implements mongo.Caller.
func (c *cannedReplies) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	switch it.Name() {
	case "find":
		return c.replies[0], nil
	case "getMore":
		n, _ := it.Int64()
		return c.replies[n], nil
	}
	return c.shelf.Call(ctx, cmd)
}

// BenchmarkVerify is per verification of 100,000 equal documents of some 300 bytes; its bytes are
// those of one side.
func BenchmarkVerify(b *testing.B) {
	docs := make([]bson.Raw, 0, 100_000)
	size := 0
	for i := range cap(docs) {
		d := must.Marshal(b, bson.D{
			{Key: "_id", Value: bson.ObjectID{byte(i >> 16), byte(i >> 8), byte(i)}},
			{Key: "n", Value: i},
			{Key: "pad", Value: strings.Repeat("x", 250)},
		})
		docs = append(docs, d)
		size += len(d)
	}
	source, target := canned(b, docs), canned(b, docs)
	names := must.Get(scope.New(scope.Config{}))(b)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		v := must.Get(New(Config{Source: source, Target: target, Scope: names, Found: func(*Difference) error { return nil }}))(b)
		if s := must.Get(v.Run(b.Context()))(b); s.Collections[0].EqualDocs != int64(len(docs)) {
			b.Fatalf("%+v", s.Collections)
		}
	}
}
