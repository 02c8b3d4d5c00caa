package process

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/mongosim"
)

// BenchmarkCopy is how long the program takes from its start until the target is
// consistent, and how much memory: for REPLICATOR_DOCS (200,000) documents of some
// 160 bytes, and for REPLICATOR_COLLECTIONS (2,000) collections of two documents
// and an index each. The servers work on the same machine.
func BenchmarkCopy(b *testing.B) {
	docs, colls := number(b, "REPLICATOR_DOCS", 200_000), number(b, "REPLICATOR_COLLECTIONS", 2000)
	b.Run("documents="+strconv.Itoa(docs), func(b *testing.B) {
		copyOnce(b, docs, func(h *harness) {
			for from := 0; from < docs; from += 1000 {
				h.insertMany("many", "c", from, min(docs, from+1000))
			}
		})
	})
	b.Run("collections="+strconv.Itoa(colls), func(b *testing.B) {
		copyOnce(b, 2*colls, func(h *harness) {
			for i := range colls {
				name := "c" + strconv.Itoa(i)
				h.insertMany("colls", name, 0, 2)
				h.run("colls", bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: bson.A{
					bson.D{{Key: "key", Value: bson.D{{Key: "n", Value: 1}}}, {Key: "name", Value: "n_1"}},
				}}})
			}
		})
	})
}

// copyOnce fills a source and copies it.
func copyOnce(b *testing.B, docs int, fill func(h *harness)) {
	set := func(seed int64) *mongosim.Set {
		return mongosim.StartTest(b, mongosim.Options{Members: 1, Seed: seed, OplogBytes: 64 << 20, TTLInterval: -1})
	}
	h := &harness{TB: b, program: build(b), rnd: rand.New(rand.NewPCG(1, 12)), source: set(71), target: set(72)}
	h.from, h.to = connect(b, h.source), connect(b, h.target)
	fill(h)
	var took time.Duration
	var rounds, peak int
	for b.Loop() {
		b.StopTimer()
		h.newSpool()
		h.begin = append(h.begin, "--drop-existing", "--clone-workers=8")
		h.run("replicator", bson.D{{Key: "dropDatabase", Value: 1}})
		b.StartTimer()
		start := time.Now()
		l := h.start()
		l.until(10*patience, func() bool {
			c := h.state().Copy
			return c != nil && c.Phase == checkpoint.Copied
		})
		took += time.Since(start)
		b.StopTimer()
		rounds++
		peak = max(peak, h.peakMB(l))
		l.end()
		b.StartTimer()
	}
	b.ReportMetric(float64(docs*rounds)/took.Seconds(), "docs/s")
	b.ReportMetric(float64(peak), "peak-MB")
	h.equal()
}

func (h *harness) insertMany(db, coll string, from, to int) {
	list := bson.A{}
	for i := from; i < to; i++ {
		list = append(list, bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "n", Value: i}, {Key: "name", Value: "somebody or other, number " + strconv.Itoa(i)}, {Key: "pad", Value: pad}})
	}
	h.run(db, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: list}})
}

const pad = "0123456789012345678901234567890123456789012345678901234567890123"

// run runs a command on the source, or on the target if it is about the metadata.
func (h *harness) run(db string, cmd bson.D) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		h.Fatal(err)
	}
	set := h.from
	if db == "replicator" {
		set = h.to
	}
	if _, err := set.Call(h.Context(), mongo.Command{DB: db, Body: body}); err != nil {
		h.Fatal(err)
	}
}
