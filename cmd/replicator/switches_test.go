package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// anApplication writes to one side until that refuses it. has contains the acknowledged writes; only it
// writes documents of its number.
type anApplication struct {
	number int32
	// set and db are the side that it writes to.
	set mongo.Caller
	db  string
	// pace is the time between two writes, in nanoseconds.
	pace *atomic.Int64

	rand *rand.Rand
	next int32
	// txn is the number of its newest transaction.
	txn int64
	has map[string]map[int32]int32
	// writes are those that were acknowledged, refused is why it has ended.
	writes  int
	refused error
}

// send sends a command.
func (a *anApplication) send(ctx context.Context, db string, cmd bson.D) error {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return err
	}
	reply, err := a.set.Call(ctx, mongo.Command{DB: db, Body: body})
	if err != nil {
		return err
	}
	return refusal(reply)
}

// refusal returns an error unless a command was executed as a whole, and its write concern is met.
func refusal(reply bson.Raw) error {
	if e := mongo.ConcernError(reply); e != nil {
		return e
	}
	refused, err := mongo.WriteErrors(reply)
	if len(refused) > 0 {
		return &refused[0].Error
	}
	return err
}

var majority = bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}

// write makes one write, or one transaction of two.
func (a *anApplication) write(ctx context.Context) error {
	coll := []string{"c", "d"}[a.rand.IntN(2)]
	ids := make([]int32, 0, len(a.has[coll]))
	for id := range a.has[coll] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	v := a.rand.Int32N(1000)
	put := func(coll string, id int32) bson.D {
		return bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}}}}}
	}
	switch n := a.rand.IntN(10); {
	case n < 4 || len(ids) == 0:
		a.next += 10
		err := a.send(ctx, a.db, append(put(coll, a.next), majority))
		if err == nil {
			a.has[coll][a.next] = v
		}
		return err
	case n < 7:
		id := ids[a.rand.IntN(len(ids))]
		err := a.send(ctx, a.db, bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}}},
		}}}, majority})
		if err == nil {
			a.has[coll][id] = v
		}
		return err
	case n < 8:
		id := ids[a.rand.IntN(len(ids))]
		err := a.send(ctx, a.db, bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "limit", Value: 1},
		}}}, majority})
		if err == nil {
			delete(a.has[coll], id)
		}
		return err
	}
	a.next += 10
	a.txn++
	part := bson.D{
		{Key: "lsid", Value: bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), byte(a.number))}}}},
		{Key: "txnNumber", Value: a.txn},
		{Key: "autocommit", Value: false},
	}
	first := append(append(put("c", a.next), part...), bson.E{Key: "startTransaction", Value: true})
	for _, cmd := range []bson.D{first, append(put("d", a.next), part...)} {
		if err := a.send(ctx, a.db, cmd); err != nil {
			return err
		}
	}
	err := a.send(ctx, "admin", append(append(bson.D{{Key: "commitTransaction", Value: 1}}, part...), majority))
	if err == nil {
		a.has["c"][a.next], a.has["d"][a.next] = v, v
	}
	return err
}

// aborted reports whether a transaction was aborted by a conflict, and may be repeated.
func aborted(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && slices.Contains(e.Labels, servererr.LabelTransient)
}

// run writes until it is refused.
func (a *anApplication) run(ctx context.Context) {
	for a.refused = nil; a.refused == nil; {
		next := time.After(time.Duration(a.pace.Load()))
		switch err := a.write(ctx); {
		case err == nil:
			a.writes++
		case !aborted(err):
			a.refused = err
		}
		<-next
	}
}

// values are the documents of a collection of one side.
func (s *aSide) values(t *testing.T, coll string) map[int32]int32 {
	t.Helper()
	has := map[int32]int32{}
	batch, _ := tell(t, s.set, s.db, bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: 1_000_000}}).Lookup("cursor", "firstBatch").ArrayOK()
	values, err := batch.Values()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		has[v.Document().Lookup("_id").Int32()] = v.Document().Lookup("v").Int32()
	}
	return has
}

