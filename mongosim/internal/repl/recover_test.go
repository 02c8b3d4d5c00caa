package repl

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestTooStale: what the member needs next has left every oplog.
func TestTooStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, nil)
		for i := range 3 {
			c.hosts = append(c.hosts, hostName(i))
			c.start(hostName(i), storage.New(storage.Options{OplogBytes: 8 << 10}))
		}
		p := c.initiate(nil, nil)
		late := c.hosts[2]
		if p.host == late {
			late = c.hosts[1]
		}
		store := c.kill(late)
		for i := range 200 {
			at := p.mustWrite(fmt.Sprintf("%d %s", i, strings.Repeat("x", 100)))
			if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{Mode: "majority"}); err != nil {
				t.Fatal(err)
			}
		}
		tn := c.start(late, store)
		c.until("the member finds that it is too stale", func() bool { return tn.View().State == oplog.MemberRecovering })
		status, err := tn.Status()
		if err != nil {
			t.Fatal(err)
		}
		if v, err := status.LookupErr("tooStale"); err != nil || !v.Boolean() {
			t.Errorf("status does not say tooStale: %v", err)
		}
		if tn.Fatal() != "" {
			t.Errorf("a stale member gave up: %s", tn.Fatal())
		}
	})
}

// TestARollbackBehindTheCopy: a member that was copied from a primary without a
// majority has nothing to go back to, and is copied again.
func TestARollbackBehindTheCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 5, nil)
		p := c.initiate(nil, nil)
		var rest []string
		for _, h := range c.hosts {
			if h != p.host {
				rest = append(rest, h)
			}
		}
		x := rest[0]
		c.kill(x)
		c.split([]string{p.host, x}, rest[1:])
		for i := range 5 {
			p.mustWrite(fmt.Sprintf("lost %d", i))
		}
		tn := c.start(x, c.newStore())
		c.until("the copy is there", func() bool { return tn.has("lost 4") })
		if v := tn.View(); !v.Committed.IsNull() && v.Committed.Term == v.Term && v.Committed == v.Applied {
			t.Errorf("what was copied counts as committed: %s", v.Committed)
		}
		var next *testNode
		c.until("the others elect a primary", func() bool {
			for _, h := range rest[1:] {
				if c.node(h).View().Writable {
					next = c.node(h)
				}
			}
			return next != nil
		})
		next.mustWrite("new")
		c.heal()
		c.until("the copied member follows", func() bool { return tn.has("new") && p.has("new") })
		if !slices.Equal(tn.entries(), next.entries()) || tn.Fatal() != "" {
			t.Errorf("%v\n%v\n%s", tn.entries(), next.entries(), tn.Fatal())
		}
	})
}

// TestRollbackUndoesData takes documents back, not only entries.
func TestRollbackUndoesData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		insert := func(tn *testNode, id string) oplog.OpTime {
			t.Helper()
			path, err := opwrite.New(opwrite.Config{
				Store: tn.store, Dialect: tn.cfg.Dialect, Term: tn.WriteTerm, Now: time.Now, NewUUID: func() oplog.UUID { return tn.newUUID("test") }, OnWrite: tn.Wrote,
			})
			if err != nil {
				t.Fatal(err)
			}
			var at oplog.OpTime
			err = path.Write(func(b *opwrite.Batch) error {
				coll, ok := b.View().Collection("t.c")
				if !ok {
					if coll, err = b.Create("t.c", emptyDocument(), nil); err != nil {
						return err
					}
				}
				_, err := b.Insert(coll, []bson.Raw{marshal(t, bson.D{{Key: "_id", Value: id}})}, nil)
				at = b.LastOpTime()
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		ids := func(tn *testNode) (all []string) {
			_ = tn.store.Read(func(r *storage.Reader) error {
				if coll, ok := r.View(bson.Timestamp{}).Collection("t.c"); ok {
					for rec := range coll.Natural(0) {
						all = append(all, rec.Doc.Lookup("_id").StringValue())
					}
				}
				return nil
			})
			return all
		}
		if err := p.AwaitWriteConcern(c.ctx, insert(p, "kept"), WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		var rest []string
		for _, h := range c.hosts {
			if h != p.host {
				rest = append(rest, h)
			}
		}
		c.split([]string{p.host}, rest)
		insert(p, "lost")
		var next *testNode
		c.until("the others elect a primary", func() bool {
			for _, h := range rest {
				if c.node(h).View().Writable {
					next = c.node(h)
				}
			}
			return next != nil
		})
		insert(next, "new")
		c.heal()
		want := []string{"kept", "new"}
		c.until("the old primary has the new document", func() bool { return slices.Contains(ids(p), "new") })
		for _, h := range c.hosts {
			c.until(h+" has it", func() bool { return slices.Contains(ids(c.node(h)), "new") })
			if got := ids(c.node(h)); !slices.Equal(got, want) {
				t.Errorf("%s has %q, want %q", h, got, want)
			}
		}
	})
}

// TestANodeThatEndedRefuses: another one may run on its store.
func TestANodeThatEndedRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		p := c.initiate(nil, nil)
		c.kill(p.host)
		if _, err := p.WriteTerm(); err == nil {
			t.Error("a node that ended lets a write in")
		}
		_, err := p.Heartbeat(p.beatTo())
		wantCode(t, err, servererr.ShutdownInProgress)
		wantCode(t, p.StepUp(c.ctx), servererr.ShutdownInProgress)
		wantCode(t, p.saveVote(), servererr.ShutdownInProgress)
		again := c.start(p.host, p.store)
		c.until("it is primary again", func() bool { return again.View().Writable })
		if v := again.View(); v.Term != 2 {
			t.Errorf("term %d after a restart", v.Term)
		}
	})
}

func TestPeriodicNoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(cfg *Config) { cfg.NoopInterval = 10 * time.Second })
		p := c.initiate(nil, nil)
		before := len(p.entries())
		time.Sleep(65 * time.Second)
		if got := len(p.entries()) - before; got < 5 || got > 7 {
			t.Errorf("%d no-ops in 65 s", got)
		}
		time.Sleep(5 * time.Second)
		p.mustWrite("busy")
	})
}

// TestACommonPointHasOneTerm: two histories may share a timestamp.
func TestACommonPointHasOneTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := quiet(t)
		at := tn.View().Applied
		for _, tt := range []struct {
			term int64
			want bool
		}{{at.Term, true}, {at.Term - 1, false}, {at.Term + 1, false}} {
			doc := marshal(t, bson.D{{Key: "ts", Value: at.TS}, {Key: "t", Value: tt.term}})
			_, found, oldest, err := tn.firstShared([]bson.Raw{doc})
			if err != nil || found != tt.want || oldest != at.TS {
				t.Errorf("term %d: found %v, oldest %v, error %v", tt.term, found, oldest, err)
			}
		}
	})
}
