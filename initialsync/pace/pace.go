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
	// Source and Target are asked (serverStatus) for signs of pressure. Nil means not
	// to ask.
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
	// leastFactor is the minimum factor; step is its increase from one sample without
	// pressure to the next.
	leastFactor = 1.0 / 16
	step        = 1.0 / 16
)

// Pacer implements clone.Pacer. It is safe for concurrent use.
type Pacer struct {
	cfg     Config
	metrics *metrics

	mu     sync.Mutex // guards the rest
	limits *limits    // replaced, never changed
	// limited and paced are closed, and replaced, when limits or factor change.
	limited, paced chan struct{}
	// factor is the fraction of the full speed, why is the reason if it is below 1,
	// told is the least factor that was announced since it was 1, at toldAt.
	factor, told float64
	toldAt       time.Time
	why          sign
	sides        map[clone.Side]*side
}

// side is the state of one cluster.
type side struct {
	name   clone.Side
	caller mongo.Caller
	// busy is the account of work on it that no worker has paused for yet.
	busy    time.Duration
	latency latency
	// silent counts the consecutive requests without an answer; refused means that the
	// last request was refused, and the next one is not sent before again. Both belong
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

// SetLimits changes the limits at once; zero or less means none.
func (p *Pacer) SetLimits(bytesPerSecond, opsPerSecond int64) {
	bytesPerSecond, opsPerSecond = max(0, bytesPerSecond), max(0, opsPerSecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	// Setting the same limits again must not grant a new burst.
	if p.limits.bytesPerSecond == bytesPerSecond && p.limits.opsPerSecond == opsPerSecond {
		return
	}
	p.limits = newLimits(bytesPerSecond, opsPerSecond)
	p.metrics.limits(bytesPerSecond, opsPerSecond)
	close(p.limited)
	p.limited = make(chan struct{})
}

// Status is the state of the throttling.
type Status struct {
	BytesPerSecond, OpsPerSecond int64
	// Factor is the present fraction of the full speed; Side and Why say why it is
	// below 1.
	Factor float64
	Side   clone.Side
	Why    string
}

// Status returns the present state.
func (p *Pacer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{BytesPerSecond: p.limits.bytesPerSecond, OpsPerSecond: p.limits.opsPerSecond, Factor: p.factor}
	if p.factor < 1 {
		s.Side, s.Why = p.why.side, p.why.text
	}
	return s
}
