package applier

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// A target that refuses the record of a cut, or its confirmation, for whatever reason, or does not
// let the metadata be prepared, has one cut less: the link goes on, and says why there is none. The
// next cut is made when it may.
func TestCutCannotEndLink(t *testing.T) {
	lost := &mongo.LostError{Err: errors.New("the connection is gone")}
	isCreate := func(cmd mongo.Command) bool {
		return simcaller.Name(cmd) == "create" && cmd.Body.Lookup("create").StringValue() == metadata.Cuts
	}
	for name, tt := range map[string]struct {
		is    func(cmd mongo.Command) bool
		err   error
		noCut string
	}{
		"write conflict":   {isRecord, &servererr.Error{Code: servererr.WriteConflict, Labels: []string{servererr.LabelTransient}}, "refused it"},
		"no primary":       {isRecord, &servererr.Error{Code: servererr.NotWritablePrimary}, "refused it"},
		"not allowed":      {isRecord, &servererr.Error{Code: servererr.Unauthorized}, "refused it"},
		"not known":        {isRecord, &servererr.Error{Code: 31415}, "refused it"},
		"lost":             {isRecord, lost, "refused it"},
		"may not create":   {isCreate, &servererr.Error{Code: servererr.Unauthorized}, "refused it"},
		"may not confirm":  {isConfirmation, &servererr.Error{Code: servererr.Unauthorized}, ""},
		"confirm is lost":  {isConfirmation, lost, ""},
		"confirm unknown":  {isConfirmation, &servererr.Error{Code: 31415}, ""},
		"create is lost":   {isCreate, lost, "refused it"},
		"create not known": {isCreate, &servererr.Error{Code: 31415}, "refused it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 4, mongosim.Options{Members: 1})
			r.target.prepareCuts(t)
			l := newCutLog(t, 1, 20)
			c := r.cutter(t, nil)
			refused := make(chan struct{})
			var refuse atomic.Bool
			refuse.Store(true)
			once := sync.OnceFunc(func() { close(refused) })
			r.target.intercept(func(cmd mongo.Command) (error, bool) {
				if refuse.Load() && tt.is(cmd) {
					once()
					return tt.err, false
				}
				return nil, false
			})
			batches := l.batches()
			c.in <- batches[0]
			c.ask()
			<-refused
			await := func(is func(why string) bool) {
				t.Helper()
				for begun := time.Now(); !is(c.Stats().NoCut); {
					if time.Since(begun) > time.Minute {
						t.Fatalf("no cut for %q", c.Stats().NoCut)
					}
					must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
				}
			}
			await(func(why string) bool { return strings.Contains(why, tt.noCut) })
			for _, b := range batches[1:] {
				c.in <- b
			}
			c.reaches(l.optime())
			if len(c.told) > 0 {
				t.Error("it is told")
			}
			refuse.Store(false)
			c.ask()
			made := c.made()
			if made.Source == batches[0].Last { // its confirmation was repeated
				c.ask()
				made = c.made()
			}
			if made.Source != l.optime() {
				t.Errorf("a cut at %s, want %s", made.Source, l.optime())
			}
			await(func(why string) bool { return why == "" }) // one more may be being made
			c.drain()
		})
	}
}

// A process whose lease another one has taken learns it from a cut, too, on an idle link.
func TestCutFenced(t *testing.T) {
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	c := r.cutter(t, nil)
	c.ask()
	c.made()
	must.Get(r.store.Acquire(t.Context(), r.term))(t)
	c.ask()
	for begun := time.Now(); ; {
		select {
		case err := <-c.done:
			must.Fail(t, err, lease.ErrFenced)
			return
		case <-time.After(time.Millisecond):
		}
		if now := c.Stats(); len(c.told) > 0 || strings.Contains(now.NoCut, "refused") || time.Since(begun) > time.Minute {
			t.Fatalf("it goes on: %+v, %d cuts are told", now, len(c.told))
		}
	}
}

// newPreparedLog is a log of three batches: in the second one a transaction is prepared that the third one commits.
func newPreparedLog(t *testing.T) *sourceLog {
	t.Helper()
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 0)))
	l.end()
	prepare := l.transactionOp(insertOp("db.b", doc(1, 0)), insertOp("db.c", doc(1, 0)))
	link := prepare[len(prepare)-3:] // lsid, txnNumber, prevOpTime
	prepare[2].Value = append(prepare[2].Value.(bson.D), bson.E{Key: "prepare", Value: true})
	l.add(prepare)
	prepared := l.optime()
	l.add(insertOp("db.a", doc(2, 0)))
	l.end()
	l.add(append(commandOp("admin", bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: prepared.TS}}),
		link[0], link[1], bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: prepared.TS}, {Key: "t", Value: prepared.Term}}}))
	l.end()
	return l
}

