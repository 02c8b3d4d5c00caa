package buffer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// DefaultLimit is the default of [Config.Limit], in bytes.
	DefaultLimit = 256 << 20
	// MinLimit is the minimum of [Config.Limit], in bytes.
	MinLimit = 32 << 20

	defaultHeadroom = 48 << 20
	defaultReplies  = 10_000
)

// Config is the configuration of a Queue.
type Config struct {
	// Limit is the budget for everything fetched and not applied, in bytes. Zero means
	// 256 MiB; the minimum is 32 MiB.
	Limit    int64
	Registry prometheus.Registerer

	// headroom is the part of Limit that is reserved for replies that arrive while
	// there is no room, in bytes. Zero means 48 MiB, but at most half of Limit.
	headroom int64
	// replies is how many replies may wait to be sent on. Zero means 10,000.
	replies int
}

func (c *Config) setDefaults() {
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}
	if c.headroom == 0 {
		c.headroom = headroomOf(c.Limit)
	}
	if c.replies == 0 {
		c.replies = defaultReplies
	}
}

func headroomOf(limit int64) int64 { return min(defaultHeadroom, limit/2) }

// ReplyBytes returns how large replies may be, in bytes, for a Queue with this limit, so
// that two of them take the headroom; 0 where the largest that a server sends do.
func ReplyBytes(limit int64) int64 {
	if headroom := headroomOf(limit); headroom < defaultHeadroom {
		return headroom / 2
	}
	return 0
}

func (c *Config) validate() error {
	if c.Limit < MinLimit {
		return fmt.Errorf("buffer: a limit of %d bytes: want %d or more", c.Limit, MinLimit)
	}
	return nil
}

// Queue buffers replies between the fetcher and the applier.
type Queue struct {
	// room is the maximum of buffered bytes; replies is the maximum number of waiting
	// replies.
	room    int64
	replies int
	metrics *metrics
	// freed wakes Run after a Release. Its capacity is one.
	freed chan struct{}

	mu sync.Mutex
	// The rest is guarded by mu.
	account Account
	// waiting is since when there has been no room, zero while there is.
	waiting time.Time
}

// Stats is the state of a Queue at one moment.
type Stats struct {
	// Buffered is the number of bytes received and not released, Queued those of them not
	// sent on.
	Buffered, Queued int64
	// Replies is the number of replies that wait to be sent on.
	Replies int
	// Released is how many bytes have been released since Run was called.
	Released int64
	// Oldest is when the oldest reply that is not wholly released was received, zero if
	// there is none.
	Oldest time.Time
	// Waiting reports whether there is no room now.
	Waiting bool
	// Limit is the maximum of Buffered, without the headroom.
	Limit int64
}

// New checks cfg. It does no I/O and starts no goroutine.
func New(cfg Config) (*Queue, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	q := &Queue{
		room: cfg.Limit - cfg.headroom, replies: cfg.replies,
		freed: make(chan struct{}, 1),
	}
	q.metrics = newMetrics(cfg.Registry, q)
	return q, nil
}

// Run moves replies from in to out, in order, as far as there is room. It closes out
// before it returns: nil once in is closed and everything is sent, the cause once ctx
// is done. After it has returned it may be called again, for another attempt, if
// nothing that was buffered will be released after it: it starts empty.
func (q *Queue) Run(ctx context.Context, in <-chan oplog.Reply, out chan<- oplog.Reply) error {
	defer close(out)
	q.reset()
	// next has been received, but has to wait for room.
	var next oplog.Reply
	waits := false
	for {
		if waits && q.admit(next) {
			next, waits = oplog.Reply{}, false
		}
		from := in
		if waits || !q.mayTake() {
			from = nil
		}
		head, queued := q.head()
		to := out
		if !queued {
			if in == nil && !waits {
				return nil
			}
			to = nil
		}
		select {
		case r, ok := <-from:
			if !ok {
				in = nil
				break
			}
			next, waits = r, true
		case to <- head:
			q.sent()
		case <-q.freed:
		case <-ctx.Done():
			q.drop()
			return context.Cause(ctx)
		}
	}
}

// Release releases bytes of replies that were sent on, once their entries have been
// applied. It does not block.
func (q *Queue) Release(bytes int64) {
	q.mu.Lock()
	q.account.Release(bytes)
	q.mu.Unlock()
	select {
	case q.freed <- struct{}{}:
	default: // Run will wake and check anyway.
	}
}

// Stats returns the present state.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.account.Stats()
	s.Waiting, s.Limit = !q.waiting.IsZero(), q.room
	return s
}

func (q *Queue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.account = Account{}
	q.waiting = time.Time{}
}

// drop discards the waiting replies. Those sent on will still be released.
func (q *Queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.account.Drop()
}

// admit adds r if there is room, or nothing else is buffered.
func (q *Queue) admit(r oplog.Reply) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.account.Admits(r.Bytes, q.room) {
		q.wait()
		return false
	}
	q.account.Add(r)
	return true
}

// mayTake reports whether another reply may be received from in.
func (q *Queue) mayTake() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.account.queue.len() >= q.replies || q.account.buffered > 0 && q.account.buffered >= q.room {
		q.wait()
		return false
	}
	if !q.waiting.IsZero() {
		q.metrics.waited.Add(time.Since(q.waiting).Seconds())
		q.waiting = time.Time{}
	}
	return true
}

// wait records that there is no room. mu is held.
func (q *Queue) wait() {
	if q.waiting.IsZero() {
		q.waiting = time.Now()
		q.metrics.waits.Inc()
	}
}

func (q *Queue) head() (oplog.Reply, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.account.Head()
}

func (q *Queue) sent() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.account.Sent()
}
