package applier

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestWindowOfTransactions: an operation of a transaction counts with more memory than an entry, as it is in none: the window has room
// for fewer of them.
func TestWindowOfTransactions(t *testing.T) {
	const n, window = 40, 100 * ownOverhead
	for name, tt := range map[string]struct {
		log  func(l *sourceLog, i int) bson.D
		each int64
	}{
		"entries":                 {func(_ *sourceLog, i int) bson.D { return insertOp("db.a", doc(i, i)) }, opOverhead},
		"transactions":            {func(l *sourceLog, i int) bson.D { return l.transactionOp(insertOp("db.a", doc(i, i))) }, ownOverhead},
		"groups that are no such": {func(_ *sourceLog, i int) bson.D { return groupOp(insertOp("db.a", doc(i, i))) }, ownOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := fakeApplier(t, &nullTarget{delay: time.Hour}, 4, func(c *Config) { c.WindowBytes, c.Relaxed = window, true })
				s := begin(t, a)
				l := newLog(t)
				for i := range n {
					l.add(tt.log(l, i))
				}
				batches := l.batches()
				send(s, batches)
				synctest.Wait()
				// Nothing is in the target yet: all of them are in the window.
				if used := a.Stats().WindowBytes; used < n*tt.each || used > n*(tt.each+100) {
					t.Errorf("%d bytes for %d operations, want %d and a few more for each", used, n, tt.each)
				}
				enough := errors.New("enough")
				s.cancel(enough)
				for range s.out {
				}
				if err := <-s.end; !errors.Is(err, enough) {
					t.Error(err)
				}
			})
		})
	}
}
