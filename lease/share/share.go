package share

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
)

// Why the context of a work ends, besides the loss of its lease.
var (
	// ErrMoved reports that the partition is assigned to another member, or was removed.
	ErrMoved = errors.New("the partition is assigned to this member no more")
	// ErrStopped reports that the member shuts down.
	ErrStopped = errors.New("the member shuts down")
	// ErrReplaced reports that another process has the member's name.
	ErrReplaced = errors.New("another process has the member's name")
)

// The keys of log attributes.
const (
	keyGroup      = "group"
	keyMember     = "member"
	keyPartition  = "partition"
	keyPartitions = "partitions"
	keyTerm       = "term"
	keyVersion    = "version"
	keyMoved      = "moved"
	keyProcess    = "process"
	keyFailures   = "failures"
	keyError      = "error"
)

// Config has the settings of a Share. All members of a group should have the same times.
type Config struct {
	// Store has the leases of the partitions, and the coordinator's.
	Store locks.Store
	// Board has the members of the group and their assignments.
	Board Board
	// Group is the name of the group. It has no slash.
	Group string
	// Member is the name of this member, by which it is drained. No two processes should
	// have it at once: the second one waits. Default: that of [lease.NewProcess].
	Member string
	// Limit is how many partitions this member takes, 0 for any number.
	Limit int
	// TTL is how long the lease of a partition lasts after it was acquired or renewed.
	// Default 10 s.
	TTL time.Duration
	// Every is the time between two renewals, beats, and looks at the board. Default a fifth
	// of the TTL.
	Every time.Duration
	// Partitions returns the partitions of the group. The coordinator calls it once in Every, less often if it takes
	// longer, and never concurrently. Its context ends after the TTL. Until it has returned, and while it returns an error, the partitions are those
	// of before.
	Partitions func(context.Context) ([]string, error)
	// Work works on a partition until ctx is done, whose cause says why. Term is the fencing
	// token of the partition's lease; [locks.Check] tells whether this process has it still. When
	// Work returns before, it is called again with the same term after a time that doubles, from
	// RetryMin to RetryMax. If it returned an error, for the MoveAfter-th time, the member
	// refuses the partition for ten minutes, and twice as long each further time: another one
	// gets it, if one takes it. A Work that ran for RetryMax starts to count again.
	Work func(ctx context.Context, partition string, term int64) error
	// Defaults: 1 s, 1 min, 5.
	RetryMin, RetryMax time.Duration
	MoveAfter          int
	// Logger receives the events. Default: nothing is logged.
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	c.Member = cmp.Or(c.Member, lease.NewProcess(""))
	c.TTL = cmp.Or(c.TTL, lease.DefaultTTL)
	c.Every = cmp.Or(c.Every, c.TTL/5)
	c.RetryMin = cmp.Or(c.RetryMin, time.Second)
	c.RetryMax = cmp.Or(c.RetryMax, time.Minute)
	c.MoveAfter = cmp.Or(c.MoveAfter, 5)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func (c *Config) validate() error {
	var faults []error
	if err := checkGroup(c.Group); err != nil {
		faults = append(faults, err)
	}
	if err := checkMember(c.Member); err != nil {
		faults = append(faults, err)
	}
	if c.Store == nil || c.Board == nil || c.Partitions == nil || c.Work == nil {
		faults = append(faults, errors.New("the store, the board, the partitions and the work are required"))
	}
	if c.Limit < 0 || c.MoveAfter < 0 {
		faults = append(faults, fmt.Errorf("a limit of %d, a move after %d failures: numbers from 0", c.Limit, c.MoveAfter))
	}
	if c.TTL < 4*c.Every || c.Every < time.Millisecond || c.RetryMin < 0 || c.RetryMax < c.RetryMin {
		faults = append(faults, fmt.Errorf("a TTL of %s with renewals every %s, retries after %s to %s: the TTL must be four renewals or more", c.TTL, c.Every, c.RetryMin, c.RetryMax))
	}
	return errors.Join(faults...)
}

func checkGroup(name string) error {
	if name == "" || len(name) > maxName || strings.Contains(name, "/") {
		return fmt.Errorf("the group %q: a name has 1 to %d bytes, and no slash", name, maxName)
	}
	return nil
}

func checkMember(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the member %q: a name has 1 to %d bytes", name, maxName)
	}
	return nil
}

