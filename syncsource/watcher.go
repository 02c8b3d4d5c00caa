package syncsource

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Dialer gives access to single hosts: *driver.Set.
type Dialer interface {
	// Member returns a Caller that runs commands on one host, whatever its state. It does
	// no I/O, and returns the same connections for the same host each time; the Dialer owns
	// them.
	Member(host string) mongo.Caller
}

// WatcherConfig configures a Watcher.
type WatcherConfig struct {
	// Seeds are the hosts to start with. The set's own list replaces them. The first one to
	// answer says which set it is; hosts of others are refused.
	Seeds []string
	// Direct watches only the seeds, under these names, and ignores the set's own
	// list.
	Direct bool
	// HeartbeatInterval is the time between two heartbeats to a member; 0 means 2 s.
	// While there is no source it is a quarter of that.
	HeartbeatInterval time.Duration
	// HeartbeatTimeout limits a heartbeat, its three tries included; 0 means 10 s. A
	// member that did not answer the previous one gets one try.
	HeartbeatTimeout time.Duration

	Observer event.Observer
	Registry prometheus.Registerer

	// configInterval is the time between two reads of the configuration, 30 s but in
	// tests. A configuration that members announce is read at once.
	configInterval time.Duration
}

// heartbeatTries is how often a member that was up is asked before it counts as
// down.
const heartbeatTries = 3

func (c *WatcherConfig) setDefaults() {
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = 2 * time.Second
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = 10 * time.Second
	}
	if c.configInterval == 0 {
		c.configInterval = 30 * time.Second
	}
}

func (c *WatcherConfig) validate() error {
	var faults []error
	if len(c.Seeds) == 0 {
		faults = append(faults, errors.New("syncsource: no seeds"))
	}
	seen := map[string]bool{}
	for _, host := range c.Seeds {
		if host == "" || seen[host] {
			faults = append(faults, fmt.Errorf("syncsource: seed %q is empty or given twice", host))
		}
		seen[host] = true
	}
	if c.HeartbeatInterval < 4*time.Millisecond {
		faults = append(faults, fmt.Errorf("syncsource: heartbeat interval %s is below 4 ms", c.HeartbeatInterval))
	}
	if c.HeartbeatTimeout < time.Millisecond {
		faults = append(faults, fmt.Errorf("syncsource: heartbeat timeout %s is below a millisecond", c.HeartbeatTimeout))
	}
	return errors.Join(faults...)
}

// Watcher keeps a View of a set up to date.
type Watcher struct {
	cfg     WatcherConfig
	dial    Dialer
	metrics *metrics
	// clock is that of the set's primary, or of the last one.
	clock atomic.Pointer[Clock]

	// mu guards the fields below.
	mu      sync.Mutex
	view    View
	changed chan struct{} // closed when view is replaced
	seeking bool
	wake    chan struct{} // closed to end the pauses of all hosts' loops
}

// NewWatcher checks cfg. It does no I/O.
func NewWatcher(cfg WatcherConfig, dial Dialer) (*Watcher, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	w := &Watcher{
		cfg: cfg, dial: dial, metrics: newMetrics(cfg.Registry),
		changed: make(chan struct{}), wake: make(chan struct{}),
	}
	w.view = newWatch(w).look()
	return w, nil
}

// View returns the current view.
func (w *Watcher) View() View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.view
}

