package promote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Recovery is the recovery point of a link whose source is gone.
type Recovery struct {
	Link string
	// Over is the end of the link as it is recorded, nil for a dry run.
	Over *checkpoint.Over
	// At is S: everything that the source has committed up to there is in the target; Wall is the
	// source's clock at S, in milliseconds since the epoch.
	At   oplog.OpTime
	Wall int64
	// Ahead are the lanes that have applied something after S. Without any, the target is the source
	// as of S.
	Ahead []Ahead
	// Durable is the checkpoint that was found.
	Durable oplog.OpTime
	// Dir is the folder of a relay log on this machine, empty if none is configured, Log its
	// content.
	Dir string
	Log initialsync.Salvaged
	// Open are the transactions that the relay log has only the beginning of.
	Open []OpenTxn
	// Untried is how many entries of the relay log a dry run has read and converted, and not applied: the target may refuse some.
	Untried int64
	// Holder is the process that had the lease last, empty if none did.
	Holder string
	// LeftOut are the collections that are not as of S: they were being copied again.
	LeftOut []oplog.Namespace
	// KeptBack are the collections that waited for an index build, as far as they are behind lanes that are ahead: none of
	// their operations after Since was applied, and all before it.
	KeptBack []checkpoint.KeptBack
}

// Ahead is a lane that has applied operations after the recovery point.
type Ahead struct {
	// Lane is its number, -1 for the barrier's.
	Lane int
	// At is up to where: everything of the lane's up to there was applied. Announced means that it is
	// not known whether the last of it was.
	At        checkpoint.Position
	Announced bool
}

// OpenTxn is a transaction of which no commit is known.
type OpenTxn struct {
	// First is its first entry that is known, Wall its time in milliseconds since the epoch.
	First oplog.OpTime
	Wall  int64
	// Ops is how many of its operations are known, Namespaces of which collections of the source.
	Ops        int64
	Namespaces []oplog.Namespace
	// Prepared means that it may have been committed on other shards.
	Prepared bool
}

// Exact reports whether the target is the source as of S, except for LeftOut.
func (r *Recovery) Exact() bool { return len(r.Ahead) == 0 }

// MissingAtMost returns how many entries the source was heard to have after S, at most; false if
// that cannot be told: the increments of timestamps count within a second only, and what could not
// be read of the relay log is not known.
func (r *Recovery) MissingAtMost() (n uint32, ok bool) {
	h := r.heard()
	switch {
	case r.Log.Damage != nil:
		return 0, false
	case h.IsNull() || !h.After(r.At):
		return 0, !h.IsNull()
	case h.Term != r.At.Term || h.TS.T != r.At.TS.T:
		return 0, false
	}
	return h.TS.I - r.At.TS.I, true
}

func (r *Recovery) heard() oplog.OpTime {
	switch {
	case r.Over != nil && r.Over.Promoted != nil:
		return r.Over.Promoted.Heard
	case r.Log.Heard == nil:
		return oplog.OpTime{}
	}
	return r.Log.Heard.OpTime
}

// set takes S and the lanes from the state of the link.
func (r *Recovery) set(st *checkpoint.State, at oplog.OpTime) {
	r.At, r.Ahead, r.KeptBack = at, nil, nil
	add := func(lane int, p checkpoint.Position, announced bool) {
		if p.OpTime.After(at) {
			r.Ahead = append(r.Ahead, Ahead{lane, p, announced})
		}
	}
	for i := range st.Lanes {
		add(i, st.Lanes[i], false)
		add(i, st.LanesAnnounced[i], true)
	}
	add(-1, st.Barrier, false)
	add(-1, st.Announced, true)
	if r.Exact() {
		return
	}
	// The barrier's lane writes the operations that were kept back, and all collections have those up to S.
	for _, k := range st.KeptBack {
		for _, p := range []checkpoint.Position{st.Barrier, {OpTime: at, Op: checkpoint.AllOps}} {
			if p.Compare(k.Since) > 0 {
				k.Since = p
			}
		}
		r.KeptBack = append(r.KeptBack, k)
	}
}

// over returns the record of the end of the link.
func (r *Recovery) over(by string, now time.Time) checkpoint.Over {
	p := &checkpoint.Promoted{Wall: r.Wall, Exact: r.Exact(), Furthest: r.At, Open: int64(len(r.Open))}
	for _, a := range r.Ahead {
		if a.At.OpTime.After(p.Furthest) {
			p.Furthest = a.At.OpTime
		}
	}
	if h := r.Log.Heard; h != nil {
		p.Heard, p.HeardAt = h.OpTime, h.At.UTC().Truncate(time.Millisecond)
	}
	return checkpoint.Over{At: now, By: by, Source: r.At, Promoted: p}
}

