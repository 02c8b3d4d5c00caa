package guard_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// yard is a target that a link and others write to, guarded by processes that follow one another.
type yard struct {
	t       *testing.T
	rand    *rand.Rand
	set     *driver.Set
	target  *client.Elected
	times   []bson.Timestamp // those of the target after each confirmed write
	dogs    []*dog           // the processes; the last one leads
	calm    bool             // nothing fails any more
	acting  *dog             // who has sent the command before which others do something, nil for none
	foreign []bson.Timestamp // of the foreign writes
	// cleared is up to when they are cleared, trying up to when that was tried.
	cleared, trying bson.Timestamp
	log             []string
	fault           string
}

// dog is a process of the link.
type dog struct {
	*driver.Set

	of    *yard
	name  string
	links *checkpoint.Store
	term  int64
	guard *guard.Guard
	gate  *guard.Gate
	link  *checkpoint.Link
	parts int
	dead  bool
}

var errKilled = errors.New("killed")

func (y *yard) note(format string, args ...any) { y.log = append(y.log, fmt.Sprintf(format, args...)) }

func (y *yard) fail(format string, args ...any) {
	if y.fault == "" {
		y.fault = fmt.Sprintf(format, args...)
	}
}

// one reports true in one of n cases.
func (y *yard) one(n int) bool { return !y.calm && y.rand.IntN(n) == 0 }

// Call implements mongo.Caller: a command may not arrive, its reply may be lost, the process may die, and others may do something before it.
func (d *dog) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	y := d.of
	if y.calm {
		return y.target.Call(ctx, cmd)
	}
	name := must.Get(cmd.Body.IndexErr(0))(y.t).Key()
	_, inTxn := cmd.Body.Lookup("autocommit").BooleanOK()
	if !inTxn && y.acting == nil && y.one(8) { // a transaction would block them
		y.acting = d
		y.step() //nolint:contextcheck // others have contexts of their own
		y.acting = nil
	}
	if y.one(150) {
		d.dead = true
		y.note("%s dies before its %s", d.name, name)
	}
	if d.dead {
		return nil, errKilled
	}
	lost := &mongo.LostError{Host: "target", Err: errors.New("no answer")}
	if y.one(60) {
		y.note("%s: its %s does not arrive", d.name, name)
		return nil, lost
	}
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" && len(y.times) > 0 {
		y.target.Learn()
		if y.one(2) {
			at := y.times[max(0, len(y.times)-1-y.rand.IntN(8))]
			y.note("an election: the primary knows what a majority had at %d:%d", at.T, at.I)
			y.target.ElectAt(at)
			time.AfterFunc(5*time.Millisecond, y.target.Learn) // it does not stay so
		}
	}
	reply, err := y.target.Call(ctx, cmd)
	if err == nil && slices.Contains([]string{"insert", "update", "delete", "findAndModify", "commitTransaction", "create"}, name) && (!inTxn || name == "commitTransaction") {
		y.confirmed() //nolint:contextcheck // it reads with one of its own
	}
	if y.one(60) {
		y.note("%s: the reply to its %s is lost", d.name, name)
		return nil, lost
	}
	return reply, err
}

// confirmed notes that a write is confirmed.
func (y *yard) confirmed() bson.Timestamp {
	y.target.Learn()
	at := must.Get(mongo.OperationTime(y.t.Context(), y.set))(y.t)
	y.times = append(y.times, at)
	return at
}

// step is what happens next.
func (y *yard) step() {
	d := y.dogs[len(y.dogs)-1-min(len(y.dogs)-1, max(0, y.rand.IntN(6)-4))]
	switch n := y.rand.IntN(20); {
	case n < 3:
		y.intrude()
	case n < 4:
		y.succeed()
	case n < 7:
		y.clear()
	case n < 12:
		y.begin(d)
	default:
		y.work(d)
	}
}

