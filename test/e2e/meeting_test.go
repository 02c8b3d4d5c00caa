package e2e

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestUnusual copies and mirrors allowed but rare operations: updates that move
// _id, indexes without the collation of their collection, _ids of a capped collection
// that come again, _ids that a collation holds to be equal.
func TestUnusual(t *testing.T) {
	eachProvider(t, dialects("5.0", "7.0"), func(t *testing.T, p provider) {
		l := openLive(t, p, 2, clusterOptions{})
		if l.major < 5 {
			t.Skipf("a server of %d.x logs no deltas", l.major)
		}
		conn := connect(t, l.source.uriFor(writerUser))
		unusual(t, conn, "copied")
		l.mirror.cfg.Copy = initialsync.Options{Wanted: true, SpoolDir: t.TempDir()}
		l.mirror.begin()
		defer l.mirror.end(errEnd)
		l.mirror.await(l.limit, "it is consistent", func(s monitor.Snapshot) bool {
			return s.Copy != nil && s.Copy.Phase == checkpoint.Copied
		})
		unusual(t, conn, "mirrored")
		again(t, conn, "copied")
		again(t, conn, "mirrored")
		l.mirror.drain(l.limit, l.last(t))
		l.same(t)
	})
}

// unusual writes into a database of the source.
func unusual(t *testing.T, conn mongo.Caller, db string) {
	t.Helper()
	run := func(cmd ...bson.E) { t.Helper(); written(t, command(t, conn, db, cmd)) }
	loose := bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}
	simple := bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}
	index := func(name, key string, kind any, more ...bson.E) bson.D {
		return append(bson.D{{Key: "key", Value: bson.D{{Key: key, Value: kind}}}, {Key: "name", Value: name}}, more...)
	}
	run(bson.E{Key: "create", Value: "collated"}, bson.E{Key: "collation", Value: loose})
	run(bson.E{Key: "createIndexes", Value: "collated"}, bson.E{Key: "indexes", Value: bson.A{
		index("simple", "a", 1, simple), index("inherits", "b", 1), index("text", "t", "text", simple), index("hashed", "h", "hashed", simple),
		index("ttl", "d", 1, simple, bson.E{Key: "expireAfterSeconds", Value: 3600}), index("geo", "g", "2dsphere", simple),
		index("partial", "p", 1, bson.E{Key: "partialFilterExpression", Value: bson.D{{Key: "p", Value: bson.D{{Key: "$gt", Value: 1}}}}}),
	}})
	run(bson.E{Key: "insert", Value: "collated"}, bson.E{Key: "documents", Value: bson.A{
		bson.D{{Key: "_id", Value: "A"}, {Key: "t", Value: "some words"}, {Key: "a", Value: 1}},
		bson.D{{Key: "_id", Value: "b"}, {Key: "g", Value: bson.A{1.0, 2.0}}},
	}})
	run(bson.E{Key: "create", Value: "ring"}, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 1 << 20}, bson.E{Key: "max", Value: 10})
	run(bson.E{Key: "insert", Value: "ring"}, bson.E{Key: "documents", Value: numbered(1, 20)})
	run(bson.E{Key: "insert", Value: "moves"}, bson.E{Key: "documents", Value: bson.A{
		bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}, {Key: "pad", Value: strings.Repeat("x", 500)}},
		bson.D{{Key: "_id", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "sub", Value: bson.D{{Key: "y", Value: 1}}}, {Key: "pad", Value: strings.Repeat("y", 500)}},
	}})
}

