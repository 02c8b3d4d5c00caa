package control

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// desk keeps requests in memory, as a target does.
type desk struct {
	mu       sync.Mutex // guards the rest
	settings request.Settings
	records  []request.Record // the oldest first
	all      request.Requests
	// away is the error of each call, if not nil; mute is that of answers alone.
	away, mute error
	// after is the error of answers while the link is not paused, if not nil.
	after error
	// unread is the error of Read, uncut that of Prune.
	unread, uncut error
	// term is that of the newest lease.
	term  int64
	lists int
	// looks counts the reads of the settings.
	looks int
	// answered is true between an answer and the next list, unseen after a history was cut in
	// between.
	answered, unseen bool
}

// term is a lease of that term.
type term int64

// Term implements request.Leader.
func (t term) Term() int64 { return int64(t) }

// Within implements request.Leader. The desk compares terms.
func (term) Within(context.Context, func(mongo.Caller) error) error { panic("not called") }

// becoming returns what checks, two seconds later, the state and the outcome of a request by its number.
func (d *desk) becoming(t *testing.T) func(n int, want string) {
	return func(n int, want string) {
		t.Helper()
		pass(2 * time.Second)
		d.set(func() {
			if got := d.records[n].State + " " + d.records[n].Outcome; got != want {
				t.Errorf("request %d: %s, want %s", n, got, want)
			}
		})
	}
}

func newDesk() *desk { return &desk{all: request.Requests{BytesPerSecond: -1, OpsPerSecond: -1}} }

func (d *desk) locked(do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away != nil {
		return d.away
	}
	return do()
}

func (d *desk) Settings(context.Context) (s request.Settings, err error) {
	return s, d.lockedGet(func() {
		d.looks++
		s = d.settings
	})
}

func (d *desk) lockedGet(do func()) error { return d.locked(func() error { do(); return nil }) }

func (d *desk) List(context.Context) (list []request.Record, err error) {
	err = d.lockedGet(func() {
		d.lists++
		d.answered = false
		list = slices.Clone(d.records)
		slices.Reverse(list)
	})
	return list, err
}

// by runs do if no newer lease than by is known.
func (d *desk) by(by request.Leader, do func() error) error {
	return d.locked(func() error {
		if by.Term() < d.term {
			return lease.ErrFenced
		}
		d.term = by.Term()
		return do()
	})
}

func (d *desk) Set(_ context.Context, by request.Leader, _, next request.Settings) (request.Settings, error) {
	return next, d.by(by, func() error { d.settings = next; return nil })
}

func (d *desk) Answered(_ context.Context, by request.Leader, id, state, outcome string) error {
	return d.by(by, func() error {
		if d.mute != nil {
			return d.mute
		}
		if d.after != nil && d.settings.Paused == nil {
			return d.after
		}
		for i := range d.records {
			if r := &d.records[i]; r.ID == id && r.Open() {
				r.State, r.Outcome, d.answered = state, outcome, true
			}
		}
		return nil
	})
}

// Prune notes whether something was answered since List: whoever asked has not seen that yet.
func (d *desk) Prune(context.Context, []request.Record) error {
	return d.locked(func() error { d.unseen = d.unseen || d.answered; return d.uncut })
}

func (d *desk) Read(context.Context) (all request.Requests, err error) {
	return all, d.locked(func() error { all = d.all; all.Resync = slices.Clone(d.all.Resync); return d.unread })
}

func (d *desk) LimitUnder(_ context.Context, by request.Leader, bytes, ops int64) error {
	return d.by(by, func() error { d.all.BytesPerSecond, d.all.OpsPerSecond = bytes, ops; return nil })
}

func (d *desk) ResyncUnder(_ context.Context, by request.Leader, ns oplog.Namespace) error {
	return d.by(by, func() error {
		d.all.Resync = append(d.all.Resync, request.Resync{NS: ns, State: request.Asked})
		return nil
	})
}

// Call implements mongo.Caller: the target is asked for signs of pressure.
func (d *desk) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "operationTime", Value: bson.Timestamp{T: deskTime, I: 1}}, {Key: "flowControl", Value: bson.D{{Key: "enabled", Value: true}, {Key: "isLagged", Value: true}}}})
}

func (d *desk) ask(kind request.Kind, args string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.records = append(d.records, request.Record{
		ID: strconv.Itoa(len(d.records)), Kind: kind, Args: json.RawMessage(args), By: "me", At: time.Now(), State: request.Asked,
	})
}

func (d *desk) set(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
}

// states are the states of all records.
func (d *desk) states() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for i := range d.records {
		list = append(list, d.records[i].State)
	}
	return strings.Join(list, " ")
}

// desked is a Controller of a process.
type desked struct {
	*Controller
	level string
	end   func()
}

// lead begins a leadership in a term.
func lead(c *Controller, by term) (end func()) {
	ctx, stop := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	c.Begin()
	c.Leads(by)
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		stop(nil)
		<-done
	}
}