// A cut that was asked for once, and refused, is made as soon as it may, also if none can be made when it is tried again.
func TestCutAskedOnce(t *testing.T) {
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.prepareCuts(t)
	batches := newPreparedLog(t).batches()
	c := r.cutter(t, nil)
	c.in <- batches[0]
	c.ask()
	c.made() // the metadata are prepared
	refused := make(chan struct{})
	once := sync.OnceFunc(func() { close(refused) })
	var refuse atomic.Bool
	refuse.Store(true)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if isRecord(cmd) && refuse.CompareAndSwap(true, false) {
			once()
			return &servererr.Error{Code: servererr.Unauthorized}, false
		}
		return nil, false
	})
	c.ask()
	<-refused
	c.in <- batches[1]
	for begun := time.Now(); !strings.Contains(c.Stats().NoCut, "prepared transaction"); {
		if len(c.told) > 0 {
			t.Log("the cut was made before the second batch came: the machine is busy")
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("no cut for %q", c.Stats().NoCut)
		}
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
	c.in <- batches[2]
	c.made()
	c.drain()
}

// A prepared transaction of the source is visible there from its commitTimestamp on, which may be
// before the entry of its commit: no cut is made between the two, nor after a restart before it is
// known that there is none.
func TestNoCutWhilePrepared(t *testing.T) {
	fake := fakeApplier(t, &nullTarget{}, 2, nil)
	for from, want := range map[uint32]bool{1900: true, 2000: false} {
		fake.link.(*fakeLink).state = checkpoint.State{Applied: oplog.NewOpTime(2000, 1, 1), FetchFrom: oplog.NewOpTime(from, 1, 1)}
		if d := newDispatcher(fake); d.inDoubt != want {
			t.Errorf("after a restart from %d: %t, want %t", from, d.inDoubt, want)
		}
	}
	r := newRig(t, 2, mongosim.Options{Members: 1, SnapshotHistory: 5 * time.Minute})
	r.target.prepareCuts(t)
	l := newPreparedLog(t)
	batches := l.batches()
	c := r.cutter(t, nil)
	c.in <- batches[0]
	c.ask()
	if made := c.made(); made.Source != batches[0].Last {
		t.Errorf("a cut at %s, want %s", made.Source, batches[0].Last)
	}
	c.in <- batches[1]
	c.ask()
	for begun := time.Now(); !strings.Contains(c.Stats().NoCut, "prepared transaction"); {
		if time.Since(begun) > time.Minute || len(c.told) > 0 {
			t.Fatalf("no cut for %q, %d cuts", c.Stats().NoCut, len(c.told))
		}
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
	c.in <- batches[2]
	made := c.made()
	if got := r.target.asOf(t, made.Target, cutNamespaces...); made.Source != batches[2].Last || len(got) != 4 {
		t.Errorf("a cut at %s, want %s, with %v", made.Source, batches[2].Last, got)
	}
	c.drain()
}

// A cut whose commit was carried out, and not answered, has no cluster time that anybody knows: a
// second answer to the commit would have a later one, with what lanes have written since. It is not
// told, and the next one is right.
func TestCutLostReply(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1, SnapshotHistory: 5 * time.Minute})
	r.target.prepareCuts(t)
	l := newCutLog(t, 3, 60)
	c := r.cutter(t, nil)
	c.ask()
	c.made() // the metadata are prepared
	recording, lost := "", make(chan struct{})
	var mu sync.Mutex // guards recording
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		session := cmd.Body.Lookup("lsid").String()
		switch {
		case isRecord(cmd) && recording == "":
			recording = session
		case simcaller.Name(cmd) == "commitTransaction" && recording == session:
			recording = "done"
			close(lost)
			return &mongo.LostError{Err: errors.New("the connection is gone")}, true
		}
		return nil, false
	})
	batches := l.batches()
	for i, b := range batches {
		c.in <- b
		if i == len(batches)/2 {
			c.ask()
			<-lost
		}
	}
	c.reaches(l.optime())
	c.ask()
	for made := c.made(); ; made = c.made() { // it was asked for again after the refusal, too
		if diff := cmp.Diff(l.at(made.Source), r.target.asOf(t, made.Target, cutNamespaces...)); diff != "" {
			t.Errorf("the cut at %s (-want +got):\n%s", made.Source, diff)
		}
		if made.Source == l.optime() {
			break
		}
	}
	c.drain()
}
