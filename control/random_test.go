package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// office is a link whose leaders follow one another, and whose operators ask for things meanwhile.
type office struct {
	client.Chances

	t      *testing.T
	link   string
	target *client.Elected
	// times are those of the target after each confirmed write.
	times []bson.Timestamp
	// clerks are the processes; the last one has the lease.
	clerks  []*clerk
	looking *clerk // who has sent the command before which others do something, nil for none
}

// clerk is a process, or an operator's command.
type clerk struct {
	*Controller
	client.Process

	of *office
}

func (o *office) newClerk(name string) *clerk {
	return &clerk{Process: client.Process{Name: name, Dies: 150, Loses: 40}, of: o}
}

// Call implements mongo.Caller: a command may not arrive, its reply may be lost, the process may die, and others may do something before it.
func (c *clerk) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	o := c.of
	if o.Calm {
		return o.target.Call(ctx, cmd)
	}
	name := cmd.Body.Index(0).Key()
	if _, err := cmd.Body.LookupErr("autocommit"); err != nil && c.Controller != nil && o.looking == nil && o.One(6) { // a transaction would block them
		o.looking = c
		o.step() //nolint:contextcheck // others have contexts of their own
		o.looking = nil
	}
	return o.Send(&c.Process, name, func() (bson.Raw, error) { return c.arrives(ctx, cmd, name) })
}

func (c *clerk) arrives(ctx context.Context, cmd mongo.Command, name string) (bson.Raw, error) {
	o := c.of
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" && o.One(3) {
		o.elect()
	}
	reply, err := o.target.Call(ctx, cmd)
	if slices.Contains([]string{"insert", "update", "delete", "findAndModify", "commitTransaction", "create"}, name) && err == nil {
		o.confirmed(context.WithoutCancel(ctx))
	}
	return reply, err
}

// confirmed notes that a write is confirmed: a majority has an entry of the primary's own term.
func (o *office) confirmed(ctx context.Context) {
	o.target.Learn()
	o.times = append(o.times, must.Get(mongo.OperationTime(ctx, o.target.Caller))(o.t))
}

func (c *clerk) store() *request.Store {
	return request.New(must.Get(checkpoint.New(checkpoint.Config{Target: c, Link: c.of.link}))(c.of.t))
}

// step is what happens next.
func (o *office) step() {
	switch n := o.Rand.IntN(10); {
	case n < 3:
		o.ask()
	case n < 4:
		o.succeed()
	case n < 6 && len(o.times) > 0:
		o.elect()
		o.look(o.clerks[len(o.clerks)-1])
	default:
		o.look(o.clerks[len(o.clerks)-1-min(len(o.clerks)-1, max(0, o.Rand.IntN(6)-4))])
	}
}

// elect makes the primary one that was just elected.
func (o *office) elect() {
	at := o.times[max(0, len(o.times)-1-o.Rand.IntN(8))]
	o.Note("an election: the primary knows what a majority had at %d:%d", at.T, at.I)
	o.target.ElectAt(at)
}

// ask makes a request.
func (o *office) ask() {
	n := o.Rand.IntN(3)
	asks := []request.Ask{
		{Kind: request.Pause},
		{Kind: request.Resume},
		{Kind: request.Throttle, Args: json.RawMessage(fmt.Sprintf(`{"applyOpsPerSecond": %d}`, 1000+n))},
		{Kind: request.Throttle, Args: json.RawMessage(fmt.Sprintf(`{"copyOpsPerSecond": %d}`, 2000+n))},
		{Kind: request.Throttle, Args: json.RawMessage(fmt.Sprintf(`{"applyBytesPerSecond": %d, "copyBytesPerSecond": %d}`, 3000+n, 4000+n))},
		{Kind: request.LogLevel, Args: json.RawMessage(`{"level": "` + []string{"debug", "warn", "default"}[n] + `"}`)},
	}
	a := asks[o.Rand.IntN(len(asks))]
	ctx, stop := context.WithTimeout(o.t.Context(), 100*time.Millisecond)
	defer stop()
	r, err := o.newClerk("an operator").store().Ask(ctx, a)
	o.Note("asked for %s %s: %s %v", a.Kind, a.Args, r.ID, err)
}

// succeed makes another process the leader, or one that has led before.
func (o *office) succeed() {
	c := o.newClerk(fmt.Sprintf("process %d", len(o.clerks)))
	again := slices.DeleteFunc(slices.Clone(o.clerks), func(c *clerk) bool { return c.Dead || c == o.looking })
	if len(again) > 0 && o.One(2) {
		c = again[o.Rand.IntN(len(again))]
	} else {
		c.Controller = New(Config{Requests: c.store(), Target: c, Applied: func() oplog.OpTime { return oplog.OpTime{} }})
	}
	c.Begin()
	was := o.Calm
	o.Calm = true // what a lease does then is tested elsewhere
	link := must.Get(must.Get(checkpoint.New(checkpoint.Config{Target: c, Link: o.link, Process: c.Name}))(o.t).Acquire(o.t.Context(), 0))(o.t)
	o.Calm = was
	o.confirmed(o.t.Context())
	c.Leads(link)
	o.clerks = append(o.clerks, c)
	o.Note("%s leads", c.Name)
	o.check()
}

