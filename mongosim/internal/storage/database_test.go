package storage_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestOpenDatabases: which names of databases are taken follows the catalog through a rollback and an initial sync.
func TestOpenDatabases(t *testing.T) {
	create := func(s *storage.Store, at uint32, ns oplog.Namespace, id byte) {
		commit(t, s, bson.Timestamp{T: at}, func(u *storage.Unit) error { return u.Create(ns, oplog.UUID{id}, nil, idSpec()) })
	}
	check := func(s *storage.Store, when, db string, free bool) {
		t.Helper()
		write(t, s, func(w *storage.Writer) {
			u := w.Begin(bson.Timestamp{})
			defer u.Abort()
			if err := u.CheckCase(db); (err == nil) != free {
				t.Errorf("%s: %s: %v", when, db, err)
			}
		})
	}
	s := storage.New(storage.Options{})
	create(s, 1, "Kept.c", 1)
	create(s, 2, "Dropped.c", 2)
	var prepared *storage.Unit
	write(t, s, func(w *storage.Writer) {
		prepared = w.Begin(bson.Timestamp{})
		if err := prepared.Create("Prepared.c", oplog.UUID{3}, nil, idSpec()); err != nil {
			t.Fatal(err)
		}
		prepared.Prepare(bson.Timestamp{T: 3})
	})
	create(s, 11, "Later.c", 4)
	commit(t, s, bson.Timestamp{T: 12}, func(u *storage.Unit) error {
		u.CloseDatabase("Dropped")
		return u.Drop(oplog.UUID{2})
	})
	check(s, "before the rollback", "later", false)
	check(s, "before the rollback", "dropped", true)
	write(t, s, func(w *storage.Writer) {
		if err := w.RollbackTo(bson.Timestamp{T: 10}); err != nil {
			t.Fatal(err)
		}
	})
	check(s, "after the rollback", "kept", false)
	check(s, "after the rollback", "dropped", false)
	check(s, "after the rollback", "later", true)
	check(s, "after the rollback", "prepared", false)
	write(t, s, func(*storage.Writer) { prepared.Abort() })

	member := storage.New(storage.Options{})
	create(member, 1, "Old.c", 5)
	create(member, 1, "Local.c", 6)
	commit(t, member, bson.Timestamp{}, func(u *storage.Unit) error { return u.Create("local.c", oplog.UUID{7}, nil, idSpec()) })
	copied, err := s.CloneAt(bson.Timestamp{}, storage.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create(copied, 20, "Replayed.c", 8)
	member.Become(copied)
	check(member, "after the initial sync", "kept", false)
	check(member, "after the initial sync", "dropped", false)
	check(member, "after the initial sync", "replayed", false)
	check(member, "after the initial sync", "old", true)
	check(member, "after the initial sync", "Local", false)
}