func newDesked(d *desk, by term) *desked {
	p := &desked{}
	p.Controller = New(Config{
		Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.NewOpTime(7, 1, 1) }, SetLevel: func(l string) { p.level = l },
	})
	p.end = lead(p.Controller, by)
	return p
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestUnread: what cannot be read stays as it was, also from one look to the next; a process
// that has never read it holds everything.
func TestUnread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p := newDesked(d, 1)
		d.ask(request.Throttle, `{"applyOpsPerSecond": 5, "applyBytesPerSecond": 70}`)
		pass(listEvery)
		limited := func(what string, held bool) {
			t.Helper()
			if p.brake.ops.perSecond != 5 || p.brake.bytes.perSecond != 70 || p.Paused() != held {
				t.Errorf("%s: %v and %v per second, held %t", what, p.brake.ops.perSecond, p.brake.bytes.perSecond, p.Paused())
			}
		}
		limited("set", false)
		d.set(func() { d.away = errors.New("away") })
		pass(time.Hour)
		limited("unread", false)
		if s := p.Status(); s.UnreadSince.IsZero() || s.UnreadWhy != "away" || s.Throttle.OpsPerSecond != 5 {
			t.Errorf("%+v", s)
		}
		d.set(func() { d.away, d.settings.Paused = nil, &request.Paused{Request: "x"} })
		pass(2 * time.Second)
		limited("paused", true)
		d.set(func() { d.away, d.settings = errors.New("away"), request.Settings{} })
		pass(time.Hour)
		limited("unread and paused", true)
		p.end()
		// Another leadership does not know whether it was resumed meanwhile.
		d.set(func() { d.settings = request.Settings{} })
		p.end = lead(p.Controller, 3)
		pass(time.Hour)
		if s := p.Status(); s.Known || !p.Paused() {
			t.Errorf("%+v: it goes on without knowing what is set", s)
		}
		d.set(func() { d.away = nil })
		pass(2 * time.Second)
		if p.Paused() || !p.brake.free.Load() || !p.Status().UnreadSince.IsZero() {
			t.Error("it does not go on")
		}
		p.end()
	})
}

// TestDies: a process dies after it has set something, and before it has answered. The next one
// answers, and a former leader changes nothing.
func TestDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.mute = errors.New("died")
		p := newDesked(d, 4)
		d.ask(request.Pause, `{}`)
		pass(2 * listEvery)
		if d.settings.Paused == nil || d.states() != "asked" {
			t.Fatalf("%+v %s", d.settings, d.states())
		}
		since := d.settings.Paused.Since
		p.end()
		d.set(func() { d.mute = nil })
		next := newDesked(d, 5)
		pass(2 * time.Second)
		if !next.Paused() || d.states() != "done" || d.records[0].Outcome != "paused; the oplog is applied up to "+oplog.NewOpTime(7, 1, 1).String() || !d.settings.Paused.Since.Equal(since) {
			t.Errorf("%+v %+v", d.settings.Paused, d.records)
		}
		d.ask(request.LogLevel, `{"level": "info"}`)
		pass(2 * listEvery)
		next.end()
		d.ask(request.LogLevel, `{"level": "debug"}`)
		former := newDesked(d, 4)
		pass(2 * listEvery)
		if d.states() != "done done asked" || d.settings.Level != "info" {
			t.Errorf("a former leader has answered: %s", d.states())
		}
		former.end()
	})
}

// TestActs: requests are acted on in order, each has an outcome.
func TestActs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p := newDesked(d, 1)
		h := p.Brake().For(t.Context())
		for _, r := range []struct {
			kind       request.Kind
			args, want string
		}{
			{request.Resume, `{}`, "done it was not paused"},
			{request.Throttle, `{"adaptive": true}`, "refused adaptive works below a limit: set a limit of applying as well"},
			{request.Throttle, `{"copyOpsPerSecond": 9, "adaptive": false}`, "done applies without a limit; copies at most 9 operations per second and bytes as it was started with"},
			{request.Throttle, `{"default": true, "applyBytesPerSecond": 3}`, "done applies operations without a limit and at most 3 bytes per second; copies with the limits that it was started with"},
			{"teleport", `{}`, `refused not a valid request: this release knows no kind "teleport", only pause, resume, throttle, resync, logLevel, cut, repair, verify`},
			{request.Throttle, `{"speed": 1}`, `refused not a valid request: throttle: args: json: unknown field "speed"`},
			{request.LogLevel, `{"level": "warn"}`, "done logs from level warn on"},
			{request.Again, `{"namespace": "d.c"}`, "working asked for"},
			{request.Pause, `{}`, "working nothing new is applied; operations in flight are being completed"},
		} {
			d.ask(r.kind, r.args)
			pass(listEvery)
			last := &d.records[len(d.records)-1]
			if got := last.State + " " + last.Outcome; got != r.want && (r.kind != request.Again || last.State != request.Working) {
				t.Errorf("%s %s: %s, want %s", r.kind, r.args, got, r.want)
			}
		}
		if p.level != "warn" {
			t.Errorf("level %q", p.level)
		}
		d.ask(request.Resume, `{}`)
		pass(2 * time.Second)
		if got := d.records[8].Outcome; got != "it was resumed before everything in flight was finished" {
			t.Error(got)
		}
		d.set(func() { d.all.Resync[0].State, d.all.Resync[0].Why = request.Failed, "gone" })
		pass(2 * time.Second)
		if got := d.records[7]; got.State != request.Failed || got.Outcome != "d.c could not be copied: gone" {
			t.Errorf("%+v", got)
		}
		h.Release()
		p.end()
		if d.unseen {
			t.Error("the history was cut after a request was answered, before that could be read")
		}
	})
}