// again writes to what unusual made.
func again(t *testing.T, conn mongo.Caller, db string) {
	t.Helper()
	run := func(cmd ...bson.E) { t.Helper(); written(t, command(t, conn, db, cmd)) }
	front := func(fields bson.D) bson.A {
		return bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{fields, "$$ROOT"}}}}}}
	}
	for i := range 3 {
		run(bson.E{Key: "update", Value: "moves"}, bson.E{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{}},
			{Key: "multi", Value: true},
			{Key: "u", Value: front(bson.D{{Key: "new" + string(rune('0'+i)), Value: i}})},
		}}})
		run(bson.E{Key: "update", Value: "moves"}, bson.E{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{}}, {Key: "multi", Value: true}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}},
		}}})
	}
	run(bson.E{Key: "insert", Value: "ring"}, bson.E{Key: "documents", Value: numbered(1, 15)})
	run(bson.E{Key: "delete", Value: "collated"}, bson.E{Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "a"}}}, {Key: "limit", Value: 1}},
	}})
	run(bson.E{Key: "insert", Value: "collated"}, bson.E{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "a"}, {Key: "t", Value: "other words"}}}})
	run(bson.E{Key: "update", Value: "collated"}, bson.E{Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "B"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "b", Value: "x"}}}}},
	}}})
}

func numbered(from, to int) (docs bson.A) {
	for i := from; i <= to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}})
	}
	return docs
}

func written(t *testing.T, reply bson.Raw) {
	t.Helper()
	refused := must.Get(mongo.WriteErrors(reply))(t)
	for _, e := range refused {
		t.Error(e.Error.Error())
	}
}

// TestFewTickets mirrors into a target that lets five writers in at a time, and has 48
// others: no attempt ends for want of a ticket.
func TestFewTickets(t *testing.T) {
	eachProvider(t, dialects("5.0"), func(t *testing.T, p provider) {
		l := openLive(t, p, 3, clusterOptions{})
		if !p.real {
			l.target = p.open(t, clusterOptions{name: "target", members: 1, moods: mongosim.NoMoods("tickets are what this is about")})
			l.mirror.target = l.target.uriFor(admin)
		}
		source, target := connect(t, l.source.uriFor(writerUser)), connect(t, l.target.uriFor(admin))
		fewTickets(t, target, 5)
		l.mirror.begin()
		defer l.mirror.end(errEnd)
		l.mirror.await(l.limit, "it runs", func(s monitor.Snapshot) bool { return s.State == monitor.Steady })
		before := l.mirror.p.Load().Snapshot().Attempts

		stop := make(chan struct{})
		var others sync.WaitGroup
		for i := range 48 {
			others.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					body, err := bson.Marshal(bson.D{{Key: "update", Value: "busy"}, {Key: "updates", Value: bson.A{bson.D{
						{Key: "q", Value: bson.D{{Key: "_id", Value: i % 7}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}}}, {Key: "upsert", Value: true},
					}}}})
					if err != nil {
						panic(err)
					}
					// Refusals do not matter: it is load.
					_, _ = target.Call(t.Context(), mongo.Command{DB: "foreign", Body: body})
				}
			})
		}
		took := 3 * time.Second
		if p.real {
			took = 30 * time.Second
		}
		for i, end := 0, time.Now().Add(took); time.Now().Before(end); i += 20 {
			written(t, command(t, source, "few", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: numbered(i, i+19)}}))
		}
		close(stop)
		others.Wait()
		l.mirror.drain(l.limit, l.last(t))
		if s := l.mirror.p.Load().Snapshot(); s.Attempts != before {
			t.Errorf("%d attempts ended, the last as %s", s.Attempts-before, s.LastError)
		}
	})
}

// fewTickets lets so many writers into a server at a time. The parameter's name is
// another one since 7.0; the embedded set has none.
func fewTickets(t *testing.T, conn mongo.Caller, n int) {
	t.Helper()
	var faults []error
	for _, name := range []string{"wiredTigerConcurrentWriteTransactions", "storageEngineConcurrentWriteTransactions"} {
		body, err := bson.Marshal(bson.D{{Key: "setParameter", Value: 1}, {Key: name, Value: n}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Call(t.Context(), mongo.Command{DB: "admin", Body: body}); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) == 2 {
		t.Log("the number of tickets stays as it is:", errors.Join(faults...))
	}
}
