package repl

import (
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// FuzzCommands feeds strange commands and replies to everything that reads any.
// Nothing may panic; a configuration that is accepted is read back the same.
func FuzzCommands(f *testing.F) {
	f.Add([]byte(configDoc(1, 3, nil, nil)))
	f.Add([]byte(configDoc(1, 1, map[int]bson.D{0: {{Key: "tags", Value: bson.D{{Key: "a", Value: "b"}}}}},
		bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "m", Value: bson.D{{Key: "a", Value: 1}}}}}})))
	f.Add([]byte(defaultConfig("rs", "a")))
	f.Add([]byte{5, 0, 0, 0, 0})
	f.Add([]byte(command("replSetHeartbeat", func(dst []byte) []byte { return dst })))
	f.Fuzz(func(t *testing.T, doc []byte) {
		_, _ = parseBeat(doc)
		_, _ = parsePage(doc)
		_, _ = entryMoment(doc)
		okReply(doc)
		if c, err := parseConfig(doc); err == nil && c.validate() == nil {
			made := c.with(c.version, max(c.term, 1), "5.0.7")
			again, err := parseConfig(made.doc)
			if err != nil {
				t.Fatalf("our own form of a configuration is refused: %v", err)
			}
			if string(again.with(again.version, again.term, "5.0.7").doc) != string(made.doc) {
				t.Fatal("our own form of a configuration is read as another")
			}
		}
		if rawbson.Validate(doc) != nil {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			tn := quiet(t)
			_, _ = tn.Heartbeat(doc)
			_, _ = tn.RequestVotes(doc)
			_ = tn.UpdatePosition(doc)
		})
	})
}
