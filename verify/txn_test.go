package verify

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// former returns a set of a version that reads as of a time only in transactions.
func former(t *testing.T) *driver.Set {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{TTLInterval: -1, Dialect: "4.4"})
	return client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
}

// transactions counts the transactions that are begun and ended.
type transactions struct {
	mongo.Caller
	mu           sync.Mutex
	begun, ended int
}

// Call implements mongo.Caller.
func (c *transactions) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	_, begins := rawbson.Lookup(cmd.Body, "startTransaction")
	c.mu.Lock()
	if begins {
		c.begun++
	}
	if it.Is("abortTransaction") {
		c.ended++
	}
	c.mu.Unlock()
	return c.Caller.Call(ctx, cmd)
}

// TestInTransactions: before 5.0 both sides are read at cuts in transactions, each of which is ended. One that the
// server has aborted, for its age, is followed by another one at a newer cut.
func TestInTransactions(t *testing.T) {
	t.Parallel()
	for _, rangeBytes := range []int64{0, 50_000} {
		source, target := former(t), former(t)
		a, b, want := spoiled(t, mixed(t, 700))
		insertRaw(t, source, "d.c", a...)
		insertRaw(t, target, "d.c", b...)
		var mu sync.Mutex
		reads, gone := 0, 0
		// at is the cut at which a session reads; lost are those of transactions that are gone, which two may share.
		at, lost := map[string]string{}, map[string]bool{}
		before := func(cmd mongo.Command) error {
			mu.Lock()
			defer mu.Unlock()
			if _, in := rawbson.Lookup(cmd.Body, "autocommit"); !in {
				return nil
			}
			session, _ := rawbson.Lookup(cmd.Body, "lsid")
			if concern, begins := rawbson.Lookup(cmd.Body, "readConcern"); begins {
				at[string(session.Value)] = string(concern.Value)
			}
			reads++
			switch {
			case reads == 1:
				// After the cut, and before it is read: it would be extra without a snapshot.
				more := neighbours(t, 1_000_000, 1_000_001)
				insertRaw(t, target, "d.c", more...)
				insertRaw(t, source, "d.c", more...)
			case reads%5 == 0 && gone < 3:
				gone++
				lost[at[string(session.Value)]] = true
				return servererr.New(servererr.NoSuchTransaction, "planted")
			}
			return nil
		}
		from, to := &transactions{Caller: source}, &transactions{Caller: &hook{Caller: target, ns: "d.c", before: before}}
		cuts := &rest{source: source, target: target}
		summary, found := check(t, Config{Source: from, Target: to, Cuts: cuts, RangeBytes: rangeBytes, Workers: 2})
		c := &summary.Collections[0]
		if len(found) != len(want) || c.Fault != "" || c.How != string(byID)+", in transactions" || c.First == nil {
			t.Errorf("ranges of %d: %d differences, want %d: %+v", rangeBytes, len(found), len(want), c)
		}
		if cuts.made <= len(lost) || lost[""] {
			t.Errorf("%d cuts, and %d transactions are gone, of %d cuts", cuts.made, gone, len(lost))
		}
		if rangeBytes > 0 && gone == 0 || from.begun == 0 || to.begun == 0 || from.begun != from.ended || to.begun != to.ended {
			t.Errorf("ranges of %d: %d are gone; of the source %d begun, %d ended; of the target %d and %d", rangeBytes, gone, from.begun, from.ended, to.begun, to.ended)
		}
	}
}

// TestShortHistory: where a cut can be read for too short a time in transactions, differences are confirmed.
func TestShortHistory(t *testing.T) {
	t.Parallel()
	source, target := former(t), former(t)
	insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
	insertRaw(t, target, "d.c", neighbours(t, 1, 11)...)
	refuse := func(cmd mongo.Command) error {
		if _, in := rawbson.Lookup(cmd.Body, "startTransaction"); in {
			return servererr.New(servererr.SnapshotTooOld, "planted")
		}
		return nil
	}
	summary, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: refuse}, Cuts: &rest{source: source, target: target}})
	if len(found) != 2 || summary.Unchecked() > 0 || summary.Collections[0].How != string(byID)+", differences read again" {
		t.Errorf("%+v %+v", found, summary.Collections)
	}
}

// TestLongTransaction: a range that takes its time is read in several transactions, as commands that lock the
// collection wait for each.
func TestLongTransaction(t *testing.T) {
	t.Parallel()
	source, target := former(t), former(t)
	pad := strings.Repeat("x", 1<<20)
	for i := range int32(12) {
		big := must.Marshal(t, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: pad}})
		insertRaw(t, source, "d.c", big)
		if i != 11 {
			insertRaw(t, target, "d.c", big)
		}
	}
	slow := false
	before := func(cmd mongo.Command) error {
		if _, in := rawbson.Lookup(cmd.Body, "autocommit"); in && cmd.Body.Index(0).Key() == "getMore" && !slow {
			slow = true
			time.Sleep(txnFor + time.Millisecond)
		}
		return nil
	}
	to := &transactions{Caller: &hook{Caller: target, ns: "d.c", before: before}}
	summary, found := check(t, Config{Source: source, Target: to, Cuts: &rest{source: source, target: target}, Workers: 1})
	if c := &summary.Collections[0]; len(found) != 1 || brief(&found[0]) != "missing "+number(11) || c.SourceDocs != 12 || c.Fault != "" {
		t.Errorf("%+v %+v", found, c)
	}
	if !slow || to.begun != to.ended {
		t.Errorf("slow %t, %d transactions begun, %d ended", slow, to.begun, to.ended)
	}
	if to.begun < 2 {
		t.Errorf("it was read in %d transactions", to.begun)
	}
}
