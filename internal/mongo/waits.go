package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Waits records which commands wait: those without a reply, and those that are retried
// after transient errors. It is safe for concurrent use; the zero value is ready.
type Waits struct {
	mu       sync.Mutex
	flying   map[*flight]struct{} // under mu
	refusals map[subject]*refusal // under mu
	sets     map[string]set       // by side; under mu
	silent   map[string]silent    // by side; under mu
}

// set is a replica set that knows its primary, as far as there is one.
type set interface {
	Primary() (host string, election bson.ObjectID)
	Direct() bool
}

// Wait is a command, or something else, that waits.
type Wait struct {
	// Side is the side of the server, as given to Watch, and Host the member that runs
	// the command, empty for the primary.
	Side, Host string
	// Command is the command's name, Namespace that of its collection.
	Command, Namespace string
	// Since is when the wait began.
	Since time.Time
	// For describes the cause, as far as it is known.
	For string
	// Noted reports that Start noted the wait, and that For is its cause.
	Noted bool
}

// String describes the wait: since when, what, and its cause.
func (w Wait) String() string {
	whom := "the " + w.Side
	if w.Host != "" {
		whom += "'s member " + w.Host
	}
	text := fmt.Sprintf("waiting for %s since %s UTC: %s on %s", whom, w.Since.UTC().Format(time.TimeOnly), w.Command, w.Namespace)
	if w.For != "" {
		text += ": " + w.For
	}
	return text
}

// subject identifies commands of which one counts as a retry of another.
type subject struct{ side, host, command, namespace string }

// flight is a command in flight.
type flight struct {
	subject
	began time.Time
	// patience is how long the server was asked to wait for data.
	patience time.Duration
	// limit is the time limit that the server was given, 0 for none.
	limit    time.Duration
	majority bool
	inTxn    bool
	reads    bool   // none of its commands changes anything
	reason   string // the cause, if it is known
}

// refusal is a command that failed with a transient error and has not succeeded since.
// Again reports that it was retried.
type refusal struct {
	since, last time.Time
	again       bool
	err         error
}

// forgetAfter is how long after its last error a command counts as being retried. Pauses
// between retries are shorter.
const forgetAfter = 45 * time.Second

// Watch returns a Caller whose commands the Waits records. It is a Pipeliner if c is one.
// A hello to a member is not recorded: members that are down are checked forever, and
// nothing waits for the result.
func (w *Waits) watch(c Caller, side, host string) Caller {
	if s, ok := c.(set); ok && host == "" && !s.Direct() {
		w.mu.Lock()
		if w.sets == nil {
			w.sets = map[string]set{}
		}
		w.sets[side] = s
		w.mu.Unlock()
	}
	one := watched{c, w, side, host}
	if p, ok := c.(Pipeliner); ok {
		return watchedPipeliner{one, p}
	}
	return one
}

// WatchCluster returns a Cluster whose commands, also those to its members, the Waits records.
func (w *Waits) WatchCluster(c Cluster, side string) Cluster {
	return Route(watchedMembers{c, w, side}, w.watch(c, side, ""))
}

type watchedMembers struct {
	Cluster
	waits *Waits
	side  string
}

// Member implements Cluster.
func (c watchedMembers) Member(host string) Caller {
	return c.waits.watch(c.Cluster.Member(host), c.side, host)
}

type watched struct {
	Caller
	waits      *Waits
	side, host string
}

// Call implements Caller.
func (c watched) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	if it := rawbson.NewIter(cmd.Body); c.host != "" && it.Next() && (it.Is("hello") || it.Is("isMaster")) {
		return c.Caller.Call(ctx, cmd)
	}
	f := c.waits.begin(c.side, c.host, cmd)
	ctx, _, cancel := f.bound(ctx, c.Caller)
	defer cancel()
	reply, err := c.Caller.Call(ctx, cmd)
	c.waits.end(f, err)
	return reply, err
}

type watchedPipeliner struct {
	watched
	pipeliner Pipeliner
}

// CallAll implements Pipeliner.
func (c watchedPipeliner) CallAll(ctx context.Context, cmds []Command, each func(i int, reply bson.Raw) error) error {
	f := c.waits.begin(c.side, c.host, cmds[len(cmds)-1])
	f.reads = onlyReads(cmds...)
	ctx, answered, cancel := f.bound(ctx, c.Caller)
	defer cancel()
	err := c.pipeliner.CallAll(ctx, cmds, func(i int, reply bson.Raw) error {
		answered()
		return each(i, reply)
	})
	c.waits.end(f, err)
	return err
}

func (w *Waits) begin(side, host string, cmd Command) *flight {
	f := &flight{began: time.Now(), subject: subject{side: side, host: host, namespace: cmd.DB}}
	it := rawbson.NewIter(cmd.Body)
	for first := true; it.Next(); first = false {
		switch name := it.Name(); {
		case first:
			f.command, f.reads = strings.Clone(name), slices.Contains(readers, name)
			if coll, ok := it.Text(); ok {
				f.namespace += "." + coll
			}
		case name == "collection" && f.command == "getMore":
			coll, _ := it.Text()
			f.namespace += "." + coll
		case name == "maxTimeMS" && f.command == "getMore":
			ms, _ := it.Int64()
			f.patience = time.Duration(ms) * time.Millisecond
		case name == "maxTimeMS": // up to which it may wait for a lock
			ms, _ := it.Int64()
			f.limit = time.Duration(ms) * time.Millisecond
		case name == "autocommit":
			f.inTxn = true
		case name == "writeConcern":
			concern, _ := it.Document()
			e, _ := rawbson.Lookup(concern, "w")
			level, _ := e.Text()
			f.majority = level == "majority"
		}
	}
	w.add(f)
	return f
}

