package monitor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
)

// TestNoPrimarySince: a member that knows no primary goes on to answer, and does not say what the set has committed since it knew one.
func TestNoPrimarySince(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{Waits: &mongo.Waits{}})
		var replies int64
		reply := func(noPrimary bool) time.Time {
			time.Sleep(time.Second)
			replies++
			st := fetcher.Status{Host: "a:1", Replies: replies, HeardAt: time.Now()}
			st.Metadata.NoPrimary = noPrimary
			m.heard(st)
			return st.HeardAt
		}
		none := false
		wants := func(what string, want time.Time) {
			t.Helper()
			if got := m.Snapshot(); !got.NoPrimarySince.Equal(want) || got.NoPrimaryYet != none {
				t.Errorf("%s: since %s, want %s; none yet: %v", what, got.NoPrimarySince, want, got.NoPrimaryYet)
			}
		}
		first := reply(true)
		none = true
		wants("the first member knew none", first)
		reply(true)
		wants("nor later", first)
		last := reply(false)
		none = false
		wants("there is one", time.Time{})
		reply(true)
		reply(true)
		wants("there is none any more", last)
		m.heard(fetcher.Status{Host: "a:1", Replies: replies}) // not a reply
		wants("nothing new was heard", last)
		reply(false)
		wants("there is one again", time.Time{})
		reply(true)
		m.Began(Attempt{})
		wants("another attempt, which has heard nothing", time.Time{})
		time.Sleep(time.Hour) // another process led
		first = reply(true)
		none = true
		wants("its first member knows none", first)
	})
}