// finish determines the recovery point from the lanes.
func (pr *promotion) finish(ctx context.Context, st checkpoint.State) error {
	pr.rec.set(&st, st.Applied)
	pr.rec.Wall = st.AppliedWall
	if st.Applied.Before(pr.rec.Durable) {
		return fmt.Errorf("promote link %q: the target has the source up to %s only, and had it up to %s", pr.rec.Link, st.Applied, pr.rec.Durable)
	}
	return pr.known(ctx, &st, nil)
}

// recorded restores the recovery point of a link that was promoted.
func (pr *promotion) recorded(ctx context.Context, over *checkpoint.Over) {
	st := pr.state
	pr.rec.set(&st, over.Source)
	pr.rec.Over, pr.rec.Wall = over, over.Promoted.Wall
	if _, _, err := pr.open(ctx, pr.look.Instance, st, false); err != nil {
		pr.say("the relay log cannot be read any more: %v", err)
		return
	}
	if err := pr.known(ctx, &st, nil); err != nil {
		pr.say("the relay log cannot be read any more: %v", err)
	}
}

// preview returns what the recovery point would be. It changes nothing, and locks nothing: a
// process that runs the link may go on meanwhile.
func (pr *promotion) preview(ctx context.Context) error {
	st := pr.state
	found, ok, err := pr.open(ctx, pr.look.Instance, st, false)
	if err != nil {
		return err
	}
	at := st.Applied
	var c *check
	if ok = ok && st.Back == nil; ok && found.Last.After(at) {
		c, at = pr.newCheck(&st), found.Last
	}
	pr.rec.set(&st, at)
	if ok {
		pr.rec.KeptBack = nil // the relay log is applied to them too
	}
	pr.rec.Wall = st.AppliedWall
	if err := pr.known(ctx, &st, c); err != nil {
		return pr.refused(err)
	}
	if c != nil {
		pr.rec.Untried = c.entries
	}
	return nil
}

// known finds, in the relay log, the transactions that were begun up to S and not applied, and the
// source's clock at S. It checks the entries, if c is not nil.
func (pr *promotion) known(ctx context.Context, st *checkpoint.State, c *check) error {
	log := pr.log
	pr.rec.Open = nil
	if log.Spool() == nil {
		return nil
	}
	if err := log.Spool().Start(st.FetchFrom); err != nil {
		return nil // it begins later: nothing is known
	}
	open := newOpenTxns(pr.settings.SpillDir)
	defer open.assembler.Close() //nolint:errcheck // Nothing was kept.
	out := make(chan oplog.Reply)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return log.Read(ctx, ctx, pr.rec.Log.Last, out) })
	g.Go(func() error {
		for r := range out {
			for i := range r.Entries {
				e := &r.Entries[i]
				if err := open.add(ctx, e, c); err != nil {
					return err
				}
				if e.OpTime.Equal(pr.rec.At) {
					pr.rec.Wall = e.WallTime().UnixMilli()
				}
			}
			log.Spool().Release(r.Bytes)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("read what the relay log has of open transactions: %w", err)
	}
	pr.rec.Open = open.list()
	return nil
}

// openTxns follows which transactions are open.
type openTxns struct {
	assembler *txn.Assembler
	of        map[string]*OpenTxn
}

func newOpenTxns(spill string) *openTxns {
	a, err := txn.New(txn.Config{SpillDir: spill})
	if err != nil {
		panic("promote: invariant: the configuration of an assembler is valid: " + err.Error())
	}
	return &openTxns{a, map[string]*OpenTxn{}}
}

func (o *openTxns) add(ctx context.Context, e *oplog.Entry, c *check) error {
	res, err := o.assembler.Add(e)
	if err != nil {
		return err
	}
	err = c.entry(ctx, e, &res)
	if res.Txn != nil {
		err = errors.Join(err, res.Txn.Close())
	}
	if err != nil {
		return err
	}
	key := string(e.Session().LSID)
	if res.Dropped > 0 { // the session has moved on
		delete(o.of, key)
	}
	switch res.Outcome {
	case txn.Committed, txn.Aborted:
		delete(o.of, key)
	case txn.Partial:
		of := o.of[key]
		if of == nil {
			of = &OpenTxn{First: e.OpTime, Wall: e.WallTime().UnixMilli()}
			o.of[key] = of
		}
		return of.add(e)
	case txn.Pass, txn.Past:
	}
	return nil
}

func (t *OpenTxn) add(e *oplog.Entry) error {
	group, err := e.ApplyOps()
	if err != nil {
		return err
	}
	t.Prepared = t.Prepared || group.Prepare
	for op, err := range group.Ops() {
		if err != nil {
			return err
		}
		t.Ops++
		if i, found := slices.BinarySearch(t.Namespaces, op.NS); !found {
			t.Namespaces = slices.Insert(t.Namespaces, i, oplog.Namespace(strings.Clone(string(op.NS))))
		}
	}
	return nil
}

// list returns them in the order of the log.
func (o *openTxns) list() []OpenTxn {
	var list []OpenTxn
	for _, t := range o.of {
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b OpenTxn) int {
		if a.First.Before(b.First) {
			return -1
		}
		return 1
	})
	return list
}
