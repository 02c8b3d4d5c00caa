package oplog_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// doc turns relaxed extended JSON into raw BSON. Canonical extended JSON is a
// part of it.
func doc(t testing.TB, json string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatalf("%v in %s", err, json)
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

const (
	someUUID  = `{"$binary":{"base64":"AAECAwQFBgcICQoLDA0ODw==","subType":"04"}}`
	someTS    = `"ts":{"$timestamp":{"t":1700000000,"i":3}},"t":{"$numberLong":"5"}`
	someWall  = `"wall":{"$date":"2026-11-20T09:44:39.555Z"}`
	someFrame = `,` + someTS + `,"v":{"$numberLong":"2"},` + someWall
)

// entry completes the fields of an entry with optime, version and wall clock.
func entry(t testing.TB, fields string) bson.Raw {
	t.Helper()
	return doc(t, "{"+strings.TrimSuffix(strings.TrimSpace(fields), ",")+someFrame+"}")
}
