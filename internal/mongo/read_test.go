package mongo

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// TestReadAll: after a transient error the read starts again, with a cursor of the same
// session; other errors, and a lost reply, are returned at once.
func TestReadAll(t *testing.T) {
	t.Parallel()
	first := `{"ok": 1, "cursor": {"id": {"$numberLong": "7"}, "ns": "d.c", "firstBatch": [{"a": 1}]}}`
	rest := `{"ok": 1, "cursor": {"id": {"$numberLong": "0"}, "ns": "d.c", "nextBatch": [{"a": 2}]}}`
	for name, tt := range map[string]struct {
		refusals []error // in place of replies, nil for none
		want     string
		err      bool
	}{
		"at once":       {nil, "find getMore", false},
		"at first":      {[]error{servererr.New(servererr.Interrupted, "no")}, "find find getMore", false},
		"on the way":    {[]error{nil, servererr.New(servererr.NoSuchTransaction, "no")}, "find getMore find getMore", false},
		"cursor gone":   {[]error{nil, servererr.New(servererr.CursorNotFound, "no")}, "find getMore find getMore", false},
		"not allowed":   {[]error{servererr.New(servererr.Unauthorized, "no")}, "find", true},
		"another":       {[]error{servererr.New(servererr.NotWritablePrimary, "no")}, "find", true},
		"no answer":     {[]error{nil, &LostError{Err: errors.New("reset")}}, "find getMore", true},
		"not confirmed": {[]error{&UnconfirmedError{Err: servererr.New(servererr.Interrupted, "no")}}, "find", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				lsid := SessionID("a")
				c := callerFunc(func(cmd Command) (bson.Raw, error) {
					elems, _ := cmd.Body.Elements()
					asked = append(asked, elems[0].Key())
					if id, ok := cmd.Body.Lookup("lsid").DocumentOK(); !ok || !strings.EqualFold(id.String(), lsid.String()) {
						t.Errorf("%s is in the session %s", elems[0].Key(), id)
					}
					if n := len(asked); n <= len(tt.refusals) && tt.refusals[n-1] != nil {
						return nil, tt.refusals[n-1]
					}
					if elems[0].Key() == "find" {
						return bsongen.FromJSON(t, first), nil
					}
					return bsongen.FromJSON(t, rest), nil
				})
				docs, err := Retry{}.ReadAll(t.Context(), c, lsid, "d", bsongen.FromJSON(t, `{"find": "c"}`))
				if got := strings.Join(asked, " "); got != tt.want || tt.err != (err != nil) || err == nil && len(docs) != 2 {
					t.Errorf("asked %s, got %d documents, %v; want %s", got, len(docs), err, tt.want)
				}
			})
		})
	}
}

// TestReadEach: a read starts again only while nothing was handed over: nothing is handed over twice.
func TestReadEach(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at   int // the call that is refused
		want string
		docs int
		err  bool
	}{
		"at first": {1, "find find getMore", 2, false}, "on the way": {2, "find getMore", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked []string
				c := callerFunc(func(cmd Command) (bson.Raw, error) {
					asked = append(asked, cmd.Body.Index(0).Key())
					switch {
					case len(asked) == tt.at:
						return nil, servererr.New(servererr.Interrupted, "no")
					case asked[len(asked)-1] == "find":
						return bsongen.FromJSON(t, `{"ok": 1, "cursor": {"id": {"$numberLong": "7"}, "ns": "d.c", "firstBatch": [{"a": 1}]}}`), nil
					}
					return bsongen.FromJSON(t, `{"ok": 1, "cursor": {"id": {"$numberLong": "0"}, "ns": "d.c", "nextBatch": [{"a": 2}]}}`), nil
				})
				docs := 0
				err := Retry{}.ReadEach(t.Context(), c, "d", bsongen.FromJSON(t, `{"find": "c"}`), func(batch []bson.Raw) error {
					docs += len(batch)
					return nil
				})
				if got := strings.Join(asked, " "); got != tt.want || docs != tt.docs || tt.err != (err != nil) {
					t.Errorf("asked %s, got %d documents, %v; want %s, %d documents", got, docs, err, tt.want, tt.docs)
				}
			})
		})
	}
}

type callerFunc func(cmd Command) (bson.Raw, error)

func (f callerFunc) Call(_ context.Context, cmd Command) (bson.Raw, error) { return f(cmd) }
