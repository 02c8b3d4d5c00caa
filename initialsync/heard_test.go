package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestHeardStays: the newest entry that the source was heard to have stays known, with when that was, although another
// attempt, or another process, hears only of a member that lags, or of none: else what a promotion loses is less than it says.
func TestHeardStays(t *testing.T) {
	t.Parallel()
	at := func(n int) oplog.OpTime { return oplog.NewOpTime(100, uint32(n), 1) }
	elected := oplog.NewOpTime(99, 1, 2)
	early := oplog.NewOpTime(1, 1, 1)
	for name, tt := range map[string]struct {
		copies bool // another copy was begun
		then   oplog.OpTime
		never  bool // it was not heard when
		want   oplog.OpTime
		later  bool // it was heard by the second one
	}{
		"a member that lags":         {then: at(3), want: at(5)},
		"no member":                  {want: at(5)},
		"not in this attempt":        {then: at(5), never: true, want: at(5)},
		"not when":                   {then: at(6), never: true, want: at(5)},
		"nothing newer":              {then: at(5), want: at(5), later: true},
		"more":                       {then: at(6), want: at(6), later: true},
		"another primary":            {then: elected, want: elected, later: true},
		"of another copy":            {then: early, copies: true, want: early, later: true},
		"of another copy, not heard": {copies: true, want: at(5)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				attempt := func(id string, heard func() spool.Heard) spool.Heard {
					l := NewLog(LogConfig{Link: "mirror", Dir: dir, Relay: 8 << 20})
					l.dir, l.id = dir, id
					ctx, stop := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("the attempt ends"))
					defer stop()
					must.Succeed(t, l.NoteHeardLoop(ctx, heard))
					h, ok, err := spool.ReadHeard(dir)
					if !ok || err != nil {
						t.Fatalf("nothing is stored: %v", err)
					}
					return h
				}
				began := time.Now()
				first := attempt("1", func() spool.Heard { return spool.Heard{OpTime: at(5), Member: "a", At: began} })
				if first.OpTime != at(5) || !first.At.Equal(began) {
					t.Fatalf("at first: %+v", first)
				}
				id := "1"
				if tt.copies {
					id = "2"
				}
				second := attempt(id, func() spool.Heard {
					h := spool.Heard{OpTime: tt.then, Member: "b"}
					if !tt.never && !tt.then.IsNull() {
						h.At = time.Now()
					}
					return h
				})
				if second.OpTime != tt.want || second.At.After(began.Add(5*time.Second)) != tt.later || second.At.Before(began) {
					t.Errorf("afterwards: %+v", second)
				}
			})
		})
	}
}
