package continuous

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// tick is how often the Watcher checks for changes; readEvery is how often it reads the standing, unless
// that would take more than a twentieth of the time. After a read that a failover of the target has delayed it reads again
// after readRest at the latest.
const (
	tick         = 500 * time.Millisecond
	readEvery    = 5 * time.Second
	readShare    = 20
	readRest     = time.Minute
	flushTimeout = 2 * time.Second
)

// WatcherConfig configures a Watcher.
type WatcherConfig struct {
	// Store has the results.
	Store standing.Store
	// State returns the state of the link.
	State func() State
	// Foreign returns the collections that something else has written to, by their names at the
	// source, and when it last did; and when it last wrote to some that are not among them, zero if it
	// did not. May be nil.
	Foreign func() (touched map[oplog.Namespace]standing.Moment, others standing.Moment)
	// Observer receives events. May be nil.
	Observer event.Observer
}

// Watcher tracks which collections of the link that this process leads are verified.
type Watcher struct {
	cfg   WatcherConfig
	nudge chan struct{}

	mu sync.Mutex // guards the rest
	// pending are collections to be marked.
	pending map[oplog.Namespace]change
	// changes counts what makes them pending.
	changes int64
	known   *standing.Standing

	// The rest belongs to Run.

	// touched are the foreign writes that are marked.
	touched map[oplog.Namespace]bson.Timestamp
	// others is the last foreign write to collections that are not known, for which all are marked.
	others bson.Timestamp
	// told are the differences that were announced, by collection; nil before the first look.
	told map[oplog.Namespace]standing.Differing
	// faults are the collections that could not be compared, and why.
	faults map[oplog.Namespace]string
	// broken is the last error that was logged.
	broken string
}

// change is why a collection is to be marked; n is its number.
type change struct {
	why string
	n   int64
}

// NewWatcher returns a Watcher. It does no I/O.
func NewWatcher(cfg WatcherConfig) *Watcher {
	return &Watcher{cfg: cfg, nudge: make(chan struct{}, 1), pending: map[oplog.Namespace]change{}, touched: map[oplog.Namespace]bson.Timestamp{}}
}

// Known returns the newest standing, nil if none was read since this process leads.
func (w *Watcher) Known() *standing.Standing {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known
}

// Changed has a collection marked as not verified, by its name at the source. It does no I/O.
func (w *Watcher) Changed(sourceNS oplog.Namespace, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	w.pending[sourceNS] = change{why, w.changes}
}

// changed marks collections now, and has them read at the next tick.
func (w *Watcher) changed(ctx context.Context, why string, sourceNS []oplog.Namespace) error {
	if err := w.cfg.Store.Mark(ctx, why, sourceNS...); err != nil {
		return err
	}
	for _, ns := range sourceNS {
		w.cfg.Observer.Tell(Unverified{NS: ns, Why: why})
	}
	w.readSoon()
	return nil
}

// readSoon has the standing read at the next tick.
func (w *Watcher) readSoon() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// wants reports whether a collection has to be compared soon.
func (w *Watcher) wants() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) > 0 || w.known != nil && len(w.known.Unverified) > 0
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	var next time.Time
	for mongo.Pause(ctx, tick) == nil {
		if !w.cfg.State().Leads {
			w.forget()
			next = time.Time{}
			continue
		}
		changed, err := w.mark(ctx)
		select {
		case <-w.nudge:
			changed = true
		default:
		}
		if changed || !time.Now().Before(next) {
			began := time.Now()
			if err == nil {
				err = w.read(ctx)
			}
			next = time.Now().Add(max(readEvery, min(readShare*time.Since(began), readRest)))
		}
		w.said(ctx, err)
	}
	// The link may end because of a divergence, which must still be marked.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if w.cfg.State().Leads || len(w.taken()) > 0 {
		_, _ = w.mark(last) // The next leader finds most of it again.
	}
}

func (w *Watcher) said(ctx context.Context, err error) {
	text := ""
	if err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != w.broken {
		w.cfg.Observer.Log(slog.LevelWarn, "the results of verifications cannot be read or stored", slog.String(keyCause, text))
	}
	w.broken = text
}

// forget forgets everything: another process leads.
func (w *Watcher) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known, w.told, w.faults = nil, nil, nil
	clear(w.touched)
	w.others = bson.Timestamp{}
}

// taken returns the marks to store.
func (w *Watcher) taken() map[oplog.Namespace]change {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.pending)
}