// Changed returns a channel that is closed when the View is replaced. Take the
// channel first, then the View.
func (w *Watcher) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// Ready blocks until members have answered often enough for a choice, which takes a
// few round trips after Run started. It returns the cause of ctx if ctx is done
// first.
func (w *Watcher) Ready(ctx context.Context) error {
	for {
		changed := w.Changed()
		if v := w.View(); v.comparable() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Seek sets whether a source is being looked for. While it is, members are asked
// more often, starting at once.
func (w *Watcher) Seek(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if on && !w.seeking {
		close(w.wake)
		w.wake = make(chan struct{})
	}
	w.seeking = on
}

// pause returns how long to wait before the next heartbeat, and a channel that ends
// the wait early.
func (w *Watcher) pause() (time.Duration, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seeking {
		return w.cfg.HeartbeatInterval / 4, w.wake
	}
	return w.cfg.HeartbeatInterval, w.wake
}

func (w *Watcher) publish(v View) {
	if m, ok := v.primary(); ok && !m.Clock.At.IsZero() {
		w.clock.Store(&m.Clock)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.view = v
	close(w.changed)
	w.changed = make(chan struct{})
}

// Run watches the set until ctx is done, and returns the cause.
func (w *Watcher) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	answers := make(chan answer)
	configs := make(chan configAnswer)
	s := newWatch(w)
	stops := map[string]context.CancelCauseFunc{}
	for {
		// One loop per host to ask.
		asked := s.hosts()
		for host, stop := range stops {
			if !asked[host] {
				stop(errNotAsked)
				delete(stops, host)
				s.forget(host)
			}
		}
		for host := range asked {
			if stops[host] == nil {
				hostCtx, stop := context.WithCancelCause(ctx)
				stops[host] = stop
				group.Go(func() { w.askLoop(hostCtx, host, answers) })
			}
		}
		if host := s.configDue(time.Now()); host != "" {
			group.Go(func() { w.askConfig(ctx, host, configs) })
		}
		v := s.look()
		w.publish(v)
		select {
		case <-s.settling(&v):
		case a := <-answers:
			if stops[a.host] != nil {
				s.heard(a)
			}
		case a := <-configs:
			s.configured(a)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

var errNotAsked = errors.New("the host is no longer polled")

// answer is the result of asking a host.
type answer struct {
	host  string
	hello *hello
	err   error
	// ping is how long it took. It is valid only if timed is true: the first answer
	// includes the time to connect.
	ping  time.Duration
	timed bool
	at    time.Time
}

// askLoop asks one host repeatedly.
func (w *Watcher) askLoop(ctx context.Context, host string, out chan<- answer) {
	connected := false
	for {
		// A host that was not up before gets one try.
		tries := 1
		if connected {
			tries = heartbeatTries
		}
		a := w.ask(ctx, host, tries)
		// A cancelled call says nothing about the host.
		if ctx.Err() != nil {
			return
		}
		a.timed = connected && a.err == nil
		again := !connected && a.err == nil
		connected = a.err == nil
		select {
		case out <- a:
		case <-ctx.Done():
			return
		}
		// After the first answer, ask again at once to measure the ping.
		if again {
			continue
		}
		wait, wake := w.pause()
		select {
		case <-time.After(wait):
		case <-wake:
		case <-ctx.Done():
			return
		}
	}
}

// ask asks a host, up to tries times within the timeout.
func (w *Watcher) ask(ctx context.Context, host string, tries int) answer {
	a := answer{host: host}
	late := fmt.Errorf("no answer within %s", inSeconds(w.cfg.HeartbeatTimeout))
	ctx, cancel := context.WithTimeoutCause(ctx, w.cfg.HeartbeatTimeout, late)
	defer cancel()
	for range tries {
		start := time.Now()
		before := a.err
		a.hello, a.err = w.hello(ctx, host)
		if before != nil && errors.Is(a.err, late) {
			// An earlier error says more than the timeout.
			a.err = before
		}
		a.at = time.Now()
		a.ping = a.at.Sub(start)
		_, refused := errors.AsType[*servererr.Error](a.err)
		if a.err == nil || refused || ctx.Err() != nil {
			break
		}
	}
	return a
}

func (w *Watcher) hello(ctx context.Context, host string) (*hello, error) {
	reply, err := replset.Hello(ctx, w.dial.Member(host))
	if err != nil {
		return nil, err
	}
	return parseHello(reply)
}

// configAnswer is the result of asking for the configuration.
type configAnswer struct {
	host   string
	config *setConfig
	err    error
	// silent: there was no answer within the time limit.
	silent bool
}

func (w *Watcher) askConfig(ctx context.Context, host string, out chan<- configAnswer) {
	a := configAnswer{host: host}
	late := fmt.Errorf("no answer within %s", inSeconds(w.cfg.HeartbeatTimeout))
	asking, cancel := context.WithTimeoutCause(ctx, w.cfg.HeartbeatTimeout, late)
	defer cancel()
	var reply bson.Raw
	if reply, a.err = w.dial.Member(host).Call(asking, mongo.Command{DB: "admin", Body: configCommand()}); a.err == nil {
		a.config, a.err = parseConfig(reply)
	} else {
		a.silent = asking.Err() != nil
	}
	select {
	case out <- a:
	case <-ctx.Done():
	}
}

// Identify asks the set which one it is: a member of the current view, or if none of them
// answers, its primary.
func (w *Watcher) Identify(ctx context.Context, set interface {
	Dialer
	mongo.Caller
},
) (replset.Identity, error) {
	view := w.View()
	for i := range view.Members {
		m := &view.Members[i]
		if !m.Up() || m.Arbiter || m.Stranger {
			continue
		}
		id, err := replset.Identify(ctx, set.Member(m.Host))
		if err == nil || ctx.Err() != nil {
			return id, err
		}
	}
	return replset.Identify(ctx, set)
}

// refusesLogin begins the faults, and the reasons of denials, of members that refuse the login.
const refusesLogin = "refuses the login: "

// faultOf describes an error of asking a member, as the rest of a sentence that
// starts with the member's name.
func faultOf(err error) string {
	if refused, ok := errors.AsType[*servererr.Error](err); ok {
		return "refuses to answer: " + refused.Error()
	}
	if lost, ok := errors.AsType[*mongo.LostError](err); ok {
		if lost.Refused {
			return refusesLogin + lost.Err.Error()
		}
		return "cannot be reached: " + lost.Err.Error()
	}
	return "fails its heartbeat: " + strings.TrimPrefix(err.Error(), "syncsource: ")
}
