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
	client.Chances

	t       *testing.T
	set     *driver.Set
	target  *client.Elected
	times   []bson.Timestamp // those of the target after each confirmed write
	dogs    []*dog           // the processes; the last one leads
	acting  *dog             // who has sent the command before which others do something, nil for none
	foreign []bson.Timestamp // of the foreign writes
	// cleared is up to when they are cleared, trying up to when that was tried.
	cleared, trying bson.Timestamp
}

// dog is a process of the link.
type dog struct {
	*driver.Set
	client.Process

	of    *yard
	links *checkpoint.Store
	term  int64
	guard *guard.Guard
	gate  *guard.Gate
	link  *checkpoint.Link
	parts int
}

func (y *yard) newDog(name string) *dog {
	return &dog{Set: y.set, Process: client.Process{Name: name, Dies: 150, Loses: 60}, of: y}
}

// Call implements mongo.Caller: a command may not arrive, its reply may be lost, the process may die, and others may do something before it.
func (d *dog) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	y := d.of
	if y.Calm {
		return y.target.Call(ctx, cmd)
	}
	name := must.Get(cmd.Body.IndexErr(0))(y.t).Key()
	_, inTxn := cmd.Body.Lookup("autocommit").BooleanOK()
	if !inTxn && y.acting == nil && y.One(8) { // a transaction would block them
		y.acting = d
		y.step() //nolint:contextcheck // others have contexts of their own
		y.acting = nil
	}
	return y.Send(&d.Process, name, func() (bson.Raw, error) { return y.arrives(ctx, cmd, name, inTxn) })
}

