package fetcher_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// stage is a fetch stage on an embedded set.
type stage struct {
	t   *testing.T
	ctx context.Context
	set *mongosim.Set
	cfg fetcher.Config
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageOn(t, nil)
}

// newStageOn returns a stage whose watcher and reader ask members through dial.
func newStageOn(t *testing.T, dial func(syncsource.Dialer) syncsource.Dialer) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	// The only elections are those of the test.
	s := &stage{t: t, ctx: ctx, set: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 4, ElectionTimeout: 10 * time.Second})}
	s.must(s.set.AwaitSynced(ctx))
	opts, err := driver.Parse(driver.Config{URI: s.set.URI(), AppName: mongosim.Stage})
	s.must(err)
	source, err := driver.Open(ctx, opts)
	s.must(err)
	t.Cleanup(source.Close)
	if dial == nil {
		dial = func(d syncsource.Dialer) syncsource.Dialer { return d }
	}
	members := dial(source)
	watcher, err := syncsource.NewWatcher(syncsource.WatcherConfig{
		Seeds: source.Hosts(), HeartbeatInterval: 40 * time.Millisecond, HeartbeatTimeout: 10 * time.Minute,
	}, members)
	s.must(err)
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { _ = watcher.Run(running) })
	t.Cleanup(func() { stop(errors.New("the test has ended")); group.Wait() })
	s.must(watcher.Ready(ctx))
	resolver, err := syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{AcceptEqual: true}}, watcher, members)
	s.must(err)
	v, _ := s.set.Primary().Status()
	s.cfg = fetcher.Config{From: v.LastApplied, Resolver: resolver, Watcher: watcher, MirrorMember: -1}
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// insert writes a document that a majority has.
func (s *stage) insert(id int) {
	s.t.Helper()
	cmd, err := bson.Marshal(bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
		{Key: "$db", Value: "app"},
	})
	s.must(err)
	_, err = s.set.Primary().Call(s.ctx, cmd)
	s.must(err)
}

// run starts the stage. The inserts that it sends arrive at ids, and Run's error at done.
func (s *stage) run(ctx context.Context) (f *fetcher.Fetcher, ids <-chan string, done <-chan error) {
	s.t.Helper()
	f, err := fetcher.New(s.cfg)
	s.must(err)
	ctx, cancel := context.WithCancelCause(ctx)
	out, read, ended := make(chan oplog.Reply), make(chan string, 100), make(chan error, 1)
	var group sync.WaitGroup
	group.Go(func() { ended <- f.Run(ctx, out) })
	group.Go(func() {
		defer close(read)
		for r := range out {
			for i := range r.Entries {
				if e := &r.Entries[i]; e.NS == "app.c" && e.Kind.IsCRUD() {
					read <- strconv.Itoa(int(e.Raw.Lookup("o", "_id").Int32()))
				}
			}
		}
	})
	s.t.Cleanup(func() { cancel(errors.New("the test has ended")); group.Wait() })
	return f, read, ended
}

// TestRun: the stage reads one member after the other, each entry once, shows which one,
// and returns the cause of its context.
func TestRun(t *testing.T) {
	s := newStage(t)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(s.ctx)
	f, ids, done := s.run(ctx)
	if st := f.Status(); st.Host != "" && st.Replies == 0 {
		t.Errorf("before the first reply: %+v", st)
	}
	for i := range 30 {
		s.insert(i)
		if want, got := strconv.Itoa(i), <-ids; got != want {
			t.Fatalf("%s came, want %s", got, want)
		}
		st := f.Status()
		if st.Host == "" || st.Caller == nil || st.Metadata.Host != st.Host || st.HeardAt.IsZero() {
			t.Fatalf("while it reads: %+v", st)
		}
		if i%10 == 9 && i < 29 {
			// The member that is read goes away.
			for _, m := range s.set.Members() {
				if m.Host() == st.Host {
					primary := s.set.Primary()
					s.must(m.Stop(ctx))
					if m == primary {
						_, err := s.set.AwaitNewPrimary(ctx, m)
						s.must(err)
					}
					s.must(m.Start())
				}
			}
		}
	}
	cancel(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("it returned %v", err)
	}
	if _, open := <-ids; open {
		t.Error("out is open after Run")
	}
	if st := f.Status(); st.Host != "" || st.Caller != nil || st.Last.IsNull() {
		t.Errorf("after the end: %+v", st)
	}
}

