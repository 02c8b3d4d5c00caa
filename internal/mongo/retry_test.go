package mongo

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestRetry: for how long Retry tries, and how often.
func TestRetry(t *testing.T) {
	t.Parallel()
	conflict := servererr.New(servererr.WriteConflict, "conflict").WithLabels(servererr.LabelTransient)
	other := errors.New("other")
	for _, tt := range []struct {
		name  string
		fails int
		err   error
		stuck bool
	}{
		{"at once", 0, nil, false},
		{"after some", 5, nil, false},
		{"after seconds", 25, nil, false},
		{"never", 1000, conflict, true},
		{"another reason", 1, other, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start, n, failed := time.Now(), 0, 0
				err := Retry{Failed: func(error) { failed++ }}.Do(t.Context(), func() error {
					if n++; n > tt.fails {
						return nil
					}
					if errors.Is(tt.err, other) {
						return other
					}
					return conflict
				})
				if !errors.Is(err, tt.err) || err == nil && tt.err != nil {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				_, stuck := errors.AsType[*StuckError](err)
				if stuck != tt.stuck || stuck && (time.Since(start) < retryFor || time.Since(start) > retryFor+2*time.Second) {
					t.Errorf("%v after %s", err, time.Since(start))
				}
				if stuck && DispositionOf(err) != End {
					t.Error("what is stuck would be tried again")
				}
				if failed != n-1 {
					t.Errorf("told of %d failures, there were %d tries", failed, n)
				}
			})
		})
	}
}

// TestRetryLast: the last error takes the place of a *StuckError, unless that is a try's own.
func TestRetryLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conflict := servererr.New(servererr.LockTimeout, "no")
		for _, want := range []error{conflict, fmt.Errorf("read: %w", &StuckError{Err: conflict})} {
			again := func(err error) bool { return errors.Is(err, conflict) }
			start := time.Now()
			if err := (Retry{Again: again}).Last(t.Context(), func() error { return want }); err != want || time.Since(start) < retryFor { //nolint:errorlint // that very one
				t.Errorf("%v after %s", err, time.Since(start))
			}
		}
	})
}

// TestRetryEnds: ctx ends a pause.
func TestRetryEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		time.AfterFunc(10*time.Second, func() { cancel(enough) })
		err := Retry{}.Do(ctx, func() error { return servererr.New(servererr.LockTimeout, "no") })
		if !errors.Is(err, enough) {
			t.Error(err)
		}
	})
}

// TestPassingStatement: any write error of a reply can be the one that allows a retry.
func TestPassingStatement(t *testing.T) {
	t.Parallel()
	reply := func(codes ...int32) bson.Raw {
		var list bson.A
		for i, c := range codes {
			list = append(list, bson.D{{Key: "index", Value: int32(i)}, {Key: "code", Value: c}, {Key: "errmsg", Value: "no"}})
		}
		raw, err := bson.Marshal(bson.D{{Key: "n", Value: 1}, {Key: "writeErrors", Value: list}, {Key: "ok", Value: 1}})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if err := passingStatement(reply(11000)); err != nil {
		t.Error(err)
	}
	if err := passingStatement(reply(11000, 365)); !errors.Is(err, &servererr.Error{Code: servererr.TemporarilyUnavailable}) {
		t.Error(err)
	}
}
