package applier

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog/batch"
)

// BenchmarkNet is the whole applier, with the lanes of a real link, writing to a server
// on loopback that acknowledges everything at once. The server runs in this process: its
// work is included in cpu-ns/op, which depends less on the load of the machine than
// ops/s.
func BenchmarkNet(b *testing.B) {
	text := strings.Repeat("some text ", 13)
	insert := func(ns string, i int) bson.D {
		return insertOp(ns, bson.D{{Key: "_id", Value: int64(i)}, {Key: "n", Value: i}, {Key: "text", Value: text}})
	}
	update := func(ns string, i int) bson.D {
		diff := bson.D{{Key: "u", Value: bson.D{{Key: "n", Value: i}, {Key: "text", Value: text[:60]}}}}
		return bson.D{
			{Key: "op", Value: "u"},
			{Key: "ns", Value: ns},
			{Key: "o", Value: bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}}},
			{Key: "o2", Value: bson.D{{Key: "_id", Value: int64(i)}}},
		}
	}
	del := func(ns string, i int) bson.D { return deleteOp(ns, int64(i)) }
	mixed := func(ns string, i int) bson.D {
		return []func(string, int) bson.D{insert, update, insert, update, del}[i%5](ns, i)
	}
	for _, c := range []struct {
		name       string
		op         func(ns string, i int) bson.D
		docs       int // distinct documents, 0 for all
		namespaces int
	}{
		{"insert", insert, 0, 1},
		{"update", update, 0, 1},
		{"delete", del, 0, 1},
		{"hot", update, 100, 1},
		{"hottest", update, 1, 1},
		{"mixed", mixed, 0, 4},
		{"mixed-ns100", mixed, 0, 100},
		{"mixed-ns10000", mixed, 0, 10_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 100_000
			l := newLog(b)
			for i := range n {
				id := i
				if c.docs > 0 {
					id %= c.docs
				}
				l.add(c.op(fmt.Sprintf("db%d.coll%d", i*7919%c.namespaces%10, i*7919%c.namespaces), id))
				if i%5000 == 4999 {
					l.end()
				}
			}
			applyOver(b, l, 0, 16)
		})
	}
}

// BenchmarkNetLatency has a server that delays each reply.
func BenchmarkNetLatency(b *testing.B) {
	text := strings.Repeat("some text ", 13)
	for _, delay := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
		for _, writers := range []int{4, 16} {
			b.Run(fmt.Sprintf("%s-writers%d", delay, writers), func(b *testing.B) {
				l := newLog(b)
				for i := range 300_000 {
					l.add(insertOp("db.a", bson.D{{Key: "_id", Value: int64(i)}, {Key: "text", Value: text}}))
					if i%5000 == 4999 {
						l.end()
					}
				}
				applyOver(b, l, delay, writers)
			})
		}
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// applyOver applies a log repeatedly, each time with later optimes.
func applyOver(b *testing.B, l *sourceLog, delay time.Duration, writers int) {
	b.Helper()
	r := newRig(b, writers, mongosim.Options{Members: 1, Seed: 1})
	a := must[*attempt](b)(r.begin(b.Context(), func(c *Config) { c.Catalog = allThere{} }))
	server, target := startNull(b, delay)
	r.target.instead = target

	batches := l.batches()
	n := uint32(len(l.entries))
	in, out := make(chan batch.Batch), make(chan checkpoint.Applied)
	end := make(chan error, 1)
	go func() { end <- a.Run(b.Context(), in, out) }()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	commands, start := server.commands.Load(), cpu()
	for b.Loop() {
		for k := range batches {
			for i := range batches[k].Items {
				batches[k].Items[i].Entry.OpTime.TS.T += n
			}
			batches[k].Last.TS.T += n
		}
		go func() {
			for k := range batches {
				in <- batches[k]
			}
		}()
		for applied := range out {
			if applied.Applied == batches[len(batches)-1].Last {
				break
			}
		}
	}
	spent := cpu() - start
	runtime.ReadMemStats(&after)
	close(in)
	for range out {
	}
	if err := <-end; err != nil {
		b.Fatal(err)
	}
	ops := float64(b.N) * float64(n)
	b.ReportMetric(ops/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(spent.Nanoseconds())/ops, "cpu-ns/op")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/ops, "allocs/entry")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/ops, "B/entry")
	b.ReportMetric(1000*float64(server.commands.Load()-commands)/ops, "commands/kop")
	b.ReportMetric(ops/float64(a.Stats().Flushes), "ops/flush")
}