// look lets a process look for requests once.
func (o *office) look(c *clerk) {
	if c == o.looking {
		return
	}
	within := 150 * time.Millisecond
	if o.Calm {
		within = lookWithin
	}
	ctx, stop := context.WithTimeout(o.t.Context(), within)
	defer stop()
	c.look(ctx)
	o.Note("%s has looked: paused %t", c.Name, c.Paused())
	o.check()
}

// records are all requests, the oldest first.
func (o *office) records() []request.Record {
	s := request.New(must.Get(checkpoint.New(checkpoint.Config{Target: o.target.Caller, Link: o.link}))(o.t))
	list := must.Get(s.List(o.t.Context()))(o.t)
	slices.Reverse(list)
	return list
}

// told are the settings that follow from requests, each carried out after the one before.
type told struct {
	paused               bool
	applyOps, applyBytes int64
	copyOps, copyBytes   int64
	level                string
}

// carry carries out a request, and returns how its outcome begins.
func (s *told) carry(t *testing.T, r *request.Record) string {
	was := s.paused
	switch r.Kind {
	case request.Pause:
		s.paused = true
		if was {
			return "it was paused already"
		}
		return "paused"
	case request.Resume:
		s.paused = false
		if was {
			return "resumed"
		}
		return "it was not paused"
	case request.LogLevel:
		s.level = must.Get(r.Level())(t)
		if s.level == "default" {
			s.level = ""
		}
		return "logs "
	default:
		change := must.Get(r.Change())(t)
		set(&s.applyOps, change.ApplyOpsPerSecond)
		set(&s.applyBytes, change.ApplyBytesPerSecond)
		set(&s.copyOps, change.CopyOpsPerSecond)
		set(&s.copyBytes, change.CopyBytesPerSecond)
		return "applies "
	}
}

// check compares the answers with those that were to be given, and whether the leader applies anything although a pause was acknowledged.
func (o *office) check() told {
	s := told{copyOps: -1, copyBytes: -1}
	resumes, open := false, false
	for _, r := range o.records() {
		if r.Open() {
			open, resumes = true, resumes || r.Kind == request.Resume
			continue
		}
		switch want := s.carry(o.t, &r); {
		case open:
			o.Fail("request %s, a %s, is answered before an earlier one", r.ID, r.Kind)
		case r.State != request.Done || !strings.HasPrefix(r.Outcome, want):
			o.Fail("request %s, a %s: %s %q, want %q", r.ID, r.Kind, r.State, r.Outcome, want)
		}
	}
	if leader := o.clerks[len(o.clerks)-1]; s.paused && !resumes && !leader.Paused() {
		o.Fail("%s applies the oplog, and a pause was acknowledged", leader.Name)
	}
	return s
}

// settle lets one more process carry out all that is open, and compares the settings.
func (o *office) settle() {
	o.Calm = true
	o.target.Learn()
	o.succeed()
	for range 5 {
		o.look(o.clerks[len(o.clerks)-1])
	}
	want, c := o.check(), o.clerks[len(o.clerks)-1]
	for _, r := range o.records() {
		if r.Open() {
			o.Fail("request %s, a %s, stays open", r.ID, r.Kind)
		}
	}
	now, all := must.Get(c.store().Settings(o.t.Context()))(o.t), must.Get(c.store().Read(o.t.Context()))(o.t)
	got := told{now.Paused != nil, now.Throttle.OpsPerSecond, now.Throttle.BytesPerSecond, all.OpsPerSecond, all.BytesPerSecond, now.Level}
	if got != want {
		o.Fail("the settings are %+v, want %+v", got, want)
	}
	if c.Paused() != want.paused {
		o.Fail("the leader is paused: %t", c.Paused())
	}
}

// TestRequestsAtRandom: requests of operators are carried out one after the other, each is answered with what it has done, and nothing is applied after a
// pause was acknowledged, whatever the leaders and operators do between each other's commands, whichever of them die, whose replies are
// lost, and after elections of the target. CONTROL_RANDOM is how many times,
// CONTROL_FIRST the first seed.
func TestRequestsAtRandom(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.NoMoods("it has faults of its own"), TTLInterval: -1})
	conn := client.Open(t, driver.Config{URI: set.URI()})
	times, _ := strconv.Atoi(os.Getenv("CONTROL_RANDOM"))
	var all sync.WaitGroup
	few := make(chan struct{}, 8)
	first, _ := strconv.ParseUint(os.Getenv("CONTROL_FIRST"), 10, 64)
	for seed := first; seed < first+uint64(cmp.Or(times, 20)); seed++ {
		few <- struct{}{}
		o := &office{t: t, Chances: client.Chances{Rand: rand.New(rand.NewPCG(2, seed))}, link: fmt.Sprintf("r%d", seed), target: &client.Elected{Caller: conn}}
		at := oplog.NewOpTime(100, 1, 1)
		must.Succeed(t, must.Get(checkpoint.New(checkpoint.Config{Target: conn, Link: o.link}))(t).Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, FetchFrom: at}))
		all.Go(func() {
			defer func() { <-few }()
			o.Note("seed %d", seed)
			o.succeed()
			o.Play(t, 60, o.step, o.settle)
		})
	}
	all.Wait()
}
