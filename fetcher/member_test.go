package fetcher

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// member is a Source over TCP.
type member struct {
	host, user, password string

	mu   sync.Mutex
	idle []*wire.Client
	done bool
}

func connect(t testing.TB, m *mongosim.Member) *member {
	src := &member{host: m.Host()}
	t.Cleanup(src.close)
	return src
}

func (m *member) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	for _, c := range m.idle {
		_ = c.Close()
	}
}

func (m *member) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c, err := m.client(ctx)
	if err == nil {
		var reply bson.Raw
		body := append(slices.Clone(cmd.Body[:len(cmd.Body)-1]), marshal(bson.D{{Key: "$db", Value: cmd.DB}})[4:]...)
		body[0], body[1], body[2], body[3] = byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), byte(len(body)>>24)
		if reply, err = c.Call(ctx, body); err == nil {
			m.giveBack(c)
			return reply, mongo.Check(reply)
		}
		_ = c.Close()
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, &mongo.LostError{Host: m.host, Err: err}
}

func (m *member) giveBack(c *wire.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.done {
		_ = c.Close()
		return
	}
	m.idle = append(m.idle, c)
}

func (m *member) client(ctx context.Context) (*wire.Client, error) {
	m.mu.Lock()
	if n := len(m.idle); n > 0 {
		c := m.idle[n-1]
		m.idle = m.idle[:n-1]
		m.mu.Unlock()
		return c, nil
	}
	m.mu.Unlock()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.host)
	if err != nil {
		return nil, err
	}
	c := wire.NewClient(conn)
	if m.user != "" {
		if err := m.login(ctx, c); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}

func (m *member) login(ctx context.Context, c *wire.Client) error {
	client, err := scram.SHA256.NewClient(m.user, m.password, "")
	if err != nil {
		return err
	}
	talk := client.NewConversation()
	step := bson.D{{Key: "saslStart", Value: 1}, {Key: "mechanism", Value: "SCRAM-SHA-256"}}
	challenge := ""
	for {
		answer, err := talk.Step(challenge)
		if err != nil {
			return err
		}
		reply, err := c.Call(ctx, marshal(append(step, bson.E{Key: "payload", Value: []byte(answer)}, bson.E{Key: "$db", Value: "admin"})))
		if err == nil {
			err = mongo.Check(reply)
		}
		if err != nil {
			return err
		}
		if reply.Lookup("done").Boolean() {
			return nil
		}
		_, payload := reply.Lookup("payload").Binary()
		challenge = string(payload)
		step = bson.D{{Key: "saslContinue", Value: 1}, {Key: "conversationId", Value: reply.Lookup("conversationId").Int32()}}
	}
}

// insert writes {_id: id} into app.c and waits for w members.
func insert(ctx context.Context, m *mongosim.Member, id, w any) error {
	reply, err := m.Call(ctx, marshal(bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: w}}},
		{Key: "$db", Value: "app"},
	}))
	if err == nil {
		err = mongo.Check(reply)
	}
	if err == nil {
		if refused, _ := mongo.WriteErrors(reply); len(refused) > 0 {
			err = &refused[0].Error
		} else if e := mongo.ConcernError(reply); e != nil {
			err = e
		}
	}
	return err
}

// newest is the last entry that a member has applied.
func newest(t testing.TB, m *mongosim.Member) oplog.OpTime {
	t.Helper()
	v, ok := m.Status()
	if !ok {
		t.Fatalf("member %d is down", m.ID())
	}
	return v.LastApplied
}

func succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
