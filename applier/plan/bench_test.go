package plan_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

const flushSize = 2000

// benchOps returns operations of a typical size on keys documents.
func benchOps(tb testing.TB, kind oplog.Kind, o string, keys int, mass bool) []plan.Op {
	ops := make([]plan.Op, flushSize)
	payload := bsongen.FromJSON(tb, o)
	for i := range ops {
		id := value(bson.ObjectID{1, 2, 3, 11: byte(i % keys), 10: byte(i % keys >> 8)})
		op := &ops[i]
		op.Kind, op.ID, op.O = kind, id, payload
		if number := []byte("\x10count\x00"); kind == oplog.KindUpdate && !mass {
			// Each update has a value of its own: otherwise they are combined.
			op.O = slices.Clone(payload)
			if at := bytes.Index(op.O, number); at >= 0 {
				binary.LittleEndian.PutUint32(op.O[at+len(number):], uint32(i))
			}
		}
		if kind == oplog.KindInsert {
			op.O = withID(payload, id)
		}
		op.Target = oplog.Namespace(fmt.Sprintf("shop.orders%d", i%4))
		op.NS, op.Mode = op.Target, plan.ModeExact
	}
	return ops
}

var benchCases = []struct {
	name   string
	kind   oplog.Kind
	o      string
	keys   int
	allocs float64 // the limit for each operation
	mass   bool    // all updates are equal
}{
	{"insert", oplog.KindInsert, `{"_id":1,"name":"somebody","address":{"street":"Long Street 17","city":"Somewhere","zip":"12345"},"tags":["a","b","c"],"count":1,"note":"a note that is long enough to make this a document of an ordinary size"}`, flushSize, 0.01, false},
	{"set", oplog.KindUpdate, `{"$v":2,"diff":{"u":{"count":2,"name":"somebody else"}}}`, flushSize, 0.01, false},
	{"set-inside", oplog.KindUpdate, `{"$v":2,"diff":{"u":{"count":2},"saddress":{"u":{"zip":"54321"}},"stags":{"a":true,"u1":"x"}}}`, flushSize, 0.01, false},
	{"guarded", oplog.KindUpdate, `{"$v":2,"diff":{"i":{"new":1}}}`, flushSize, 0.01, false},
	{"pipeline", oplog.KindUpdate, `{"$v":2,"diff":{"stags":{"a":true,"l":2}}}`, flushSize, 1.01, false},
	{"mass", oplog.KindUpdate, `{"$v":2,"diff":{"u":{"count":2,"name":"somebody else"}}}`, flushSize, 0.01, true},
	{"delete", oplog.KindDelete, `{"_id":1}`, flushSize, 0.01, false},
	{"hot", oplog.KindUpdate, `{"$v":2,"diff":{"u":{"count":2,"name":"somebody else"}}}`, 20, 0.01, false},
	{"hot-inside", oplog.KindUpdate, `{"$v":2,"diff":{"u":{"count":2},"saddress":{"u":{"zip":"54321"}},"stags":{"a":true,"u1":"x"}}}`, 20, 0.01, false},
}

func BenchmarkBuild(b *testing.B) {
	for _, tc := range benchCases {
		b.Run(tc.name, func(b *testing.B) {
			ops := benchOps(b, tc.kind, tc.o, tc.keys, tc.mass)
			p := plan.NewPlanner(plan.Options{Coalesce: true})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Build(ops); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/flushSize, "ns/entry")
		})
	}
}