// TestAdaptive: the limits shrink while the target is under pressure, to a sixteenth of them at
// the least, and that is explained.
func TestAdaptive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p := newDesked(d, 1)
		d.ask(request.Throttle, `{"applyOpsPerSecond": 1600, "adaptive": true}`)
		pass(5 * time.Minute)
		if got := p.brake.ops.perSecond; got != 100 {
			t.Errorf("%v operations per second", got)
		}
		if s := p.Status(); s.Factor != 1.0/16 || !strings.Contains(s.Why, "flow control") {
			t.Errorf("%+v", s)
		}
		h := p.Brake().For(t.Context())
		h.Took(time.Second, 5, func() int64 { return 5 })
		h.Release()
		d.ask(request.Throttle, `{"adaptive": false}`)
		pass(2 * listEvery)
		if got := p.brake.ops.perSecond; got != 1600 || p.Status().Factor != 1 {
			t.Errorf("%v operations per second", got)
		}
		d.ask(request.Throttle, `{"applyOpsPerSecond": 2, "adaptive": true}`)
		pass(2 * listEvery)
		d.ask(request.Throttle, `{"applyOpsPerSecond": null}`)
		pass(2 * listEvery)
		if d.settings.Throttle.Adaptive || !p.brake.free.Load() {
			t.Errorf("%+v", d.settings.Throttle)
		}
		p.end()
	})
}

// TestIdle: while nothing is asked, one document is read each second, and no more.
func TestIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		p := newDesked(d, 1)
		pass(10 * listEvery)
		if d.lists > 11 {
			t.Errorf("the records were read %d times", d.lists)
		}
		p.end()
	})
}

// hung is a lease whose transactions wait until they are told to end.
type hung struct {
	term
	began chan struct{}
	ended atomic.Bool
}

// slowDesk answers under a hung lease.
type slowDesk struct {
	*desk
	hung *hung
}

func (d slowDesk) Answered(ctx context.Context, by request.Leader, id, state, outcome string) error {
	if by != request.Leader(d.hung) {
		return d.desk.Answered(ctx, by, id, state, outcome)
	}
	close(d.hung.began)
	<-ctx.Done()
	time.Sleep(time.Second) // a transaction is aborted
	d.hung.ended.Store(true)
	return context.Cause(ctx)
}

// TestLeads: before a process acquires its lease again, a write in flight under the old one is
// cancelled, which is not reported; it is repeated under the new one.
func TestLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, h := newDesk(), &hung{term: 1, began: make(chan struct{})}
		c := New(Config{Requests: slowDesk{d, h}, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }})
		d.ask(request.Resume, `{}`)
		ctx, stop := context.WithCancelCause(context.Background())
		c.Begin()
		c.Leads(h)
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		<-h.began
		began := time.Now()
		c.Leads(nil)
		if took := time.Since(began); !h.ended.Load() || took != time.Second {
			t.Errorf("it returned after %s, the write has ended: %t", took, h.ended.Load())
		}
		pass(lookWithin)
		if s := c.Status(); !s.UnreadSince.IsZero() || d.states() != "asked" {
			t.Errorf("%s, %+v", d.states(), s)
		}
		c.Leads(term(2))
		pass(2 * lookEvery)
		if d.states() != "done" {
			t.Error(d.states())
		}
		stop(nil)
		<-done
	})
}

// TestTellsPause: a process says that the link is paused, also if it was so before it began to
// lead, once; and that it is resumed.
func TestTellsPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.settings.Paused = &request.Paused{Request: "x", By: "me", Why: "disks"}
		var said []string
		c := New(Config{Requests: d, Target: d, Applied: func() oplog.OpTime { return oplog.OpTime{} }, Observer: func(e event.Event) {
			said = append(said, e.Level().String()+" "+e.Message())
		}})
		end := lead(c, 1)
		pass(time.Minute)
		d.set(func() { d.settings.Paused = nil })
		pass(time.Minute)
		end()
		d.set(func() { d.settings.Paused = &request.Paused{Request: "y"} })
		for by := range term(2) { // the second time as before
			end = lead(c, 2+by)
			pass(time.Minute)
			end()
		}
		const paused = "WARN the link is paused: nothing is applied before it is resumed"
		if !slices.Equal(said, []string{paused, "INFO the link is resumed", paused, paused}) {
			t.Errorf("%q", said)
		}
	})
}
