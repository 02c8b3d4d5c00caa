package cutover_test

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestNotWritten: a change of users, which the link does not mirror, is not why it has to be drained again.
func TestNotWritten(t *testing.T) {
	t.Parallel()
	m := newMoved(t, open(t, "7.0"), "users")
	l := must.Get(m.store.Acquire(t.Context(), 0))(t).Lane(0)
	txn := l.Session().Begin()
	must.Succeed(t, txn.End(t.Context(), true, l.Move(t.Context(), txn, checkpoint.Position{OpTime: ot(101)})))
	if _, err := cutover.Run(t.Context(), m.whole(), byBlock); !errors.Is(err, cutover.ErrWritten) {
		t.Errorf("further than the drain: %v", err)
	}
	m.source.write("admin.system.users")
	_, err := cutover.Resume(t.Context(), m.whole())
	if _, is := errors.AsType[*cutover.SourceWrittenError](err); is || !errors.Is(err, cutover.ErrWritten) {
		t.Errorf("and then a change of users: %v", err)
	}
}
