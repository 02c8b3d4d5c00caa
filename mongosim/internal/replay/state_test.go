package replay_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// begun is the timestamp of the data that a test starts with.
var begun = bson.Timestamp{T: 1, I: 1}

func idIndex(t *testing.T) bson.Raw {
	return document(t, bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "name", Value: "_id_"}})
}

func document(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	doc, err := bson.Marshal(d)
	check(t, err)
	return doc
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, store *storage.Store, fn func(w *storage.Writer) error) {
	t.Helper()
	check(t, store.Write(fn))
}

func read(t *testing.T, store *storage.Store, fn func(r *storage.Reader)) {
	t.Helper()
	check(t, store.Read(func(r *storage.Reader) error {
		fn(r)
		return nil
	}))
}
