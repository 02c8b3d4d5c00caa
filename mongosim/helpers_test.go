package mongosim

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
)

// patience is how long a test waits for a required event.
const patience = 2 * time.Minute

// within is the context of a test that must not hang.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// quick starts a set whose elections are faster than the default.
func quick(t *testing.T, opts Options) *Set {
	t.Helper()
	if opts.ElectionTimeout == 0 {
		opts.HeartbeatInterval, opts.ElectionTimeout = 50*time.Millisecond, 500*time.Millisecond
	}
	return StartTest(t, opts)
}

// must fails the test if there is an error.
func must[V any](t *testing.T) func(v V, err error) V {
	t.Helper()
	return func(v V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func succeed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(ctx context.Context, t *testing.T, what string, done func() bool) {
	t.Helper()
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

// view returns a running member's view.
func view(t *testing.T, m *Member) repl.View {
	t.Helper()
	v, ok := m.view()
	if !ok {
		t.Fatalf("member %d is down", m.ID())
	}
	return v
}

// client is a raw connection to one member.
type client struct {
	t *testing.T
	*wire.Client
}

func dial(t *testing.T, m *Member) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", m.Host(), patience)
	if err != nil {
		t.Fatalf("connect to member %d: %v", m.ID(), err)
	}
	c := &client{t, wire.NewClient(conn)}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func body(db string, cmd bson.D) bson.Raw {
	return marshal(append(cmd, bson.E{Key: "$db", Value: db}))
}

// call sends a command. A refusal is a *servererr.Error, with its labels.
func (c *client) call(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	reply, err := c.Call(ctx, body(db, cmd))
	if err != nil {
		return nil, err
	}
	return reply, refusal(reply)
}

// refusal is the first of a reply's errors: its own, a write's, or its write
// concern's.
func refusal(reply bson.Raw) error {
	for _, path := range [][]string{{}, {"writeErrors", "0"}, {"writeConcernError"}} {
		doc := reply
		if len(path) > 0 {
			found, err := reply.LookupErr(path...)
			if err != nil {
				continue
			}
			doc = found.Document()
		}
		code, ok := doc.Lookup("code").AsInt64OK()
		if !ok {
			continue
		}
		text, _ := doc.Lookup("errmsg").StringValueOK()
		e := servererr.New(servererr.Code(code), "%s", text)
		if labels, ok := reply.Lookup("errorLabels").ArrayOK(); ok {
			values, _ := labels.Values()
			for _, v := range values {
				e.Labels = append(e.Labels, v.StringValue())
			}
		}
		return e
	}
	return nil
}

// run sends a command that has to succeed.
func (c *client) run(ctx context.Context, db string, cmd bson.D) bson.Raw {
	c.t.Helper()
	reply, err := c.call(ctx, db, cmd)
	if err != nil {
		c.t.Fatalf("%s on %s: %v", cmd[0].Key, db, err)
	}
	return reply
}

// insert writes one document {_id: id} into app.c.
func (c *client) insert(ctx context.Context, id any, concern bson.D) error {
	_, err := c.call(ctx, "app", bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: concern},
	})
	return err
}

var majority = bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(10000)}}

func w(n int) bson.D {
	return bson.D{{Key: "w", Value: int32(n)}, {Key: "wtimeout", Value: int32(10000)}}
}

// nearest allows a command on any member that has data.
var nearest = bson.E{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "nearest"}}}

// find returns the first batch.
func (c *client) find(ctx context.Context, db, coll string, more ...bson.E) []bson.Raw {
	c.t.Helper()
	cmd := append(bson.D{{Key: "find", Value: coll}, nearest}, more...)
	return batch(c.t, c.run(ctx, db, cmd), "firstBatch")
}

func batch(t *testing.T, reply bson.Raw, name string) []bson.Raw {
	t.Helper()
	var docs []bson.Raw
	succeed(t, reply.Lookup("cursor", name).Unmarshal(&docs))
	return docs
}

// ids are the _ids of documents, or of the documents that entries insert, as text.
func ids(docs []bson.Raw, path ...string) []string {
	var list []string
	for _, doc := range docs {
		if v, err := doc.LookupErr(append(path, "_id")...); err == nil {
			if s, ok := v.StringValueOK(); ok {
				list = append(list, s)
			} else {
				list = append(list, v.String())
			}
		}
	}
	return list
}

// hash is the md5 of dbHash over the database app.
func hash(ctx context.Context, t *testing.T, m *Member) string {
	t.Helper()
	return dial(t, m).run(ctx, "app", bson.D{{Key: "dbHash", Value: 1}, nearest}).Lookup("md5").StringValue()
}

func wantCode(t *testing.T, what string, err error, code servererr.Code) {
	t.Helper()
	if e, ok := err.(*servererr.Error); !ok || e.Code != code { //nolint:errorlint // never wrapped
		t.Errorf("%s: %v, want code %d (%s)", what, err, code, code)
	}
}

// others are the members of a set but one.
func others(s *Set, but *Member) []*Member {
	var rest []*Member
	for _, m := range s.Members() {
		if m != but {
			rest = append(rest, m)
		}
	}
	return rest
}

func do(ctx context.Context, t *testing.T, s *Set, format string, args ...any) {
	t.Helper()
	a, err := ParseAction(fmt.Sprintf(format, args...))
	succeed(t, err)
	succeed(t, s.Do(ctx, a))
}
