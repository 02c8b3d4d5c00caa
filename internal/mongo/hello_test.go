package mongo

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// release is a server that has hello, or does not.
type release struct {
	t     *testing.T
	hello bool
	err   error
}

func (r *release) Call(_ context.Context, cmd Command) (bson.Raw, error) {
	switch first, _ := cmd.Body.IndexErr(0); {
	case r.err != nil:
		return nil, r.err
	case first.Key() == "isMaster":
		return bsongen.FromJSON(r.t, `{"ok": 1, "ismaster": true, "secondary": false}`), nil
	case !r.hello:
		return nil, servererr.New(servererr.CommandNotFound, "no such command: 'hello'")
	}
	return bsongen.FromJSON(r.t, `{"ok": 1, "isWritablePrimary": true, "secondary": false}`), nil
}

// TestHello: a server before 4.4.2 is asked by the old name, and its answer is understood.
func TestHello(t *testing.T) {
	t.Parallel()
	for _, hello := range []bool{false, true} {
		reply, err := Hello(t.Context(), &release{t: t, hello: hello})
		_, old := reply.LookupErr("ismaster")
		if err != nil || !IsPrimary(reply) || (old == nil) == hello {
			t.Errorf("hello %t: %s, %v", hello, reply, err)
		}
	}
	if _, err := Hello(t.Context(), &release{t: t, err: servererr.New(servererr.Unauthorized, "no")}); !servererr.IsDenied(err) {
		t.Error(err)
	}
	for _, other := range []string{`{"ismaster": false, "secondary": true}`, `{"isWritablePrimary": false}`, `{"ok": 1}`} {
		if IsPrimary(bsongen.FromJSON(t, other)) {
			t.Error(other)
		}
	}
}
