package jobs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// TestLinksOfOneProcess: a process runs two links into one target, under one id. What one of them
// looks for of its own in the store is not what the other one has, and the end of one does not
// make the other one look dead.
func TestLinksOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		begin := func(link string) *jobs.Locks {
			l := jobs.New(jobs.Config{Job: "resync", Link: link, Locks: locks.Config{Store: store, Process: "vm:9200:1:2"}})
			l.Begin(t.Context())
			return l
		}
		take := func(l *jobs.Locks, name string) *locks.Lock {
			t.Helper()
			got, err := l.Take(1, jobs.Want{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		one, other := begin("one"), begin("other")
		had := take(one, "namespace/shop.a")
		take(other, "namespace/shop.b")
		time.Sleep(10 * time.Minute)
		if err := had.Err(); err != nil || !store.Record("namespace/shop.a").IsLocked() {
			t.Errorf("the other link's look has ended a lock: %v", err)
		}
		other.End(t.Context())
		if !store.HasPing(had.Record().Process) {
			t.Errorf("the end of the other link has removed the ping of %s", had.Record().Process)
		}
		one.End(t.Context())
	})
}
