package cutover_test

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestResumeGoneBackStorm: while errors pass of any command to the old source, a cutover whose way back was cut over is not taken
// for one that goes on: applications would write to a side that nothing mirrors any more.
func TestResumeGoneBackStorm(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		s := newSides(t)
		must.Succeed(t, s.begin(s.last))
		s.ended()
		r := &record.Record{Link: "dr", ID: "1", State: record.Running, Options: record.Options{Freeze: record.Stopped}, Steps: []record.Taken{}}
		r.Begin(record.Commit, "me", time.Now())
		must.Succeed(t, (&record.Store{Target: s.next, DB: "replicator"}).Put(t.Context(), nil, r))
		next, last := &blockable{Caller: s.next, block: old{blocked: true}}, &storm{Caller: s.last, at: at, code: servererr.LockTimeout}
		r, err := cutover.Resume(t.Context(), &cutover.Config{
			Drain:  cutover.DrainConfig{Source: last, Link: "dr", By: "me", Within: time.Minute, OnWait: func(string) {}},
			Target: next, MetaDB: "replicator", Process: "the operator's",
		})
		if err != nil || r.GoneBack != "back" || !next.block.isBlocked() {
			t.Errorf("command %d: %v, %+v, the target blocked: %t", at, err, r, next.block.isBlocked())
		}
		if last.n < at {
			break
		}
	}
}
