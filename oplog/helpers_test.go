package oplog_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

const (
	someUUID  = `{"$binary":{"base64":"AAECAwQFBgcICQoLDA0ODw==","subType":"04"}}`
	someTS    = `"ts":{"$timestamp":{"t":1700000000,"i":3}},"t":{"$numberLong":"5"}`
	someWall  = `"wall":{"$date":"2026-11-20T09:44:39.555Z"}`
	someFrame = `,` + someTS + `,"v":{"$numberLong":"2"},` + someWall
)

// entry completes the fields of an entry with optime, version and wall clock.
func entry(t testing.TB, fields string) bson.Raw {
	t.Helper()
	return bsongen.FromJSON(t, "{"+strings.TrimSuffix(strings.TrimSpace(fields), ",")+someFrame+"}")
}
