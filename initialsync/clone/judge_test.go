package clone

import (
	"errors"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/errtest"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
)

// TestJudge checks the verdict for each disposition of a transaction.
func TestJudge(t *testing.T) {
	t.Parallel()
	conflict := servererr.New(servererr.WriteConflict, "conflict")
	for _, tt := range []struct {
		name string
		err  error
		want verdict
	}{
		{"conflict", conflict, again},
		{"too large", servererr.New(servererr.TransactionTooLarge, "no"), smaller},
		{"one statement", servererr.New(servererr.BadValue, "no"), end},
		{"another primary", servererr.New(servererr.NotWritablePrimary, "no"), end},
		{"there already", fmt.Errorf("insert: %w", errThere), upserts},
		{"fenced", fmt.Errorf("%w: %w", lease.ErrFenced, conflict), end},
		{"rewound", fmt.Errorf("%w: %w", lease.ErrRewound, conflict), end},
		{"stuck", &mongo.StuckError{Err: conflict}, end},
		{"unknown", errors.New("no"), end},
	} {
		if got := judge(tt.err); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestRefusal: a document is at fault only if the error is not about the server.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for code, document := range map[servererr.Code]bool{
		servererr.BadValue: true, servererr.DocumentValidationFailure: true, 99999: true,
		servererr.WriteConflict: false, servererr.TransactionTooLarge: false, servererr.OutOfDiskSpace: false,
		servererr.InterruptedAtShutdown: false, servererr.Unauthorized: false,
	} {
		err := refusal("d.c", &mongo.WriteError{Error: *servererr.New(code, "no")}, nil)
		if _, refused := errors.AsType[*RefusedError](err); refused != document {
			t.Errorf("%s: %T", code, err)
		}
		if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != code {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// TestJudgeEvery: a refusal that ends an attempt is transient or has a rule; a document
// is at fault only if nothing else is.
func TestJudgeEvery(t *testing.T) {
	t.Parallel()
	for err, k := range errtest.Errors() {
		if got := judge(err); (got == again || got == smaller) != mongo.Passes(err) && k != servererr.Ended {
			t.Errorf("%T %v (%s): %d", err, err, k, got)
		}
	}
	for e := range errtest.Refusals() {
		_, refused := errors.AsType[*RefusedError](refusal("d.c", &mongo.WriteError{Error: *e}, nil))
		own := servererr.IsDuplicateKey(e)
		if refused != (e.Kind() == servererr.Isolate && !own) {
			t.Errorf("%v, %q: the document is at fault: %t", e, e.Labels, refused)
		}
	}
}

// TestReadEvery: a read that a transient refusal ends is retried, or ends the attempt.
func TestReadEvery(t *testing.T) {
	t.Parallel()
	for err, k := range errtest.Errors() {
		r := &reader{Cloner: &Cloner{}, cursor: 1, order: byID}
		got := r.judge(err)
		known := servererr.IsNoRecord(err) || servererr.IsNoNamespace(err) || servererr.IsNotUnderstood(err)
		if mongo.PassesRead(err) && got != readAgain && !known {
			t.Errorf("%T %v (%s): %d", err, err, k, got)
		}
		if got == readGone != servererr.IsNoNamespace(err) {
			t.Errorf("%T %v (%s): gone", err, err, k)
		}
	}
}
