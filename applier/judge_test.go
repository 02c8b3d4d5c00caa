package applier

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/errtest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
)

const labelTransient = servererr.LabelTransient

// TestJudge: the applier's additions to the dispositions of transaction errors.
func TestJudge(t *testing.T) {
	t.Parallel()
	conflict := servererr.New(servererr.WriteConflict, "conflict")
	for _, tt := range []struct {
		name string
		err  error
		want mongo.Disposition
	}{
		{"conflict", conflict, again},
		{"too large", servererr.New(servererr.TransactionTooLarge, "no"), smaller},
		{"one statement", servererr.New(servererr.DuplicateKey, "no"), single},
		{"another primary", servererr.New(servererr.NotWritablePrimary, "no"), end},
		{"too few documents", fmt.Errorf("update: %w", &shortError{want: 2, got: 1}), single},
		{"fenced", fmt.Errorf("%w: %w", lease.ErrFenced, conflict), end},
		{"rewound", fmt.Errorf("%w: %w", lease.ErrRewound, conflict), end},
		{"diverged", &DivergenceError{}, end},
		{"unique index", &UniqueError{Err: conflict}, end},
		{"refused", &OpError{Err: conflict}, end},
		{"stuck", &StuckError{Err: conflict}, end},
		{"given up for its age", mongo.Aged(servererr.New(servererr.NoSuchTransaction, "no"), time.Minute), smaller},
		{"unknown", errors.New("no"), end},
	} {
		if got := judge(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestJudgeEvery: an error ends an attempt only if the next one may succeed, or if a rule
// handles it: the run never ends for no reason.
func TestJudgeEvery(t *testing.T) {
	t.Parallel()
	for err, k := range errtest.Errors() {
		got := judge(err)
		if got == end && !k.Passes() && k != servererr.Auth && k != servererr.Unsupported {
			t.Errorf("%T %v (%s): the end", err, err, k)
		}
		if got == single && k != servererr.Isolate {
			t.Errorf("%T %v (%s): one operation is at fault", err, err, k)
		}
	}
}