// intrude makes a foreign write.
func (y *yard) intrude() {
	must.Get(y.set.Call(y.t.Context(), insert("shop", "a")))(y.t)
	y.foreign = append(y.foreign, y.confirmed())
	y.note("a foreign write, before %d:%d", y.foreign[len(y.foreign)-1].T, y.foreign[len(y.foreign)-1].I)
}

func insert(db, collection string) mongo.Command {
	return metadata.Write(db, "insert", collection, "documents", metadata.Document(func(dst []byte) []byte {
		id := bson.NewObjectID()
		return append(append(append(dst, 7), "_id\x00"...), id[:]...)
	}))
}

// clear lets an operator clear the foreign writes that are known.
func (y *yard) clear() {
	d := &dog{of: y, Set: y.set, name: "an operator", link: nil}
	store := guard.Store{Target: d, DB: "replicator", Link: "dr"}
	ctx, stop := context.WithTimeout(y.t.Context(), 150*time.Millisecond)
	defer stop()
	y.acting, d.of = cmp.Or(y.acting, d), y
	defer func() {
		if y.acting == d {
			y.acting = nil
		}
	}()
	st, err := store.Read(ctx)
	if err != nil || st == nil {
		return
	}
	upTo := st.UpTo()
	if upTo.After(y.trying) {
		y.trying = upTo
	}
	if err = store.Clear(ctx, upTo); err == nil && upTo.After(y.cleared) {
		y.cleared = upTo
	}
	y.note("an operator clears up to %d:%d: %v", upTo.T, upTo.I, err)
}

// succeed lets another process lead.
func (y *yard) succeed() {
	d := &dog{of: y, Set: y.set, name: fmt.Sprintf("process %d", len(y.dogs))}
	d.links = must.Get(checkpoint.New(checkpoint.Config{Target: d, Link: "dr", Process: d.name}))(y.t)
	d.guard = guard.New(guard.Config{Mode: guard.Stop, Target: d, DB: "replicator", Link: "dr", Scope: all{}, Await: 5 * time.Millisecond})
	d.gate = &guard.Gate{Target: d, DB: "replicator", Link: "dr"}
	y.dogs = append(y.dogs, d)
	y.note("%s starts", d.name)
	y.begin(d)
}

// begin begins a term of a process.
func (y *yard) begin(d *dog) {
	if d.dead || d == y.acting {
		return
	}
	d.link = nil
	before := len(y.foreign)
	cleared, trying := y.cleared, func() bson.Timestamp { return y.trying }
	was := y.calm
	y.calm = true // what a lease does then is tested elsewhere
	link, err := d.links.Acquire(y.t.Context(), d.term)
	y.calm = was
	if err == nil {
		y.confirmed()
		d.term = link.Term()
		err = d.guard.Begin(y.t.Context(), link)
	}
	y.note("%s begins term %d: %v", d.name, d.term, err)
	_, stops := errors.AsType[*guard.ForeignError](err)
	if d.dead {
		return
	}
	switch left := func(ts bson.Timestamp) bool { return slices.ContainsFunc(y.foreign, ts.Before) }; {
	case err == nil && slices.ContainsFunc(y.foreign[:before], func(ts bson.Timestamp) bool { return ts.After(trying()) }):
		y.fail("%s begins term %d, and a foreign write before it is not cleared", d.name, d.term)
	case stops && !left(cleared):
		y.fail("%s does not begin term %d, and all foreign writes were cleared", d.name, d.term)
	case err == nil:
		d.link = link
	}
}

