package pipeline_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/scope"
)

// endsForPart is the log message when an attempt is ended for a part.
const endsForPart = "the attempt ends in order, for a collection that is to be copied again, or has been"

// requestOfR returns the request for db.r.
func (w *world) requestOfR() (found request.Resync) {
	store, err := w.metadata()
	must.Succeed(w.t, err)
	requests, err := request.New(store).Read(w.t.Context())
	for _, r := range requests.Resync {
		if err == nil && r.NS == "db.r" {
			found = r
		}
	}
	return found
}

// onDisk reports whether a file below a folder has a text.
func onDisk(dir, text string) bool {
	found := false
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // one that is gone does not have it
		if err == nil && !d.IsDir() {
			data, err := os.ReadFile(path)
			found = found || err == nil && bytes.Contains(data, []byte(text))
		}
		return nil
	})
	return found
}

// TestPartMergedFromDisk: a part that never leaves its own spool, as its collection is written to
// faster than the target can apply, is merged nevertheless, once it has come to where the link is.
// Here a command of its own keeps it from leaving the disk, and the link stands at another one.
func TestPartMergedFromDisk(t *testing.T) {
	t.Parallel()
	opts := func(seed int64) mongosim.Options {
		return mongosim.Options{Members: 1, Seed: seed, Moods: mongosim.NoMoods("the gates decide who stands where")}
	}
	w := newWorld(t, opts(1), opts(2))
	at := newGates("create late", "collMod r")
	cfg := pipeline.Config{Writers: 2, Await: 100 * time.Millisecond}
	cfg.Copy.SpoolDir = t.TempDir()
	write := func(cmd bson.D) {
		t.Helper()
		must.Succeed(t, w.source.write(t.Context(), "db", cmd))
	}
	insert := func(coll, text string) {
		t.Helper()
		write(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: text}}}}})
	}
	w.asTarget = at.around
	must.Succeed(t, w.start("a", cfg, scope.Config{}))
	l := w.links["a"]
	l.copies = false
	insert("r", "first")
	// Once everything is copied Stop is known: what follows comes after the part is consistent.
	w.play("await caught-up a\nhold again: everything copied\nresync db.r\nawait held")
	w.forget()
	write(bson.D{{Key: "create", Value: "late"}})
	<-at.shut["create late"].reached
	write(bson.D{{Key: "collMod", Value: "r"}, {Key: "validationAction", Value: "warn"}})
	filler := make([]byte, 1<<20)
	for i := range 30 { // more than a part may read into memory
		write(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: i}, {Key: "x", Value: filler}}}}})
	}
	insert("r", "the end")
	must.Succeed(t, w.until("the part to have all of it on disk", func() bool { return onDisk(cfg.Copy.SpoolDir, "the end") }))
	w.release()
	<-at.shut["collMod r"].reached
	if err := w.untilOf(l, "the attempt to be ended for the part", func() bool { return w.told(endsForPart) }); err != nil {
		w.fail("merged", "", err)
	}
	if s := l.p.Snapshot().Spool; s != nil {
		t.Errorf("the link is to read from memory, not from %s on", s.First)
	}
	close(at.shut["collMod r"].open)
	close(at.shut["create late"].open)
	if err := w.untilOf(l, "the part to be merged", func() bool { return w.requestOfR().State == request.Done }); err != nil {
		w.fail("merged", "", err)
	}
	must.Succeed(t, w.caughtUp(l))
	if report, err := w.equal(l); err != nil || report != "equal" {
		t.Error(report, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(w.events, func(e told) bool { _, is := e.event.(resync.Began); return is }) {
		t.Error("the part was started again: it was not merged from where it stood")
	}
}

// TestPartTooStale: the source no longer has what a part has to read next, as it stood, or its spool is on
// another machine. It is copied once more, as only that can help, and does not stay left out.
func TestPartTooStale(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 30)
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	gates := newGates("collMod r")
	o.asTarget = gates.around
	must.Succeed(t, o.start("a"))
	o.play("source insert db.r 1..50\nawait caught-up a\nhold again: everything copied\nresync db.r\nawait held")
	must.Succeed(t, o.source.write(t.Context(), "db", bson.D{{Key: "collMod", Value: "r"}, {Key: "validationAction", Value: "warn"}}))
	at := o.newest()
	o.write(1)
	o.play("await caught-up a\nrelease\nawait told again: consistent") // and behind the link
	<-gates.shut["collMod r"].reached
	for range 5 {
		o.write(10)
		must.Succeed(t, o.caughtUp(o.links["a"]))
	}
	o.lost(at)
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.asTarget = nil
	o.cfg.Copy.SpoolDir = t.TempDir()
	must.Succeed(t, o.start("b"))
	l := o.links["b"]
	if err := o.untilOf(l, "the collection to be copied", func() bool { r := o.requestOfR(); return !r.Open() }); err != nil {
		o.fail("stale", "", err)
	}
	if r := o.requestOfR(); r.State != request.Done {
		t.Errorf("the request is %+v", r)
	}
	must.Succeed(t, o.caughtUp(l))
	if report, err := o.equal(l); err != nil || report != "equal" {
		t.Error(report, err)
	}
	if store := must.Get(o.metadata())(t); len(must.Get(store.Parts(t.Context()))(t)) > 0 {
		t.Error("a part has remained")
	}
}
