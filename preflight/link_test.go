package preflight

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// A link continues only with the source and the settings that it was created with.
func TestLinkOfOthers(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1})
	target := client.Open(t, driver.Config{URI: set.URI()})
	setID := func(s string) bson.RawValue { return bson.RawValue{Type: bson.TypeObjectID, Value: []byte(s)} }
	const mine, other = "123456789012", "210987654321"
	store, err := checkpoint.New(checkpoint.Config{Target: target, Link: "l"})
	if err != nil {
		t.Fatal(err)
	}
	at := oplog.NewOpTime(100, 1, 1)
	if err := store.Create(t.Context(), checkpoint.State{
		Source: checkpoint.Source{SetName: "rs0", RBID: 1, Host: "a:1", ReplicaSetID: setID(mine)}, Writers: 1,
		Fingerprint: "f", Applied: at, AppliedWall: 100_000, FetchFrom: at,
	}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		source, fingerprint string
		level               Level
		err                 error
	}{
		"the same":       {mine, "f", OK, nil},
		"other settings": {mine, "g", Fail, nil},
		"another source": {other, "f", OK, checkpoint.ErrOtherSource},
	} {
		t.Run(name, func(t *testing.T) {
			c := &checker{cfg: Config{Link: "l", MetaDB: "replicator", Fingerprint: tt.fingerprint}, source: &server{name: "rs0", setID: setID(tt.source)}}
			err := c.link(t.Context(), &server{caller: target})
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if tt.err != nil {
				return
			}
			if f := c.report.Findings; len(f) != 1 || f[0].Level != tt.level || (tt.level == Fail) != strings.Contains(f[0].Detail, "other settings") {
				t.Errorf("found %v", f)
			}
		})
	}
}