// work lets a process that has begun a term write, or watch.
func (y *yard) work(d *dog) {
	if d.dead || d == y.acting || d.link == nil {
		return
	}
	ctx := y.t.Context()
	var err error
	what := ""
	switch y.rand.IntN(5) {
	case 0:
		what = "creates and drops a collection"
		name := fmt.Sprintf("own%d", y.rand.IntN(3))
		if _, err = d.gate.Call(ctx, mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "create", Value: name}}))(y.t)}); err == nil {
			_, err = d.gate.Call(ctx, mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "drop", Value: name}}))(y.t)})
		}
	case 1:
		what = "inserts in a part"
		d.parts++
		part := must.Get(checkpoint.New(checkpoint.Config{Target: d, Link: fmt.Sprintf("%s-%d", strings.ReplaceAll(d.name, " ", "-"), d.parts), Of: "dr"}))(y.t)
		first := oplog.NewOpTime(100, 1, 1)
		if err = part.Create(ctx, checkpoint.State{Writers: 1, Applied: first, FetchFrom: first}); err == nil {
			var link *checkpoint.Link
			y.calm = true
			link, err = part.Acquire(ctx, 0)
			if y.calm = false; err == nil {
				err = link.Within(ctx, func(txn mongo.Caller) error { return metadata.Run(ctx, txn, insert("shop", "b"), 1) })
			}
		}
	case 2, 3:
		what = "inserts"
		err = d.link.Within(ctx, func(txn mongo.Caller) error { return metadata.Run(ctx, txn, insert("shop", "b"), 1) })
	default:
		what = "watches"
		cleared := y.cleared
		watching, stop := context.WithTimeout(ctx, 15*time.Millisecond)
		err = d.guard.Run(watching)
		stop()
		if _, stops := errors.AsType[*guard.ForeignError](err); stops && !d.dead && !slices.ContainsFunc(y.foreign, cleared.Before) {
			y.fail("%s stops, and all foreign writes were cleared", d.name)
		}
		if err != nil || d.dead {
			d.link = nil
		}
	}
	y.note("%s %s: %v", d.name, what, err)
}

// settle lets one more process examine all, and compares.
func (y *yard) settle() {
	y.calm = true
	y.target.Learn()
	for y.succeed(); y.dogs[len(y.dogs)-1].link == nil && y.fault == ""; y.begin(y.dogs[len(y.dogs)-1]) {
		y.clear()
	}
	st := must.Get((&guard.Store{Target: y.set, DB: "replicator", Link: "dr"}).Read(y.t.Context()))(y.t)
	if len(st.Gaps) > 0 || st.Total() != int64(len(y.foreign)) || st.Counts["insert"] != st.Total() {
		y.fail("found %v, want %d; gaps %v; %+v", st.Counts, len(y.foreign), st.Gaps, st.Writes)
	}
}

// TestGuardsAtRandom: each foreign write is found, once, and before a term that begins after it; no write of the link is taken for one, whatever
// processes, operators and applications do between each other's commands, whichever of the processes die, whose replies are lost,
// and after elections of the target. GUARD_RANDOM is how many times.
func TestGuardsAtRandom(t *testing.T) {
	t.Parallel()
	times, _ := strconv.Atoi(os.Getenv("GUARD_RANDOM"))
	first, _ := strconv.Atoi(os.Getenv("GUARD_FIRST"))
	for seed := first; seed < first+cmp.Or(times, 10); seed++ {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			sim := mongosim.StartTest(t, mongosim.Options{
				Members: 1, Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("it has faults of its own"), TransactionLifetime: 100 * time.Millisecond,
			})
			set := client.Open(t, driver.Config{URI: sim.URI()})
			y := &yard{t: t, rand: rand.New(rand.NewPCG(6, uint64(seed))), set: set, target: &client.Elected{Caller: set}}
			links := must.Get(checkpoint.New(checkpoint.Config{Target: set, Link: "dr"}))(t)
			at := oplog.NewOpTime(100, 1, 1)
			must.Succeed(t, links.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, FetchFrom: at}))
			began := time.Now()
			y.calm = true
			y.confirmed()
			y.intrude() // before the guard's start: not foreign
			y.foreign = nil
			y.succeed()
			y.calm = false
			for range 40 {
				if y.fault == "" {
					y.step()
				}
			}
			if y.fault == "" {
				y.settle()
			}
			if y.fault != "" {
				t.Errorf("%s\n%s", y.fault, strings.Join(y.log, "\n"))
			}
			t.Logf("%s: %d foreign", time.Since(began), len(y.foreign))
		})
	}
}
