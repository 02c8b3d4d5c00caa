package promote

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// check reads the operations of the relay log that a promotion would apply, and converts them as far as that needs no collection
// of the target.
type check struct {
	commands ddl.Config
	after    checkpoint.Position
	entries  int64 // that were checked
}

// newCheck returns the check of a promotion of a link in a state.
func (pr *promotion) newCheck(st *checkpoint.State) *check {
	c := pr.settings.Stages(nil, pr.target, pr.settings.Scope, pr.memory()).Commands
	c.Target = pr.target
	return &check{commands: c, after: checkedAfter(st)}
}

// checkedAfter returns the position after which a promotion applies operations. Those up to the barrier are in the target: a view that
// stayed left out with one of them, for example, may be none any more.
func checkedAfter(st *checkpoint.State) checkpoint.Position {
	applied := checkpoint.Position{OpTime: st.Applied, Op: checkpoint.AllOps}
	if st.Barrier.Compare(applied) > 0 {
		return st.Barrier
	}
	return applied
}

// entry checks an entry, and the transaction that it completes. A nil check checks nothing.
func (c *check) entry(ctx context.Context, e *oplog.Entry, r *txn.Result) error {
	end := checkpoint.Position{OpTime: e.OpTime, Op: checkpoint.AllOps}
	if c == nil || end.Compare(c.after) <= 0 {
		return nil
	}
	c.entries++
	switch {
	case r.Outcome == txn.Pass:
		return c.op(ctx, &e.Op)
	case r.Txn == nil:
		return nil
	}
	for op, err := range r.Txn.Ops() {
		if err == nil {
			err = c.op(ctx, &op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *check) op(ctx context.Context, op *oplog.Op) error {
	if op.IsDDL() {
		return ddl.Check(ctx, c.commands, op)
	}
	if _, in := c.commands.Scope.Target(op.NS); !in || !op.Kind.IsCRUD() {
		return nil
	}
	return applier.Check(op)
}

// refused returns the error of a dry run for an entry of the relay log that cannot be applied, err for another error.
func (pr *promotion) refused(err error) error {
	why, is := error(nil), false
	if why, is = errors.AsType[*oplog.EntryError](err); !is {
		why, is = errors.AsType[*ddl.ResyncError](err)
	}
	if !is {
		return err
	}
	return fmt.Errorf("promote link %q: the relay log has the entries up to %s, and one cannot be applied: a promotion ends there: %w",
		pr.rec.Link, pr.rec.Log.Last, why)
}
