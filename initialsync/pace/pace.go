package pace

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
)

// Config says how fast a copy may be.
type Config struct {
	// BytesPerSecond and OpsPerSecond are limits, 0 for none. SetLimits changes
	// them.
	BytesPerSecond, OpsPerSecond int64
	// Source and Target are asked (serverStatus) for signs of pressure. Nil is not
	// asked.
	Source, Target mongo.Caller
	// Every is how often they are asked. Zero means 2 s.
	Every    time.Duration
	Observer event.Observer
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	if c.Every == 0 {
		c.Every = 2 * time.Second
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.BytesPerSecond < 0 {
		faults = append(faults, fmt.Errorf("pace: %d bytes per second: want 0 or more", c.BytesPerSecond))
	}
	if c.OpsPerSecond < 0 {
		faults = append(faults, fmt.Errorf("pace: %d operations per second: want 0 or more", c.OpsPerSecond))
	}
	if c.Every < 0 {
		faults = append(faults, fmt.Errorf("pace: ask every %s: want 0 or more", c.Every))
	}
	return errors.Join(faults...)
}

const (
	// leastFactor is what pressure slows down to at most, step is by how much the
	// factor rises from one sample without pressure to the next.
	leastFactor = 1.0 / 16
	step        = 1.0 / 16
)

// Pacer implements clone.Pacer. It is safe for concurrent use.
type Pacer struct {
	cfg     Config
	metrics *metrics

	mu     sync.Mutex // guards the rest
	limits *limits    // is replaced, never changed
	// limited and paced are closed, and made anew, when limits or factor change.
	limited, paced chan struct{}
	// factor is the part of its speed that the copy has, why says what took the
	// rest, told is the least factor that was told of since it was 1, at toldAt.
	factor, told float64
	toldAt       time.Time
	why          sign
	sides        map[clone.Side]*side
}

// side is what is known of one cluster.
type side struct {
	name   clone.Side
	caller mongo.Caller
	// busy is the account of the work on it that is not paused for yet.
	busy    time.Duration
	latency latency
	// silent counts the questions without an answer, in a row; refused tells that
	// it was told that we may not ask, and is not asked before again. Both belong
	// to Run.
	silent  int
	refused bool
	again   time.Time
}

var _ clone.Pacer = (*Pacer)(nil)

// New checks cfg. It does no I/O.
func New(cfg Config) (*Pacer, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p := &Pacer{
		cfg: cfg, metrics: newMetrics(cfg.Registry), factor: 1, told: 1,
		limited: make(chan struct{}), paced: make(chan struct{}),
		sides: map[clone.Side]*side{
			clone.Source: {name: clone.Source, caller: cfg.Source},
			clone.Target: {name: clone.Target, caller: cfg.Target},
		},
	}
	p.limits = newLimits(cfg.BytesPerSecond, cfg.OpsPerSecond)
	p.metrics.limits(cfg.BytesPerSecond, cfg.OpsPerSecond)
	p.metrics.factor.Set(1)
	return p, nil
}

// SetLimits changes the limits, at once; 0 is none, and so is a negative one.
func (p *Pacer) SetLimits(bytesPerSecond, opsPerSecond int64) {
	bytesPerSecond, opsPerSecond = max(0, bytesPerSecond), max(0, opsPerSecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	// The same limits again must not grant a new quarter of a second.
	if p.limits.bytesPerSecond == bytesPerSecond && p.limits.opsPerSecond == opsPerSecond {
		return
	}
	p.limits = newLimits(bytesPerSecond, opsPerSecond)
	p.metrics.limits(bytesPerSecond, opsPerSecond)
	close(p.limited)
	p.limited = make(chan struct{})
}

// Status is what slows the copy down.
type Status struct {
	BytesPerSecond, OpsPerSecond int64
	// Factor is the part of its speed that the copy has at present, 1 for all of
	// it; Side and Why say why it is less.
	Factor float64
	Side   clone.Side
	Why    string
}

// Status returns the state of the moment.
func (p *Pacer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{BytesPerSecond: p.limits.bytesPerSecond, OpsPerSecond: p.limits.opsPerSecond, Factor: p.factor}
	if p.factor < 1 {
		s.Side, s.Why = p.why.side, p.why.text
	}
	return s
}