func (y *yard) arrives(ctx context.Context, cmd mongo.Command, name string, inTxn bool) (bson.Raw, error) {
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" && len(y.times) > 0 {
		y.target.Learn()
		if y.One(2) {
			at := y.times[max(0, len(y.times)-1-y.Rand.IntN(8))]
			y.Note("an election: the primary knows what a majority had at %d:%d", at.T, at.I)
			y.target.ElectAt(at)
			time.AfterFunc(5*time.Millisecond, y.target.Learn) // it does not stay so
		}
	}
	reply, err := y.target.Call(ctx, cmd)
	if err == nil && slices.Contains([]string{"insert", "update", "delete", "findAndModify", "commitTransaction", "create"}, name) && (!inTxn || name == "commitTransaction") {
		y.confirmed() //nolint:contextcheck // it reads with one of its own
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
	d := y.dogs[len(y.dogs)-1-min(len(y.dogs)-1, max(0, y.Rand.IntN(6)-4))]
	switch n := y.Rand.IntN(20); {
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
	y.Note("a foreign write, before %d:%d", y.foreign[len(y.foreign)-1].T, y.foreign[len(y.foreign)-1].I)
}

func insert(db, collection string) mongo.Command {
	return metadata.Write(db, "insert", collection, "documents", metadata.Document(func(dst []byte) []byte {
		id := bson.NewObjectID()
		return append(append(append(dst, 7), "_id\x00"...), id[:]...)
	}))
}

// clear lets an operator clear the foreign writes that are known.
func (y *yard) clear() {
	d := y.newDog("an operator")
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
	y.Note("an operator clears up to %d:%d: %v", upTo.T, upTo.I, err)
}

// succeed lets another process lead.
func (y *yard) succeed() {
	d := y.newDog(fmt.Sprintf("process %d", len(y.dogs)))
	d.links = must.Get(checkpoint.New(checkpoint.Config{Target: d, Link: "dr", Process: d.Name}))(y.t)
	d.guard = guard.New(guard.Config{Mode: guard.Stop, Target: d, DB: "replicator", Link: "dr", Scope: all{}, Await: 5 * time.Millisecond})
	d.gate = &guard.Gate{Target: d, DB: "replicator", Link: "dr"}
	y.dogs = append(y.dogs, d)
	y.Note("%s starts", d.Name)
	y.begin(d)
}

// begin begins a term of a process.
func (y *yard) begin(d *dog) {
	if d.Dead || d == y.acting {
		return
	}
	d.link = nil
	before := len(y.foreign)
	cleared, trying := y.cleared, func() bson.Timestamp { return y.trying }
	was := y.Calm
	y.Calm = true // what a lease does then is tested elsewhere
	link, err := d.links.Acquire(y.t.Context(), d.term)
	y.Calm = was
	if err == nil {
		y.confirmed()
		d.term = link.Term()
		err = d.guard.Begin(y.t.Context(), link)
	}
	y.Note("%s begins term %d: %v", d.Name, d.term, err)
	_, stops := errors.AsType[*guard.ForeignError](err)
	if d.Dead {
		return
	}
	switch left := func(ts bson.Timestamp) bool { return slices.ContainsFunc(y.foreign, ts.Before) }; {
	case err == nil && slices.ContainsFunc(y.foreign[:before], func(ts bson.Timestamp) bool { return ts.After(trying()) }):
		y.Fail("%s begins term %d, and a foreign write before it is not cleared", d.Name, d.term)
	case stops && !left(cleared):
		y.Fail("%s does not begin term %d, and all foreign writes were cleared", d.Name, d.term)
	case err == nil:
		d.link = link
	}
}

// work lets a process that has begun a term write, or watch.
func (y *yard) work(d *dog) {
	if d.Dead || d == y.acting || d.link == nil {
		return
	}
	ctx := y.t.Context()
	var err error
	what := ""
	switch y.Rand.IntN(5) {
	case 0:
		what = "creates and drops a collection"
		name := fmt.Sprintf("own%d", y.Rand.IntN(3))
		if _, err = d.gate.Call(ctx, mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "create", Value: name}}))(y.t)}); err == nil {
			_, err = d.gate.Call(ctx, mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "drop", Value: name}}))(y.t)})
		}
	case 1:
		what = "inserts in a part"
		d.parts++
		part := must.Get(checkpoint.New(checkpoint.Config{Target: d, Link: fmt.Sprintf("%s-%d", strings.ReplaceAll(d.Name, " ", "-"), d.parts), Of: "dr"}))(y.t)
		first := oplog.NewOpTime(100, 1, 1)
		if err = part.Create(ctx, checkpoint.State{Writers: 1, Applied: first, FetchFrom: first}); err == nil {
			var link *checkpoint.Link
			y.Calm = true
			link, err = part.Acquire(ctx, 0)
			if y.Calm = false; err == nil {
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
		if _, stops := errors.AsType[*guard.ForeignError](err); stops && !d.Dead && !slices.ContainsFunc(y.foreign, cleared.Before) {
			y.Fail("%s stops, and all foreign writes were cleared", d.Name)
		}
		if err != nil || d.Dead {
			d.link = nil
		}
	}
	y.Note("%s %s: %v", d.Name, what, err)
}

// settle lets one more process examine all, and compares.
func (y *yard) settle() {
	y.Calm = true
	y.target.Learn()
	for y.succeed(); y.dogs[len(y.dogs)-1].link == nil && y.Fault == ""; y.begin(y.dogs[len(y.dogs)-1]) {
		y.clear()
	}
	st := must.Get((&guard.Store{Target: y.set, DB: "replicator", Link: "dr"}).Read(y.t.Context()))(y.t)
	if len(st.Gaps) > 0 || st.Total() != int64(len(y.foreign)) || st.Counts["insert"] != st.Total() {
		y.Fail("found %v, want %d; gaps %v; %+v", st.Counts, len(y.foreign), st.Gaps, st.Writes)
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
			y := &yard{t: t, Chances: client.Chances{Rand: rand.New(rand.NewPCG(6, uint64(seed)))}, set: set, target: &client.Elected{Caller: set}}
			links := must.Get(checkpoint.New(checkpoint.Config{Target: set, Link: "dr"}))(t)
			at := oplog.NewOpTime(100, 1, 1)
			must.Succeed(t, links.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, FetchFrom: at}))
			began := time.Now()
			y.Calm = true
			y.confirmed()
			y.intrude() // before the guard's start: not foreign
			y.foreign = nil
			y.succeed()
			y.Calm = false
			y.Play(t, 40, y.step, y.settle)
			t.Logf("%s: %d foreign", time.Since(began), len(y.foreign))
		})
	}
}
