package opwrite_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// newPath makes a write path on an empty store. Its clock stands at 7 s.
func newPath(t testing.TB, d opwrite.Dialect) (*opwrite.Path, *storage.Store) {
	t.Helper()
	store := storage.New(storage.Options{})
	return pathOn(t, store, d), store
}

func pathOn(t testing.TB, store *storage.Store, d opwrite.Dialect) *opwrite.Path {
	t.Helper()
	uuids := byte(0)
	p, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: d, Host: "h:1",
		Term: func() (int64, error) { return 2, nil },
		Now:  func() time.Time { return time.UnixMilli(7000) },
		NewUUID: func() oplog.UUID {
			uuids++
			return oplog.UUID{uuids}
		},
	})
	check(t, err)
	return p
}

func create(t testing.TB, p *opwrite.Path, ns oplog.Namespace, options bson.Raw) {
	t.Helper()
	check(t, p.Write(func(b *opwrite.Batch) error {
		_, err := b.Create(ns, options, nil)
		return err
	}))
}

// entries are the log from the n-th entry on, as extended JSON.
func entries(t testing.TB, store *storage.Store, n int) (texts []string) {
	t.Helper()
	check(t, store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			if n--; n < 0 {
				text, err := bson.MarshalExtJSON(e.Raw, false, false)
				check(t, err)
				texts = append(texts, string(text))
			}
		}
		return nil
	}))
	return texts
}

func lsid(t testing.TB) bson.Raw {
	t.Helper()
	return doc(t, bson.D{
		{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 15), 1)}},
		{Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}},
	})
}

func doc(t testing.TB, d bson.D) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(d)
	check(t, err)
	return raw
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
