package pipeline

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestTooLargeLasts: only an operation that is refused again and again for the size of the target's storage cache is
// given up, whatever else ends attempts meanwhile.
func TestTooLargeLasts(t *testing.T) {
	t.Parallel()
	refused := func(at uint32, code servererr.Code) error {
		op := &applier.OpError{NS: "db.a", OpTime: oplog.NewOpTime(at, 1, 1), Kind: oplog.KindInsert, Err: servererr.New(code, "no")}
		return fmt.Errorf("applier: %w", &applier.StuckError{Ops: 1, Tried: 30 * time.Second, Err: op})
	}
	synctest.Test(t, func(t *testing.T) {
		var now tooLarge
		lasts := func(err error) bool {
			time.Sleep(30 * time.Second)
			e, is := errors.AsType[*failure.TooLargeError](now.lasts(err, time.Minute))
			return is && e.Tried >= time.Minute
		}
		cache := servererr.TransactionTooLargeForCache
		for i, step := range []struct {
			err  error
			want bool
		}{
			{refused(1, cache), false},
			{refused(2, cache), false}, // another operation
			{errors.New("an election"), false},
			{refused(2, servererr.ExceededMemoryLimit), false},
			{refused(2, cache), true},
			{refused(3, cache), false},
			{refused(3, cache), true},
		} {
			if got := lasts(step.err); got != step.want {
				t.Errorf("step %d: %t", i, got)
			}
		}
	})
}
