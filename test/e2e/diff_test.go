package e2e_test

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/oplog/update"
)

// TestDiffIsWhatTheServerLogs changes documents by a pipeline, for which the
// server computes the delta from the two documents alone, and compares what it
// logs with [update.Diff]: the same bytes, or a replacement where there is no
// delta.
func TestDiffIsWhatTheServerLogs(t *testing.T) {
	mongotest.Versions(t, mongotest.Options{}, func(t *testing.T, rs *mongotest.ReplicaSet) {
		s := newScratch(t, rs)
		var stored, changed, deltas tally
		rapid.Check(t, func(rt *rapid.T) {
			pre := storable(bsongen.Document(rt))
			post := bsongen.Mutate(rt, pre)
			stored.cases++
			inserted, err := s.put(pre)
			if _, refused := errors.AsType[*refusedError](err); refused {
				stored.leaveOut(err)
				return
			}
			if err != nil {
				rt.Fatalf("store %s: %v", pre, err)
			}
			logged := replaceWith(rt, s, inserted, post)
			changed.cases++
			if bytes.Equal(pre, post) {
				changed.leaveOut(errors.New("nothing to change"))
				if len(logged) != 0 {
					rt.Fatalf("a change to nothing was logged: %v", logged)
				}
				return
			}
			if len(logged) != 1 {
				rt.Fatalf("changed %s to %s: %d entries: %v", pre, post, len(logged), logged)
			}
			deltas.cases++
			want, reason := post, error(nil)
			if diff, ok := update.Diff(pre, post, update.EnvelopePadding); ok {
				want = entry(diff)
			} else {
				reason = errors.New("a replacement is smaller")
				deltas.leaveOut(reason)
			}
			checkLogged(rt, pre, post, logged[0])
			if !bytes.Equal(logged[0], want) {
				rt.Fatalf("changed %s to %s, the entry is:%s", pre, post, compare(logged[0], want))
			}
		})
		stored.check(t, "documents that the server does not store", 10)
		changed.check(t, "changes", 80)
		deltas.check(t, "deltas", 80)
	})
}

// replaceWith makes post the only document and returns what that logged.
func replaceWith(rt *rapid.T, s *scratch, inserted, post bson.Raw) []bson.Raw {
	u := pipeline("$replaceWith", literal(post))
	if _, err := s.update(u); err != nil {
		rt.Fatalf("update by %s: %v", shown(u), err)
	}
	got, err := s.get()
	if err != nil {
		rt.Fatalf("read the document: %v", err)
	}
	if !bytes.Equal(got, post) {
		rt.Fatalf("updated by %s:%s", shown(u), compare(got, post))
	}
	logged, err := s.entriesAfter(inserted)
	if err != nil {
		rt.Fatalf("read the oplog: %v", err)
	}
	return logged
}

// checkLogged checks that the entry means what the server has done. Where that
// holds and the bytes differ, the server has another dialect of deltas.
func checkLogged(rt *rapid.T, pre, post, o bson.Raw) {
	got, err := update.Apply(pre, o)
	if err != nil {
		rt.Fatalf("apply the server's %s to %s: %v", o, pre, err)
	}
	if !bytes.Equal(got, post) {
		rt.Fatalf("applied the server's %s to %s:%s", o, pre, compare(got, post))
	}
}
