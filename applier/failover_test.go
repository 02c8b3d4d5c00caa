package applier

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/mongosim"
)

// A target that steps down in the middle ends the attempt; the next one goes on
// from what the lanes say.
func TestStepDown(t *testing.T) {
	for _, writers := range []int{1, 4, 16} {
		t.Run(strconv.Itoa(writers), func(t *testing.T) {
			r := newRig(t, writers, mongosim.Options{Members: 3})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
			l := newLog(t)
			var want []bson.D
			for round := range 20 {
				for i := range 30 {
					if round == 0 {
						l.add(insertOp("db.a", doc(i, 0)))
						want = append(want, doc(i, 19))
					} else {
						l.add(setOp("db.a", i, round))
					}
				}
				l.add(l.transactionOp(insertOp("db.a", doc(fmt.Sprint(round, "x"), 1)), insertOp("db.a", doc(fmt.Sprint(round, "y"), 1))))
				want = append(want, doc(fmt.Sprint(round, "x"), 1), doc(fmt.Sprint(round, "y"), 1))
				l.end()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			attempts := 0
			for ; ; attempts++ {
				a, err := r.begin(ctx, func(c *Config) { c.FlushDocs, c.CoalesceWindow = 10, 10 })
				if err != nil {
					if attempts > 50 || errors.Is(err, checkpoint.ErrFenced) {
						t.Fatal(err)
					}
					continue // a primary that is about to be none
				}
				if attempts == 0 {
					var n atomic.Int64
					// In the middle of a transaction, so that it has to be noticed.
					r.target.intercept(func(cmd call.Command) (error, bool) {
						if commandName(cmd) == "commitTransaction" && n.Add(1) == 5 {
							if err := r.target.set.Do(ctx, mongosim.Action{Verb: "stepdown"}); err != nil {
								t.Error(err)
							}
						}
						return nil, false
					})
				}
				err = a.run(ctx, l.after(a.hold.State().Applied), 1)
				r.target.intercept(nil)
				if err == nil {
					break
				}
				if errors.Is(err, checkpoint.ErrFenced) || isStop(err) || ctx.Err() != nil {
					t.Fatal(err)
				}
				t.Logf("attempt %d: %v", attempts, err)
			}
			if attempts == 0 {
				t.Error("the step-down was not noticed")
			}
			wantDocs(t, r.target, "db.a", want...)
		})
	}
}
