package repl

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

func TestASetElectsOnePrimaryAndReplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.delay = time.Millisecond
		p := c.initiate(nil, nil)
		for i := range 5 {
			at := p.mustWrite(strconv.Itoa(i))
			for _, wc := range []WriteConcern{{W: 1}, {W: 2}, {W: 3}, {Mode: "majority", Journal: true}} {
				if err := p.AwaitWriteConcern(c.ctx, at, wc); err != nil {
					t.Fatalf("write concern %+v: %v", wc, err)
				}
			}
		}
		last := p.View().Applied
		for _, h := range c.hosts {
			tn := c.node(h)
			c.until(h+" commits", func() bool { return tn.View().Committed == last })
			if got := tn.entries(); !slices.Equal(got, p.entries()) {
				t.Errorf("%s has %v, want %v", h, got, p.entries())
			}
			v := tn.View()
			if v.Term != 1 || v.Primary < 0 || v.Members[v.Primary].Host != p.host {
				t.Errorf("%s: term %d, primary %d", h, v.Term, v.Primary)
			}
			if want := (h == p.host); v.ElectionID.IsZero() == want {
				t.Errorf("%s: election id %s", h, v.ElectionID.Hex())
			}
		}
		if got := p.hooks; !slices.Equal(got, []string{"up 1"}) {
			t.Errorf("hooks of the primary: %q", got)
		}
	})
}

func TestAPrimaryAloneStepsDownAndRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		old := c.initiate(nil, nil)
		at := old.mustWrite("kept")
		if err := old.AwaitWriteConcern(c.ctx, at, WriteConcern{Mode: "majority"}); err != nil {
			t.Fatal(err)
		}
		var rest []string
		for _, h := range c.hosts {
			if h != old.host {
				rest = append(rest, h)
			}
		}
		c.split([]string{old.host}, rest)
		lost := old.mustWrite("lost")
		done := make(chan error, 1)
		go func() { done <- old.AwaitWriteConcern(c.ctx, lost, WriteConcern{Mode: "majority"}) }()
		wantCode(t, <-done, servererr.PrimarySteppedDown)
		if _, err := old.write("refused"); err == nil {
			t.Error("a primary that stepped down accepts a write")
		}
		var p *testNode
		c.until("the others elect a primary", func() bool {
			for _, h := range rest {
				if v := c.node(h).View(); v.Writable {
					p = c.node(h)
				}
			}
			return p != nil
		})
		p.mustWrite("new")
		c.heal()
		c.until("the old primary follows", func() bool { return old.has("new") })
		if old.has("lost") || !old.has("kept") {
			t.Errorf("the old primary has %q", old.words())
		}
		if v := old.View(); v.RBID != 2 || v.State != oplog.MemberSecondary {
			t.Errorf("after the rollback: rbid %d, state %s", v.RBID, v.State)
		}
		if got, want := old.hooks, []string{"up 1", "down", "rolled back"}; !slices.Equal(got, want) {
			t.Errorf("hooks %q, want %q", got, want)
		}
	})
}

func TestARestartKeepsTheVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		host := c.hosts[0]
		if p.host == host {
			host = c.hosts[1]
		}
		candidate := p.View() // the member with the newest entry is not refused for another reason
		ask := func(tn *testNode, index int64) bson.Raw {
			cmd, err := bson.Marshal(bson.D{
				{Key: "replSetRequestVotes", Value: 1},
				{Key: "setName", Value: "rs"},
				{Key: "dryRun", Value: false},
				{Key: "term", Value: int64(9)},
				{Key: "candidateIndex", Value: index},
				{Key: "configVersion", Value: candidate.ConfigVersion},
				{Key: "configTerm", Value: candidate.ConfigTerm},
				{Key: "lastAppliedOpTime", Value: candidate.Applied},
			})
			if err != nil {
				t.Fatal(err)
			}
			reply, err := tn.RequestVotes(cmd)
			if err != nil {
				t.Fatal(err)
			}
			return reply
		}
		if !ask(c.node(host), 2).Lookup("voteGranted").Boolean() {
			t.Fatal("no vote for the first candidate")
		}
		store := c.kill(host)
		tn := c.start(host, store)
		if v := tn.View(); v.Term != 9 || v.ConfigVersion != 1 || v.RBID != 1 {
			t.Errorf("after a restart: term %d, version %d, rbid %d", v.Term, v.ConfigVersion, v.RBID)
		}
		reply := ask(tn, 1)
		if reply.Lookup("voteGranted").Boolean() {
			t.Error("two votes in one term")
		}
		if got, want := reply.Lookup("reason").StringValue(), "already voted for another candidate (2) this term (9)"; got != want {
			t.Errorf("reason %q, want %q", got, want)
		}
		c.settled()
	})
}

func TestADelayedMemberWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(map[int]bson.D{2: {{Key: "priority", Value: 0}, {Key: "secondaryDelaySecs", Value: 60}, {Key: "hidden", Value: true}}}, nil)
		late := c.node(c.hosts[2])
		start := time.Now()
		at := p.mustWrite("x")
		if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{Mode: "majority"}); err != nil {
			t.Fatal(err)
		}
		if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 59*time.Second || d > 75*time.Second {
			t.Errorf("a member delayed by 60 s applied after %s", d)
		}
		if !late.has("x") {
			t.Error("the delayed member has not got the entry that it acknowledged")
		}
	})
}

func TestPriorityTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		c.initiate(map[int]bson.D{1: {{Key: "priority", Value: 5}}}, nil)
		c.until("the member of the highest priority is primary", func() bool {
			return c.node(c.hosts[1]).View().Writable
		})
		p := c.settled()
		before := p.View().Term
		time.Sleep(2 * time.Minute)
		if v := p.View(); v.Term != before || !v.Writable {
			t.Errorf("no rest after the takeover: term %d, before %d", v.Term, before)
		}
	})
}

func TestStepDownAndStepUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		p := c.initiate(nil, nil)
		wantCode(t, p.StepDown(c.ctx, time.Second, 0, false), servererr.ExceededTimeLimit)
		if !p.View().Writable {
			t.Error("a step-down that failed leaves the primary unwritable")
		}
		// Clients that wait in hello are notified, and take a reply only if it counts as
		// newer.
		before, told := p.View().TopologyCounter, p.Changed()
		if err := p.StepDown(c.ctx, time.Second, 0, true); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		default:
			t.Error("who waits for a change is not told of a step-down")
		}
		if after := p.View().TopologyCounter; after <= before {
			t.Errorf("the topology counter went from %d to %d over a step-down", before, after)
		}
		for range 4 {
			wantCode(t, p.StepUp(c.ctx), servererr.CommandFailed)
			time.Sleep(200 * time.Millisecond)
		}
		wantCode(t, p.StepDown(c.ctx, time.Second, 0, true), servererr.NotWritablePrimary)
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if v := p.View(); !v.Writable || v.Term != 2 {
			t.Errorf("after the step-down period: writable %v, term %d", v.Writable, v.Term)
		}
		wantCode(t, p.Freeze(time.Second), servererr.NotSecondary)
	})
}

func TestStepDownHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		at := p.mustWrite("x")
		if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		start := time.Now()
		if err := p.StepDown(c.ctx, time.Minute, 10*time.Second, false); err != nil {
			t.Fatal(err)
		}
		next := c.settled()
		if next == p || time.Since(start) > 5*time.Second {
			t.Errorf("%s took over from %s after %s", next.host, p.host, time.Since(start))
		}
		if err := p.StepUp(c.ctx); err == nil {
			t.Error("a member within its step-down period was elected")
		}
		if err := p.Freeze(0); err != nil {
			t.Error(err)
		}
		c.until("it has the new primary's entry", func() bool { return p.View().Applied == next.View().Applied })
		if err := p.StepUp(c.ctx); err != nil {
			t.Errorf("step up: %v", err)
		}
	})
}

func TestWriteConcerns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		tags := func(dc string) bson.D {
			return bson.D{{Key: "tags", Value: bson.D{{Key: "dc", Value: dc}}}}
		}
		settings := bson.D{{Key: "getLastErrorModes", Value: bson.D{
			{Key: "two", Value: bson.D{{Key: "dc", Value: 2}}},
			{Key: "three", Value: bson.D{{Key: "dc", Value: 3}}},
		}}}
		p := c.initiate(map[int]bson.D{
			0: tags("x"), 1: append(tags("x"), bson.E{Key: "priority", Value: 0}),
			2: append(tags("y"), bson.D{{Key: "priority", Value: 0}, {Key: "votes", Value: 0}, {Key: "hidden", Value: true}}...),
			3: {{Key: "arbiterOnly", Value: true}},
		}, settings)
		at := p.mustWrite("all")
		for _, tt := range []struct {
			wc   WriteConcern
			code servererr.Code
		}{
			{WriteConcern{W: 0}, 0},
			{WriteConcern{W: 1, Journal: true}, 0},
			{WriteConcern{W: 3}, 0}, // a hidden member without a vote counts
			{WriteConcern{W: 4}, servererr.UnsatisfiableWriteConcern},
			{WriteConcern{Mode: "majority"}, 0},
			{WriteConcern{Mode: "two"}, 0},
			{WriteConcern{Mode: "three"}, servererr.UnsatisfiableWriteConcern},
			{WriteConcern{Mode: "four"}, servererr.UnknownReplWriteConcern},
		} {
			err := p.AwaitWriteConcern(c.ctx, at, tt.wc)
			if tt.code != 0 {
				wantCode(t, err, tt.code)
			} else if err != nil {
				t.Errorf("%+v: %v", tt.wc, err)
			}
		}
		c.kill(c.hosts[2])
		at = p.mustWrite("without c")
		for _, wc := range []WriteConcern{{W: 3}, {Mode: "two"}} {
			wc.Timeout = time.Second
			start := time.Now()
			wantCode(t, p.AwaitWriteConcern(c.ctx, at, wc), servererr.WriteConcernTimeout)
			if d := time.Since(start); d != time.Second {
				t.Errorf("timed out after %s", d)
			}
		}
		ctx, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		if err := p.AwaitWriteConcern(ctx, at, WriteConcern{W: 3}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the context's", err)
		}
	})
}