// TestSwitches: applications move forth and back, again and again, while they write, and processes of
// the links are killed. After each switch both sides have exactly the writes acknowledged before the freeze.
// REPLICATOR_SWITCHES and REPLICATOR_SEED make it longer, and another one.
func TestSwitches(t *testing.T) {
	switches, seed := 3, uint64(1)
	if race.Enabled {
		switches = 2
	}
	if text := os.Getenv("REPLICATOR_SWITCHES"); text != "" {
		switches, _ = strconv.Atoi(text)
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("REPLICATOR_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("REPLICATOR_SEED=%d, %d switches", seed, switches)
	random := rand.New(rand.NewPCG(seed, 0))
	a := &aSide{mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "a", Seed: int64(seed), Dialect: "6.0"}), "shop"}
	b := &aSide{mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "b", Seed: int64(seed) + 1, Dialect: "7.0"}), "store"}
	var writers []*anApplication
	var pace atomic.Int64
	for i := range int32(3) {
		writers = append(writers, &anApplication{number: i, pace: &pace, rand: rand.New(rand.NewPCG(seed, uint64(i)+1)), next: i, has: map[string]map[int32]int32{"c": {}, "d": {}}})
	}
	from, to, name, other := a, b, "dr", "back"
	start := []string{"--include=shop", "--map=shop=store"}
	for n := range switches {
		pace.Store(int64(3 * time.Millisecond))
		// A side that is blocked lets nobody write, where there is no access control.
		tell(t, to.set, "admin", bson.D{{Key: "setUserWriteBlockMode", Value: 1}, {Key: "global", Value: false}})
		args := []string{"--source=" + from.set.URI(), "--target=" + to.set.URI(), "--link=" + name, "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0"}
		l := startLink(t, append(slices.Clone(args), start...)...)
		awaitLink(l)
		var load sync.WaitGroup
		t.Cleanup(load.Wait) // they end with the test's context
		for _, w := range writers {
			w.set, w.db = client.Open(t, driver.Config{URI: from.set.URI()}), from.db
			load.Go(func() { w.run(t.Context()) })
		}
		if random.IntN(2) == 0 {
			l.kill(failure.ErrStopped)
			l.end()
			if n > 0 {
				start = nil
			}
			l = startLink(t, append(slices.Clone(args), start...)...)
			awaitSteady(l, &pace)
		}
		switchOver(t, args[:3], &pace)
		load.Wait()
		if code := l.end(); code != failure.ExitResync {
			t.Fatalf("switch %d: code %d\n%s", n, code, &l.log)
		}
		haveAll(t, n, writers, from, to)
		start = []string{"--start-at=cutover:" + name}
		from, to, name, other = to, from, other, name
	}
	for _, w := range writers {
		t.Logf("application %d: %d writes", w.number, w.writes)
	}
}

// slowest is the pace at which every machine keeps up.
const slowest = 200 * time.Millisecond

// awaitSteady is awaitLink while applications write: on a slow machine a link becomes steady only if less is written.
func awaitSteady(l *runLink, pace *atomic.Int64) {
	l.t.Helper()
	steady := make(chan struct{})
	var slower sync.WaitGroup
	defer slower.Wait()
	defer close(steady)
	slower.Go(func() {
		for tick := time.NewTicker(2 * time.Second); ; {
			select {
			case <-tick.C:
				pace.Store(min(2*pace.Load(), int64(slowest)))
			case <-steady:
				tick.Stop()
				return
			}
		}
	})
	awaitLink(l)
}

// switchOver cuts a link over as soon as it is ready. On a slow machine it becomes steady only if less is
// written.
func switchOver(t *testing.T, link []string, pace *atomic.Int64) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		code, stdout, stderr := invoke(t, nil, append([]string{"cutover", "--waive=verified,deferred-indexes", "--max-lag=1m"}, link...)...)
		if code == cli.ExitOK {
			return
		}
		if !strings.Contains(stderr, "not ready for a cutover") || time.Since(began) > far {
			t.Fatalf("%v: code %d\n%s%s", link, code, stdout, stderr)
		}
		pace.Store(min(2*pace.Load(), int64(slowest)))
	}
}

// haveAll checks that both sides have the acknowledged writes, and that all writers were ended by the freeze.
func haveAll(t *testing.T, n int, writers []*anApplication, from, to *aSide) {
	t.Helper()
	for _, coll := range []string{"c", "d"} {
		want := map[int32]int32{}
		for _, w := range writers {
			maps.Copy(want, w.has[coll])
		}
		for _, side := range []*aSide{from, to} {
			if diff := cmp.Diff(want, side.values(t, coll)); diff != "" {
				t.Fatalf("switch %d: %s of %s (-acknowledged +there): %s", n, coll, side.db, diff)
			}
		}
	}
	blocked := servererr.New(servererr.UserWritesBlocked, "")
	for _, w := range writers {
		if !errors.Is(w.refused, blocked) {
			t.Fatalf("switch %d: an application ended with %v", n, w.refused)
		}
	}
}
