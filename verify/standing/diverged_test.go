package standing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// diverge records that a writer has met a divergence.
func (s *book) diverge(ns oplog.Namespace, writer string, at uint32) {
	s.t.Helper()
	d := checkpoint.Diverged{NS: "t" + ns, Source: ns, Ops: 2, First: bson.Timestamp{T: at - 1, I: 1}, Last: bson.Timestamp{T: at, I: 1}, Since: time.Unix(7, 0), Until: time.Unix(9, 0), What: "gone"}
	must.Succeed(s.t, s.write(s.t.Context(), metadata.Update(s.DB, metadata.Diverged, d.Statement(s.Link, "", writer))))
}

// open are the collections with divergences that are open, and how many there are.
func (s *book) diverges(what, want string) {
	s.t.Helper()
	st := read(s.t, s.Store)
	must.Succeed(s.t, s.ForgetDiverged(s.t.Context(), st.Settled))
	var is []string
	for _, d := range st.Diverged {
		is = append(is, fmt.Sprintf("%s %d", d.Source, d.Ops))
	}
	if got := strings.Join(is, ", "); got != want {
		s.t.Errorf("%s: %q is open, want %q", what, got, want)
	}
}

// TestDiverged: a divergence is open until its collection was compared at a cut that is not older, and what that has found is gone.
// It makes its collection unverified, whatever has marked it.
func TestDiverged(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	s.diverges("none", "")
	s.diverge("d.c", "none", 90)
	s.diverges("never compared", "d.c 2")
	all := list("d.a", "d.b")
	round, _ := s.begin(90, all)
	s.save(&round, "d.a", 100)
	s.save(&round, "d.b", 100)
	s.end(&round)
	s.is("compared", 100, 2, 2, 0)

	s.diverge("d.a", "0", 101)
	s.diverge("d.a", "7", 120)
	s.diverges("after that", "d.a 4, d.c 2")
	if st := s.is("diverged", 0, 2, 1, 0); len(st.Unverified) != 1 || st.Unverified[0].Why != WhyDiverged {
		t.Errorf("%+v", st.Unverified)
	}
	round = s.again(s.Store, 110, all)
	s.save(&round, "d.a", 119)
	s.save(&round, "d.b", 119)
	s.end(&round)
	s.diverges("compared before the last one", "d.a 4, d.c 2")
	round = s.again(s.Store, 120, all)
	s.differs(&round, all[0], 120)
	s.save(&round, "d.b", 120)
	s.end(&round)
	s.diverges("it differs", "d.a 4, d.c 2")
	round = s.again(s.Store, 130, all)
	s.save(&round, "d.a", 130)
	s.save(&round, "d.b", 130)
	s.end(&round)
	s.diverges("it does not", "d.c 2")
	s.is("compared again", 130, 2, 2, 0)
	must.Succeed(t, s.write(t.Context(), metadata.Delete(s.DB, metadata.Verified, metadata.Below(s.Link))))
	s.diverges("the results are lost", "d.c 2")
}

// TestDivergedRenamed: a comparison of a collection does not settle the divergences of one that was renamed over it later.
func TestDivergedRenamed(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	all := list("d.a", "d.b")
	round, _ := s.begin(90, all)
	s.diverge("d.a", "3", 100)
	s.save(&round, "d.a", 99)
	s.save(&round, "d.b", 110)
	s.end(&round)
	rename := func() {
		t.Helper()
		must.Succeed(t, checkpoint.MoveDiverged(t.Context(), s.Target, s.DB, s.Link, "", "d.a", "d.b", "td.b", bson.Timestamp{T: 120, I: 1}))
	}
	rename()
	s.diverges("renamed", "d.b 2")
	rename()
	s.diverges("renamed, repeated", "d.b 2")
	round = s.again(s.Store, 110, list("d.b"))
	s.save(&round, "d.b", 119)
	s.end(&round)
	s.diverges("compared before the rename", "d.b 2")
	round = s.again(s.Store, 120, list("d.b"))
	s.save(&round, "d.b", 120)
	s.end(&round)
	s.diverges("compared after the rename", "")
}

