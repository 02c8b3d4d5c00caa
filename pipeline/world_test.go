package pipeline_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

// patience is how long a scenario waits without any progress of a link for what it
// expects, longest how long it waits at all.
const (
	patience = 3 * time.Minute
	longest  = 10 * time.Minute
)

// cluster is an embedded set with a connection to it.
type cluster struct {
	*mongosim.Set
	conn *driver.Set
	// prepared are the commands that commit prepared transactions, by name.
	prepared map[string]bson.D
}

func startCluster(t *testing.T, opts mongosim.Options) *cluster {
	t.Helper()
	set := mongosim.StartTest(t, opts)
	return &cluster{Set: set, conn: connect(t, set, ourselves)}
}

// ourselves is the application name of the test's own commands, to which moods do not
// apply; theProgram is that of the program.
const ourselves, theProgram = "test", ""

func connect(t *testing.T, set *mongosim.Set, app string) *driver.Set {
	t.Helper()
	// Members may have names that do not resolve.
	names := map[string]string{}
	for _, m := range set.Members() {
		names[m.Host()] = m.Address()
	}
	return open(t, driver.Config{URI: set.URI(), AppName: app, HostMap: names, SelectionTimeout: 5 * time.Second})
}

func open(t *testing.T, cfg driver.Config) *driver.Set {
	t.Helper()
	return client.Open(t, cfg)
}

// world is what a scenario acts on.
type world struct {
	t              *testing.T
	source, target *cluster
	links          map[string]*link
	load           *load
	// connectSource and connectTarget, if not nil, connect links in place of connect.
	connectSource, connectTarget func() *driver.Set
	// naming guards names: the letters of members, in the order in which they were
	// chosen.
	naming sync.Mutex
	names  map[string]string
	// isolated is one more than the number of the member that was isolated last.
	isolated int
	// refused is how many commands the target's fail points had refused, see refusing.
	refused int64
	// shown is the state of each link that was printed last.
	shown map[string]string
	// marks are times to start at, by name.
	marks map[string]bson.Timestamp

	// registry, if set, receives the metrics of links.
	registry *prometheus.Registry
	// observe, if set, is told the events of links too.
	observe event.Observer
	// asTarget, if set, wraps the target of a link that is started.
	asTarget func(pipeline.Cluster) pipeline.Cluster
	// foreign means that something else writes to the target.
	foreign atomic.Bool
	// spools are the folders of spools, by name.
	spools map[string]string
	// disk is what links write their spools to.
	disk frozenDisk

	mu      sync.Mutex // guards what follows
	events  []told
	changed chan struct{} // closed with the next event
	// held, if not empty, is the beginning of the line of an event that blocks its link
	// until free is closed.
	held string
	free chan struct{}
	// kept is the free that an event waits for, or has waited for.
	kept chan struct{}
}

// told is an event of a link.
type told struct {
	link  string
	event event.Event
	at    time.Time
}

// link is a pipeline that was started.
type link struct {
	name        string
	linkName    string // in the metadata
	p           *pipeline.Pipeline
	scope       *scope.Scope
	copies      bool // it begins with a copy, or continues one
	stop, drain context.CancelCauseFunc
	// done is closed once err is what Run returned.
	done chan struct{}
	err  error

	// reached is the newest checkpoint, guarded by world.mu.
	reached oplog.OpTime
}

// load is a running workload.
type load struct {
	*traffic.Traffic
	stop context.CancelCauseFunc
	// done is closed once err is what Run returned.
	done chan struct{}
	err  error
}

func newWorld(t *testing.T, source, target mongosim.Options) *world {
	t.Helper()
	w := &world{t: t, links: map[string]*link{}, names: map[string]string{}, shown: map[string]string{}, changed: make(chan struct{})}
	var g sync.WaitGroup
	g.Go(func() { w.source = startCluster(t, source) })
	g.Go(func() { w.target = startCluster(t, target) })
	g.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Cleanup(func() {
		if w.load != nil {
			_ = w.endLoad() // its context has ended
		}
		w.release()
		for _, l := range w.links {
			l.stop(failure.ErrStopped)
			<-l.done
		}
	})
	return w
}

