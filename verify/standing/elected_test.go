package standing

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// electedBook is a book in a target whose primary may be one that was just elected.
func electedBook(t *testing.T) (*book, *client.Elected) {
	t.Helper()
	b := newBook(t)
	target := &client.Elected{Caller: b.Target}
	b.Target, b.future = target, b.future-2000 // marks are after the cuts
	return b, target
}

// TestElected: a link is not verified any more once that was stored, also if the target's primary was just elected, and does not know yet
// that a majority has it.
func TestElected(t *testing.T) {
	t.Parallel()
	optime := func(s uint32) oplog.OpTime { return oplog.NewOpTime(s, 1, 1) }
	for name, change := range map[string]func(t *testing.T, b *book, links *checkpoint.Store, r *Round){
		"marked": func(t *testing.T, b *book, _ *checkpoint.Store, _ *Round) {
			must.Succeed(t, b.Mark(t.Context(), WhyDiffers+"it was found", "d.a"))
		},
		"reported": func(t *testing.T, b *book, _ *checkpoint.Store, r *Round) {
			must.Succeed(t, b.SaveTold(t.Context(), "d.a", id("d.a", 1), r.N, []Found{{Kind: "missing", ID: "1"}}, 0))
		},
		"copied again": func(t *testing.T, _ *book, links *checkpoint.Store, _ *Round) {
			store, link := request.New(links), must.Get(links.Acquire(t.Context(), 0))(t)
			must.Succeed(t, store.Resync(t.Context(), "d.a"))
			must.Succeed(t, store.LeaveOut(t.Context(), link, request.Resync{NS: "d.a", Asked: time.Now(), State: request.Asked}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, target := electedBook(t)
			links := must.Get(checkpoint.New(checkpoint.Config{Target: target.Caller, Link: b.Link}))(t)
			must.Succeed(t, links.Create(t.Context(), checkpoint.State{Writers: 1, Applied: optime(100), FetchFrom: optime(100)}))
			r, _ := b.begin(100, list("d.a"))
			b.save(&r, "d.a", 100)
			b.end(&r)
			if st := read(t, b.Store); st.AsOf == nil || st.Differences != 0 {
				t.Fatalf("it is not verified: %+v", st)
			}
			target.Elect(t)
			change(t, b, links, &r)
			if st := read(t, b.Store); st.AsOf != nil && st.Differences == 0 {
				t.Errorf("it is verified as of %v", st.AsOf)
			}
			target.Learn()
			if st := read(t, b.Store); st.AsOf != nil && st.Differences == 0 {
				t.Errorf("once it is known: verified as of %v", st.AsOf)
			}
		})
	}
}

// TestElectedBegins: a verification that has found something marks the collection if another round has begun meanwhile, also if the primary
// does not know yet that a majority has that.
func TestElectedBegins(t *testing.T) {
	t.Parallel()
	b, target := electedBook(t)
	r, _ := b.begin(100, list("d.a"))
	b.save(&r, "d.a", 100)
	target.Elect(t)
	now := *b.Store
	now.Target = target.Caller
	_, _, err := beginAs(t.Context(), &now, list("d.a"), false, cutAt(200, b.future+200), time.Unix(5000, 0))
	must.Succeed(t, err)
	must.Succeed(t, b.SaveTold(t.Context(), "d.a", id("d.a", 1), r.N, []Found{{Kind: "missing", ID: "1"}}, 0))
	var d document
	docs := must.Get(now.find(t.Context(), metadata.ByID(now.id("d.a"))))(t)
	must.Succeed(t, bson.Unmarshal(docs[0], &d))
	if !d.marked() {
		t.Errorf("it is not marked: %+v", d)
	}
}
