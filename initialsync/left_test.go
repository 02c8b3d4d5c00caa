package initialsync

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
)

// TestLeftOfManyCollections: after a few large collections, thousands of small ones have nearly no bytes, and take as
// long as their number says.
func TestLeftOfManyCollections(t *testing.T) {
	t.Parallel()
	const large, small, each = 8, 3000, 10 * time.Millisecond
	b := newBoard(nil)
	now := time.Now()
	all := make([]*collection, large+small)
	for i := range all {
		all[i] = &collection{doc: progress.Collection{UUID: oplog.UUID{byte(i >> 8), byte(i)}, Docs: 1, Bytes: 50}}
		if i < large {
			all[i].doc.Bytes = 1 << 20
		}
		all[i].doc.State = progress.Created
	}
	b.load(all)
	b.enter(StepCopy, now)
	end := func(coll *collection) {
		b.mu.Lock()
		coll.docs, coll.bytes = coll.doc.Docs, coll.doc.Bytes
		b.rate.add(now, coll.docs, coll.bytes)
		b.mu.Unlock()
		b.filled(coll, now)
	}
	for _, coll := range all[:large] {
		end(coll)
	}
	now = now.Add(time.Second)
	if p := b.progress(now); p.Left < 0 || p.Left > time.Minute {
		t.Errorf("after the large ones: %s left", p.Left)
	}
	for i, coll := range all[large:] {
		end(coll)
		now = now.Add(each)
		rest := small - 1 - i
		if i%25 > 0 {
			continue
		}
		if p := b.progress(now); i > 200 && (p.Left < time.Duration(rest)*each*8/10 || p.Left > time.Duration(rest)*each*15/10) {
			t.Fatalf("%d collections of %s each are left: %s left", rest, each, p.Left)
		}
	}
	if p := b.progress(now); p.Left != 0 {
		t.Errorf("%s left of nothing", p.Left)
	}
}

// TestFewLately: how long many collections take is not told by one that was completed after a standstill, whatever was completed before that.
func TestFewLately(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	r := rate{start: begun}
	for range 30 {
		r.count(begun, 0, 0, 1)
	}
	if got := r.collections(begun); got != 30 {
		t.Errorf("%v a second as it began", got)
	}
	r.count(begun.Add(65*time.Second), 0, 0, 1)
	if got := r.collections(begun.Add(66 * time.Second)); got != 0 {
		t.Errorf("%v a second after a standstill", got)
	}
}