// start runs a pipeline with a connection of its own to each set, as another
// process would have.
func (w *world) start(name string, cfg pipeline.Config, sc scope.Config) error {
	s, err := scope.New(sc)
	if err != nil {
		return err
	}
	l := &link{name: name, linkName: cmp.Or(cfg.Link, "mirror"), scope: s, copies: cfg.Copy.SpoolDir != "", done: make(chan struct{})}
	cfg.Scope = s
	if cfg.Guard == "" {
		cfg.Guard = guard.Alarm // No act may be taken for a foreign write.
	}
	cfg.Observer = func(e event.Event) { w.tell(l, e) }
	if cfg.Link == "" {
		cfg.Link = "mirror"
	}
	source, target := connect(w.t, w.source.Set, theProgram), connect(w.t, w.target.Set, theProgram)
	if w.connectSource != nil {
		source = w.connectSource()
	}
	if w.connectTarget != nil {
		target = w.connectTarget()
	}
	var to pipeline.Cluster = target
	if w.asTarget != nil {
		to = w.asTarget(to)
	}
	if l.p, err = pipeline.New(cfg, source, to); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(w.t.Context())
	soft, drain := context.WithCancelCause(context.Background())
	l.stop, l.drain = stop, drain
	if old := w.links[name]; old != nil {
		<-old.done
	}
	w.links[name] = l
	go func() {
		defer close(l.done)
		l.err = l.p.Run(ctx, soft)
		w.tell(l, ended{l.err})
	}()
	return nil
}

// ended is the result of a run.
type ended struct{ err error }

func (w *world) tell(l *link, e event.Event) {
	if w.observe != nil {
		w.observe(e)
	}
	defer w.keep(l, e)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, told{l.name, e, time.Now()})
	switch e := e.(type) {
	case syncsource.SourceChosen:
		w.name(e.To)
	case guard.Found:
		if !w.foreign.Load() {
			w.t.Errorf("link %s took a write for a foreign one: %v", l.name, e.LogValue())
		}
	case checkpoint.Acquired:
		l.reached = e.Applied
	case checkpoint.Advanced:
		l.reached = e.Applied
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits for a condition as long as the links get on.
func (w *world) until(what string, met func() bool) error {
	for start := time.Now(); ; {
		before := w.done()
		err := w.within(patience, what, met)
		if err == nil || w.done() == before || time.Since(start) > longest {
			return err
		}
	}
}

// done returns the number of operations applied and documents copied by all links.
func (w *world) done() (n int64) {
	for _, l := range w.links {
		s := l.p.Snapshot()
		n += s.Log.Ops
		if s.Copy != nil && s.Copy.Progress != nil {
			n += s.Copy.Progress.Docs
		}
	}
	return n
}

// within waits for at most d for a condition, which is checked with each event and
// periodically.
func (w *world) within(d time.Duration, what string, met func() bool) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), d)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		w.mu.Lock()
		changed := w.changed
		w.mu.Unlock()
		if met() {
			return nil
		}
		select {
		case <-changed:
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		}
	}
}

// untilOf waits for a condition that only a running link can satisfy.
func (w *world) untilOf(l *link, what string, met func() bool) error {
	over := false
	err := w.until(what, func() bool {
		select {
		case <-l.done:
			over = true
		default:
		}
		return met() || over
	})
	if err == nil && over && !met() {
		err = fmt.Errorf("waited for %s, but the link ended: %w", what, l.err)
	}
	return err
}

// newest returns the newest entry of the source, null while that has no primary.
func (w *world) newest() oplog.OpTime {
	var newest oplog.OpTime
	if m := w.source.Primary(); m != nil {
		if v, ok := m.Status(); ok {
			newest = v.LastApplied
		}
	}
	return newest
}

// known is newest, once the source has a primary.
func (w *world) known(l *link) (newest oplog.OpTime, err error) {
	err = w.untilOf(l, "the source's newest entry", func() bool {
		newest = w.newest()
		return !newest.IsNull()
	})
	return newest, err
}