// TestUntil: nothing after Until is sent, and then Run ends.
func TestUntil(t *testing.T) {
	s := newStage(t)
	for i := range 5 {
		s.insert(i)
	}
	v, _ := s.set.Primary().Status()
	s.cfg.Until = v.LastApplied
	s.insert(5)
	_, ids, done := s.run(s.ctx)
	n := 0
	for range ids {
		n++
	}
	if err := <-done; err != nil || n != 5 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// TestBlocked: while a reply is not received, the stage says so every second.
func TestBlocked(t *testing.T) {
	s := newStage(t)
	f, err := fetcher.New(s.cfg)
	s.must(err)
	ctx, cancel := context.WithCancelCause(s.ctx)
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx, make(chan oplog.Reply)) }()
	s.insert(1)
	for f.Status().Replies == 0 {
		<-f.Changed()
	}
	news := f.Changed()
	select {
	case <-news:
	case <-time.After(time.Minute):
		t.Error("it says nothing")
	}
	if st := f.Status(); st.Blocked.IsZero() || st.Blocked.Before(st.HeardAt) {
		t.Errorf("blocked since %s, heard at %s", st.Blocked, st.HeardAt)
	}
	enough := errors.New("enough")
	cancel(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("it returned %v", err)
	}
	if st := f.Status(); !st.Blocked.IsZero() {
		t.Errorf("it has ended, and is blocked since %s", st.Blocked)
	}
}

// TestForCopy: the oplog of a copy is read from any member. It ends with entries that the
// copy does not survive, and with ErrLogLost if no member has it, or can be asked, for as
// long as the copy waits; once the copy is complete, neither counts.
func TestForCopy(t *testing.T) {
	errUnfit := errors.New("unfit")
	for name, c := range map[string]struct {
		fit  error
		lost bool
		down bool
		want error
	}{
		"an entry":         {fit: errUnfit, want: errUnfit},
		"a log that began": {lost: true, want: fetcher.ErrLogLost},
		"no member":        {down: true, want: fetcher.ErrLogLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.cfg.Copy = &fetcher.Copy{Wait: time.Second, Check: func(context.Context, []oplog.Entry) error { return c.fit }}
			if c.lost {
				s.cfg.From = oplog.NewOpTime(1, 1, 1)
			}
			if c.down {
				for _, m := range s.set.Members() {
					if err := m.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, _, done := s.run(s.ctx)
			if err := <-done; !errors.Is(err, c.want) {
				t.Errorf("it returned %v", err)
			}
		})
	}
	t.Run("copied", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		var unfit atomic.Bool
		s.cfg.Copy = &fetcher.Copy{Check: func(context.Context, []oplog.Entry) error {
			if unfit.Load() {
				return errUnfit
			}
			return nil
		}}
		f, ids, done := s.run(s.ctx)
		f.Copied()
		unfit.Store(true)
		s.insert(1)
		if _, read := <-ids; !read {
			t.Errorf("it returned %v", <-done)
		}
	})
}

// TestStoppedInCheck: the end of a link while an entry is checked for its copy does not make the copy void.
func TestStoppedInCheck(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	checked := make(chan struct{})
	s.cfg.Copy = &fetcher.Copy{Check: func(ctx context.Context, _ []oplog.Entry) error {
		close(checked)
		<-ctx.Done()
		return fmt.Errorf("ask about an entry: %w", context.Cause(ctx))
	}}
	ctx, stop := context.WithCancelCause(s.ctx)
	_, _, done := s.run(ctx)
	s.insert(1)
	<-checked
	errStopped := errors.New("stopped")
	stop(errStopped)
	if err := <-done; err != errStopped { //nolint:errorlint // not what Check has made of it
		t.Errorf("it returned %v", err)
	}
}

// silent are members that tell the set's configuration only once told is closed.
type silent struct {
	syncsource.Dialer
	told <-chan struct{}
}

func (d silent) Member(host string) mongo.Caller { return silentMember{d.Dialer.Member(host), d.told} }

type silentMember struct {
	mongo.Caller
	told <-chan struct{}
}

func (m silentMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if simcaller.Name(cmd) == "replSetGetConfig" {
		select {
		case <-m.told:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return m.Caller.Call(ctx, cmd)
}

// TestHiddenMayHaveIt: as long as the set's configuration is not read, a hidden member may have what no other member
// has: nothing is final.
func TestHiddenMayHaveIt(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]func(last oplog.OpTime) oplog.OpTime{
		"too old":         func(oplog.OpTime) oplog.OpTime { return oplog.NewOpTime(1, 1, 1) },
		"another history": func(last oplog.OpTime) oplog.OpTime { return oplog.OpTime{TS: last.TS, Term: last.Term - 1} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := make(chan struct{})
			tell := sync.OnceFunc(func() { close(told) })
			s := newStageOn(t, func(d syncsource.Dialer) syncsource.Dialer { return silent{d, told} })
			t.Cleanup(tell)
			s.cfg.From = from(s.cfg.From)
			f, _, done := s.run(s.ctx)
			for {
				changed := f.Changed()
				if st := f.Status(); st.Stale {
					if !strings.Contains(st.Why, "configuration is not read yet") {
						t.Errorf("the status does not say what is waited for: %s", st.Why)
					}
					break
				}
				select {
				case err := <-done:
					t.Fatalf("before the configuration is known: %v", err)
				case <-changed:
				}
			}
			select {
			case err := <-done:
				t.Fatalf("before the configuration is known: %v", err)
			default:
			}
			if name == "another history" {
				return // members are asked again a minute later only
			}
			tell()
			err := <-done
			if _, stale := errors.AsType[*syncsource.TooStaleError](err); !stale {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}
