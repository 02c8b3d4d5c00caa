package origin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// waiting is how long a test waits for an expected condition.
const waiting = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waiting)
	t.Cleanup(cancel)
	return ctx
}

// open connects as the program does.
func open(t *testing.T, uri string) *driver.Set {
	t.Helper()
	return client.Open(t, driver.Config{URI: uri, AppName: mongosim.Stage})
}

// command runs a command in extended JSON.
func command(t *testing.T, c mongo.Caller, db, cmd string) bson.Raw {
	t.Helper()
	reply, err := c.Call(within(t), mongo.Command{DB: db, Body: bsongen.FromJSON(t, cmd)})
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	if refused, err := mongo.WriteErrors(reply); err != nil || len(refused) > 0 {
		t.Fatalf("%s: %v %v", cmd, refused, err)
	}
	return reply
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("wait until %s: %v", what, context.Cause(ctx))
		}
	}
}

func secondary(t *testing.T, set *mongosim.Set) *mongosim.Member {
	t.Helper()
	for _, m := range set.Members() {
		if m != set.Primary() {
			return m
		}
	}
	t.Fatal("there is no secondary")
	return nil
}

// script is a member that answers from a list, whatever it is asked.
type script struct {
	t       *testing.T
	replies []any // bson text, or an error
	asked   []string
}

func (s *script) Host() string { return "m:1" }

func (s *script) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	body, _ := cmd.Body.Elements()
	words := []string{cmd.DB, body[0].Key(), body[0].Value().String()}
	for _, e := range body[1:] {
		if slices.Contains([]string{"filter", "sort", "readConcern", "maxTimeMS"}, e.Key()) {
			words = append(words, e.Key(), e.Value().String())
		}
	}
	s.asked = append(s.asked, strings.Join(words, " "))
	if len(s.replies) == 0 {
		return nil, errors.New("the script has ended")
	}
	next := s.replies[0]
	s.replies = s.replies[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return bsongen.FromJSON(s.t, next.(string)), nil
}

// found is a reply to a find.
func found(docs ...string) string {
	return `{"cursor": {"firstBatch": [` + strings.Join(docs, ",") + `], "id": 0, "ns": "a.b"}, "ok": 1}`
}

func codeOf(err error) servererr.Code {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e.Code
	}
	return 0
}