// Start records a wait that is not a command of a watched Caller, until over is called.
// It sets Since.
func (w *Waits) Start(wait Wait) (over func()) {
	f := &flight{
		subject: subject{wait.Side, wait.Host, wait.Command, wait.Namespace}, began: time.Now(), reason: wait.For,
	}
	w.add(f)
	return func() { w.end(f, nil) }
}

func (w *Waits) add(f *flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flying == nil {
		w.flying, w.refusals, w.silent = map[*flight]struct{}{}, map[subject]*refusal{}, map[string]silent{}
	}
	w.flying[f] = struct{}{}
	if s := w.silent[f.side]; f.reason == "" {
		if s.since.IsZero() {
			s.since = f.began
		}
		s.asked = f.began
		w.silent[f.side] = s
	}
}

func (w *Waits) end(f *flight, err error) {
	now := time.Now()
	refused, isRefusal := errors.AsType[*servererr.Error](err)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flying, f)
	if f.reason == "" && (err == nil || isRefusal) {
		w.silent[f.side] = silent{}
	}
	switch {
	case !isRefusal || !inTheWay(refused.Kind()):
		delete(w.refusals, f.subject)
	case w.refusals[f.subject] == nil:
		w.refusals[f.subject] = &refusal{since: f.began, last: now, err: refused}
	default:
		r := w.refusals[f.subject]
		if f.began.Sub(r.last) > forgetAfter {
			r.since = f.began
		}
		r.last, r.again, r.err = now, true, refused
	}
}

// silent is a side of which nothing is answered.
type silent struct {
	// since is when the first command was sent after the last answer, asked the last.
	since, asked time.Time
}

// askedWithin is how long after the last command a side counts as being asked: pauses between
// attempts are shorter.
const askedWithin = 45 * time.Second

// Silent returns since when a side has not answered any command, zero if it has, or is not
// asked. A command that is given up is not answered.
func (w *Waits) Silent(side string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.silent[side]
	if time.Since(s.asked) < askedWithin {
		return s.since
	}
	for f := range w.flying {
		if f.side == side && f.reason == "" {
			return s.since
		}
	}
	return time.Time{}
}

// inTheWay reports whether an error of a kind means that the command will be retried and
// waits for something else. That a session or a cursor has ended is a result, and often
// the expected one.
func inTheWay(k servererr.Kind) bool {
	switch k {
	case servererr.Session, servererr.Cursor, servererr.Ended:
		return false
	default:
		return k.Passes()
	}
}

// Longer returns the waits that are longer than d, not counting the time that the server
// was asked to wait for data; the longest first. Commands that failed and are not retried
// do not wait, and are forgotten.
func (w *Waits) Longer(d time.Duration) []Wait {
	now := time.Now()
	var all []Wait
	w.mu.Lock()
	tried := map[subject]bool{}
	for f := range w.flying {
		tried[f.subject] = true
		if now.Sub(f.began)-f.patience > d {
			all = append(all, f.wait())
		}
	}
	for s, r := range w.refusals {
		switch {
		case now.Sub(r.last) > forgetAfter && !tried[s]:
			delete(w.refusals, s)
		case now.Sub(r.since) > d && (tried[s] || r.again && r.last.Sub(r.since) >= d):
			all = append(all, Wait{
				Side: s.side, Host: s.host, Command: s.command, Namespace: s.namespace, Since: r.since, For: "refused: " + r.err.Error(),
			})
		}
	}
	for i := range all {
		one := &all[i]
		if s := w.sets[one.Side]; s != nil && one.Host == "" && !one.Noted {
			if host, _ := s.Primary(); host == "" {
				one.For = "no primary of it is known"
			}
		}
	}
	w.mu.Unlock()
	slices.SortFunc(all, func(a, b Wait) int { return a.Since.Compare(b.Since) })
	return all
}

func (f *flight) wait() Wait {
	w := Wait{Side: f.side, Host: f.host, Command: f.command, Namespace: f.namespace, Since: f.began, Noted: f.reason != ""}
	switch {
	case f.reason != "":
		w.For = f.reason
	case f.majority:
		w.For = "a majority of the members has to have it"
	case f.command == "createIndexes":
		w.For = "an index is built"
	case slices.Contains([]string{"create", "drop", "dropDatabase", "dropIndexes", "collMod", "renameCollection"}, f.command):
		w.For = "it needs a lock that something else has"
	case slices.Contains([]string{"find", "getMore", "aggregate", "listCollections", "listIndexes"}, f.command):
		w.For = "it does not answer, or a lock or a prepared transaction is in the way"
	default:
		w.For = "it does not answer"
	}
	return w
}