// CoordinatorKey is the name of the coordinator's lease.
func CoordinatorKey(group string) string { return "share/" + group }

// Key is the name of the lease of a partition.
func Key(group, partition string) string { return CoordinatorKey(group) + "/" + partition }

// Share is a member of a group.
type Share struct {
	cfg     Config
	log     *slog.Logger
	process string
	// leases has those of the partitions, chair the coordinator's, which ends earlier so that the
	// next one can move a dead coordinator's partitions in time.
	leases, chair *locks.Elect
	// beating is told to beat at once.
	beating chan struct{}

	mu sync.Mutex // guards the rest
	// plan is the last one that was read, with this member's assignments.
	plan *Plan
	// joined: this process has the member's name. leaving: it shuts down.
	joined, leaving bool
	// waits: another process has the name, and this one has said so.
	waits       bool
	coordinates bool
	works       map[string]*work
	refusals    map[string]*refusal
	// beats counts those that were sent, answered is the last one whose answer counts.
	beats, answered int
	// trouble is when a call failed last.
	trouble time.Time
	working sync.WaitGroup
}

// New returns a Share. It does no I/O.
func New(cfg Config) (*Share, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("share: %w", err)
	}
	s := &Share{
		cfg: cfg, log: cfg.Logger, process: lease.NewProcess(""), plan: &Plan{},
		beating: make(chan struct{}, 1), works: map[string]*work{}, refusals: map[string]*refusal{},
	}
	elect := func(ttl, every time.Duration) *locks.Elect {
		return locks.NewElect(locks.ElectConfig{Store: cfg.Store, Process: s.process, Who: cfg.Member, TTL: ttl, Every: every, Failed: s.failed})
	}
	s.leases, s.chair = elect(cfg.TTL, cfg.Every), elect(cfg.TTL/2, cfg.Every/2)
	return s, nil
}

// Run is a member of the group until ctx is done: it works on the partitions assigned to it, and
// coordinates if no other member does. When ctx is done it stops coordinating and its works; each
// lease is released as its work has returned, and then the member leaves the board. Run
// is called once. It returns why ctx was done.
func (s *Share) Run(ctx context.Context) error {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	var beats, rest sync.WaitGroup
	beats.Go(func() { s.beatLoop(life) })
	rest.Go(func() { s.candidateLoop(ctx) })
	rest.Go(func() { s.planLoop(ctx) })
	<-ctx.Done()
	s.leave()
	s.chair.Close()
	rest.Wait()
	s.working.Wait()
	s.leases.Close()
	end(ErrStopped)
	beats.Wait()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Every)
	defer cancel()
	if err := s.cfg.Board.Leave(bye, s.cfg.Group, s.cfg.Member, s.process); err != nil {
		s.failed(fmt.Errorf("leave the board: %w; the beats end, so that others take over", err))
	}
	s.log.Info("the member has left", keyGroup, s.cfg.Group, keyMember, s.cfg.Member)
	return context.Cause(ctx)
}

// leave stops all works, and says on the board that this member takes none.
func (s *Share) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	s.stopWorks(ErrStopped)
	s.beatSoon()
}

// Running returns the partitions whose leases this process has, sorted.
func (s *Share) Running() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for p, w := range maps.All(s.works) {
		if w.holds {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return list
}

// Coordinates reports whether this process is the coordinator.
func (s *Share) Coordinates() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coordinates
}

func (s *Share) setCoordinates(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coordinates = yes
}

// seen is the version of the last plan that this member has read.
func (s *Share) seen() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan.Version
}

// failed takes an error that is retried.
func (s *Share) failed(err error) {
	s.mu.Lock()
	s.trouble = time.Now()
	s.mu.Unlock()
	s.log.Debug("it is tried again", keyGroup, s.cfg.Group, keyError, err)
}

// hadTrouble reports whether a call has failed within the last TTL.
func (s *Share) hadTrouble() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.trouble.IsZero() && time.Since(s.trouble) < s.cfg.TTL
}
