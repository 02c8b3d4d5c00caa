package standing

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestWall: a cut shows the target as it was at the source's entry, or when it was committed, if the source's clock is ahead.
func TestWall(t *testing.T) {
	t.Parallel()
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	for _, c := range []struct{ source, committed, want int64 }{{100, 103, 100}, {100, 100, 100}, {100, 90, 90}} {
		cut := Cut{Source: bson.Timestamp{T: uint32(c.source), I: 7}, At: at(c.committed)}
		if got := cut.Wall(); !got.Equal(at(c.want)) {
			t.Errorf("the source's entry of %d, committed at %d: %s", c.source, c.committed, got)
		}
	}
}