// caughtUp waits until a checkpoint covers the source's present newest entry.
func (w *world) caughtUp(l *link) error {
	want, err := w.known(l)
	if err != nil {
		return err
	}
	return w.untilOf(l, "a checkpoint at "+want.String(), func() bool {
		if c := l.p.Snapshot().Copy; l.copies && (c == nil || c.Phase != checkpoint.Copied) {
			return false // no new checkpoint, or one of a void copy
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return !l.reached.Before(want)
	})
}

// equal compares the sets while neither is written to. It waits for a link that has
// found that it has to copy a collection again.
func (w *world) equal(l *link) (string, error) {
	err := w.until("nothing to be left out", func() bool {
		select {
		case <-l.done:
			return true
		default:
		}
		return !slices.ContainsFunc(l.p.Snapshot().LeftOut, func(out checkpoint.LeftOut) bool { return out.Failed == "" })
	})
	if err != nil {
		return "", err
	}
	var report compare.Report
	var failed error
	// Under load a set may elect another primary meanwhile.
	err = w.until("the sets to be read", func() bool {
		report, failed = w.compared(l)
		return failed == nil || !passing(failed)
	})
	switch {
	case failed != nil || err != nil:
		return "", errors.Join(err, failed)
	case report.Equal():
		return "equal", nil
	}
	return report.String(), nil
}

// becomesEqual waits until l has caught up, and compares the sets.
func (w *world) becomesEqual(l *link) {
	w.t.Helper()
	if err := w.caughtUp(l); err != nil {
		w.fail("fault", "", err)
	}
	if got, err := w.equal(l); err != nil || got != "equal" {
		w.t.Error(got, err)
	}
}

// drainsEqual is becomesEqual of a link, which then drains.
func (w *world) drainsEqual(name string) {
	w.t.Helper()
	l := w.links[name]
	w.becomesEqual(l)
	w.play("drain " + name)
	if l.err != nil {
		w.t.Error(l.err)
	}
}

// compared compares the sets once.
func (w *world) compared(l *link) (compare.Report, error) {
	deferred, err := ddl.ReadDeferred(w.t.Context(), w.target.conn, "replicator", l.linkName)
	if err != nil {
		return compare.Report{}, err
	}
	return compare.Compare(w.t.Context(), compare.Cluster(w.source.conn), compare.Cluster(w.target.conn),
		compare.Options{Map: l.scope.Target, Deferred: deferred})
}

func (w *world) beginLoad(cfg traffic.Config) error {
	cfg.Cluster = w.source.conn
	clients, err := traffic.New(cfg)
	if err != nil {
		return err
	}
	soft, stop := context.WithCancelCause(w.t.Context())
	l := &load{Traffic: clients, stop: stop, done: make(chan struct{})}
	w.load = l
	go func() {
		defer close(l.done)
		l.err = l.Run(w.t.Context(), soft)
	}()
	return nil
}

// endLoad lets every client finish its present operation.
func (w *world) endLoad() error {
	w.load.stop(nil)
	<-w.load.done
	err := w.load.err
	w.load = nil
	return err
}

// memberOf returns the number of the member that a word stands for.
func (w *world) memberOf(c *cluster, word string) (int, error) {
	var host string
	switch {
	case word == "current":
		s := w.links["a"].p.Snapshot()
		if host = s.SourceHost; s.Copy != nil && s.Copy.Phase != checkpoint.Copied {
			host = s.Copy.Host
		}
		if host == "" {
			return 0, errors.New("nobody is read from")
		}
	case len(word) == 1 && word >= "A" && word <= "G":
		w.naming.Lock()
		defer w.naming.Unlock()
		for h, name := range w.names {
			if name == word {
				host = h
			}
		}
	case word == "primary":
		var p *mongosim.Member
		if err := w.until("a primary", func() bool { p = c.Primary(); return p != nil }); err != nil {
			return 0, errors.Join(mongosim.ErrNoPrimary, err)
		}
		return p.ID(), nil
	case word == "down":
		for _, m := range c.Members() {
			if _, up := m.Status(); !up {
				return m.ID(), nil
			}
		}
		return 0, errors.New("nobody is down")
	case word == "isolated":
		if w.isolated == 0 {
			return 0, errors.New("nobody was isolated")
		}
		return w.isolated - 1, nil
	case word == "secondary":
		p := c.Primary()
		for _, m := range c.Members() {
			if v, ok := m.Status(); ok && m != p && v.State == oplog.MemberSecondary {
				return m.ID(), nil
			}
		}
		return 0, errors.New("no secondary")
	}
	for _, m := range c.Members() {
		if m.Host() == host {
			return m.ID(), nil
		}
	}
	return 0, fmt.Errorf("no member %q", word)
}