// TestDivergedCopiedAgain: a collection that was copied again has what its part has met since, and nothing else.
func TestDivergedCopiedAgain(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	for _, ns := range []oplog.Namespace{"d.a", "d.b"} {
		s.diverge(ns, "0", 90)
		s.diverge(ns, "none", 95)
	}
	part := func(link, of string, ops int64, ns oplog.Namespace, writer string) {
		t.Helper()
		d := checkpoint.Diverged{NS: "t" + ns, Source: ns, Ops: ops, First: bson.Timestamp{T: 99}, Last: bson.Timestamp{T: 100}, Since: time.Unix(7, 0), Until: time.Unix(9, 0), What: "gone"}
		must.Succeed(t, s.write(t.Context(), metadata.Update(s.DB, metadata.Diverged, d.Statement(link, of, writer))))
	}
	part("resync-1", s.Link, 5, "d.a", "0")
	part("resync-1", s.Link, 6, "d.a", "1")
	part("resync-2", s.Link, 7, "d.b", "0")
	part("resync-3", "another", 8, "d.a", "0")
	s.diverges("parts are no part of the link yet", "d.a 4, d.b 4")
	take := func() {
		t.Helper()
		must.Succeed(t, checkpoint.TakeDiverged(t.Context(), s.Target, s.DB, s.Link, "d.a"))
	}
	take()
	s.diverges("copied again", "d.a 11, d.b 4")
	take()
	s.diverges("copied once more", "d.b 4")
	others := must.Get(checkpoint.ReadDiverged(t.Context(), s.Target, s.DB, "resync-3"))(t)
	if len(others) != 1 || others[0].Ops != 8 {
		t.Errorf("the part of another link: %+v", others)
	}
}

// TestDivergedLater: a divergence after the comparison was read is not forgotten with those that the comparison settles.
func TestDivergedLater(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	s.diverge("d.a", "0", 90)
	round, _ := s.begin(90, list("d.a"))
	s.save(&round, "d.a", 95)
	s.end(&round)
	st := read(t, s.Store)
	s.diverge("d.a", "7", 100)
	must.Succeed(t, s.ForgetDiverged(t.Context(), st.Settled))
	s.diverges("met again", "d.a 2")
}

// deletes counts the delete commands that the target gets.
type deletes struct {
	mongo.Caller
	n int
}

// Call implements mongo.Caller.
func (d *deletes) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() == "delete" {
		d.n++
	}
	return d.Caller.Call(ctx, cmd)
}

// TestManyDiverged: the divergences of many collections that a comparison settles are forgotten with few commands.
func TestManyDiverged(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	const most = metadata.ChunkDocs
	settled := make([]checkpoint.Diverged, most+1)
	statements := make([]metadata.Statement, len(settled))
	for i := range settled {
		ns := oplog.Namespace(fmt.Sprintf("d.c%04d", i))
		settled[i] = checkpoint.Diverged{NS: ns, Source: ns, Ops: 1, First: bson.Timestamp{T: 90}, Last: bson.Timestamp{T: 90}}
		statements[i] = settled[i].Statement(s.Link, "", "0")
	}
	must.Succeed(t, s.write(t.Context(), metadata.Update(s.DB, metadata.Diverged, statements...)))
	settled[7].Last.T = 89 // one was met since
	counts := &deletes{Caller: s.Target}
	store := *s.Store
	store.Target = counts
	must.Succeed(t, store.ForgetDiverged(t.Context(), settled))
	left := must.Get(checkpoint.ReadDiverged(t.Context(), s.Target, s.DB, s.Link))(t)
	if len(left) != 1 || left[0].Source != "d.c0007" || counts.n != 2 {
		t.Errorf("%d commands left %+v", counts.n, left)
	}
}

// TestDamagedDiverged: a record that cannot be read is open.
func TestDamagedDiverged(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	round, _ := s.begin(90, list("d.a"))
	s.save(&round, "d.a", 100)
	s.end(&round)
	must.Succeed(t, s.write(t.Context(), metadata.Write(s.DB, "insert", metadata.Diverged, "documents", must.Get(bson.Marshal(bson.D{{Key: "_id", Value: "l/0/d.a"}}))(t))))
	s.diverges("damaged", "d.a 1")
}