// mark stores marks.
func (w *Watcher) mark(ctx context.Context) (changed bool, err error) {
	for ns, is := range w.taken() {
		if err := w.cfg.Store.Mark(ctx, is.why, ns); err != nil {
			return changed, err
		}
		w.mu.Lock()
		if w.pending[ns] == is { // otherwise it has changed again, after the time of the mark
			delete(w.pending, ns)
		}
		w.mu.Unlock()
		w.cfg.Observer.Tell(Unverified{NS: ns, Why: is.why})
		changed = true
	}
	if w.cfg.Foreign == nil {
		return changed, nil
	}
	now, others := w.cfg.Foreign()
	if others.TS.After(w.others) {
		if err := w.cfg.Store.TouchedAll(ctx, others); err != nil {
			return changed, err
		}
		if w.others.IsZero() {
			w.cfg.Observer.Log(slog.LevelWarn, "no collection is verified any more: something else has written to more of them than are listed")
		}
		w.others, changed = others.TS, true
	}
	for ns, last := range now {
		if !last.TS.After(w.touched[ns]) {
			continue
		}
		if err := w.cfg.Store.Touched(ctx, ns, last); err != nil {
			return changed, err
		}
		if _, known := w.touched[ns]; !known {
			w.cfg.Observer.Tell(Unverified{NS: ns, Why: "something else has written to it"})
		}
		w.touched[ns] = last.TS
		changed = true
	}
	maps.DeleteFunc(w.touched, func(ns oplog.Namespace, _ bson.Timestamp) bool { _, still := now[ns]; return !still })
	return changed, nil
}

// read reads the standing, and announces changes.
func (w *Watcher) read(ctx context.Context) error {
	s := &w.cfg.Store
	now, of, err := standing.ReadOf(ctx, s.Target, s.DB, s.Link, slices.Collect(maps.Keys(w.told)))
	if err != nil {
		return err
	}
	// A later result of the same collection may be one of another comparison, so they are not settled by each look again.
	if err := s.ForgetDiverged(ctx, now.Settled); err != nil {
		return err
	}
	before := w.Known()
	w.mu.Lock()
	w.known = &now
	w.mu.Unlock()
	w.announce(before, &now, of)
	return nil
}

// announce announces changes since the last call. Differences found before this process led were
// announced by another one, and are only summed up. Of has the collections whose differences were announced, unless they are gone:
// differences are gone if a comparison that counts has not found them, not if that of their collection has not ended.
func (w *Watcher) announce(before, now *standing.Standing, of map[oplog.Namespace]standing.State) {
	first := w.told == nil
	told := make(map[oplog.Namespace]standing.Differing, len(now.Differing))
	for i := range now.Differing {
		d := &now.Differing[i]
		told[d.SourceNS] = *d
		if !first {
			w.differs(d)
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(w.told)) {
		old, left, sure := w.told[ns], told[ns].Differences, true
		if st, exists := of[ns]; exists {
			left, sure = st.Differences, st.Verified
		}
		_, listed := told[ns]
		switch {
		case left < old.Differences && !sure:
			old.Found = joined(told[ns].Found, old.Found)
			told[ns] = old
			continue
		case left < old.Differences:
			w.cfg.Observer.Tell(Cleared{NS: old.NS, Cleared: old.Differences - left, Left: left})
		}
		if !listed && left > 0 { // Others have more.
			old.Differences = left
			told[ns] = old
		}
	}
	w.told = told
	if first && now.Differences > 0 {
		w.cfg.Observer.Tell(Known{Differences: now.Differences, Namespaces: len(now.Differing) + now.MoreDiffering})
	}
	if before != nil && before.AsOf == nil && now.AsOf != nil {
		w.cfg.Observer.Tell(Verified{AsOf: now.AsOf.Wall(), Collections: now.Verified, Differences: now.Differences})
	}
	faults := make(map[oplog.Namespace]string, len(now.Unchecked))
	for _, c := range now.Unchecked {
		faults[c.SourceNS] = c.Why
		if !first && w.faults[c.SourceNS] != c.Why {
			w.cfg.Observer.Log(slog.LevelWarn, "a collection could not be verified", slog.String(keyNS, string(c.NS)), slog.String(keyCause, c.Why))
		}
	}
	w.faults = faults
}

// joined returns the differences that were announced of a collection, the newest first, and not all if they are very many.
func joined(now, old []standing.Found) []standing.Found {
	all := slices.Clone(now)
	for _, f := range old {
		if !slices.Contains(now, f) {
			all = append(all, f)
		}
	}
	return all[:min(len(all), 4*standing.MostFound)]
}

// differs announces the differences of a collection that were not known before.
func (w *Watcher) differs(d *standing.Differing) {
	old := w.told[d.SourceNS]
	var found []standing.Found
	for _, f := range d.Found {
		if !slices.Contains(old.Found, f) {
			found = append(found, f)
		}
	}
	if len(found) == 0 && d.Differences <= old.Differences {
		return
	}
	more := max(0, d.Differences-old.Differences-int64(len(found)))
	shown := min(len(found), mostTold)
	for i := range found[:shown] {
		w.cfg.Observer.Tell(Differs{NS: d.NS, Found: found[i]})
	}
	if more += int64(len(found) - shown); more > 0 {
		w.cfg.Observer.Tell(Known{NS: d.NS, Differences: cmp.Or(d.Differences, more), Namespaces: 1})
	}
}
