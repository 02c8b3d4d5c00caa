package update_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// parse converts extended JSON to a raw document.
func parse(tb testing.TB, json string) bson.Raw {
	tb.Helper()
	return bsongen.FromJSON(tb, json)
}

// same fails the test unless two documents are equal byte for byte.
func same(tb testing.TB, got, want bson.Raw) {
	tb.Helper()
	if string(got) != string(want) {
		tb.Fatalf("got  %s\nwant %s\n%s", got, want, cmp.Diff([]byte(want), []byte(got)))
	}
}
