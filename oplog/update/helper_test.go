package update_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// parse turns extended JSON into a raw document. Field order and duplicate
// fields survive.
func parse(tb testing.TB, json string) bson.Raw {
	tb.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		tb.Fatalf("%v: %s", err, json)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// same fails the test if two documents differ in a byte.
func same(tb testing.TB, got, want bson.Raw) {
	tb.Helper()
	if string(got) != string(want) {
		tb.Fatalf("got  %s\nwant %s\n%s", got, want, cmp.Diff([]byte(want), []byte(got)))
	}
}
