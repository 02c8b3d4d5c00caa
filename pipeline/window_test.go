package pipeline

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// TestWindowLeft: how long the source keeps what is still to be read is known from
// how its oldest entry moves.
func TestWindowLeft(t *testing.T) {
	t.Parallel()
	at := func(seconds uint32) oplog.OpTime { return oplog.OpTime{TS: bson.Timestamp{T: seconds, I: 1}} }
	for _, tt := range []struct {
		name     string
		oldest   []uint32 // as of looks ten seconds apart
		position uint32
		want     time.Duration
	}{
		{"one look", []uint32{1000}, 5000, -1},
		{"one step", []uint32{1000, 1010}, 5000, -1},
		{"it does not move", []uint32{1000, 1000, 1000, 1000}, 5000, -1},
		{"as fast as time", []uint32{1000, 1010, 1020, 1030}, 1630, 600 * time.Second},
		{"ten times as fast", []uint32{1000, 1100, 1200, 1300}, 4300, 300 * time.Second},
		{"a night without writes", []uint32{1000, 1010, 1020, 30_000, 30_010}, 30_610, 600 * time.Second},
		{"now and then", []uint32{1000, 1000, 1040, 1040, 1080}, 1480, 300 * time.Second},
		{"passed", []uint32{1000}, 900, 0},
		{"all of it within a second", []uint32{1000}, 1000, -1},
		{"another member", []uint32{1000, 1100, 1200, 500}, 5000, -1},
	} {
		var w windowWatch
		var got Window
		began := time.Unix(1_700_000_000, 0)
		for i, oldest := range tt.oldest {
			got = w.look(began.Add(time.Duration(i)*windowEvery), at(oldest), at(tt.position))
		}
		if got.Left != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got.Left, tt.want)
		}
	}
}
