package mongosim

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// transport carries a member's commands: to members of the same process by a
// call, over the links' conditions; to other hosts by TCP, without a login.
type transport struct {
	from *Member
	// mu guards outside, the idle connections to hosts that are not of the set.
	mu      sync.Mutex
	outside map[string][]*wire.Client
}

// Call sends a command and waits for its reply.
func (t *transport) Call(ctx context.Context, to string, cmd bson.Raw) (bson.Raw, error) {
	m := t.from.set.byHost(to)
	if m == nil {
		return t.callOutside(ctx, to, cmd)
	}
	network := t.from.set.net
	if err := network.Delay(ctx, t.from.name, m.name); err != nil {
		return nil, fmt.Errorf("call %s: %w", to, err)
	}
	reply, err := m.Call(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if err := network.Delay(ctx, m.name, t.from.name); err != nil {
		return nil, fmt.Errorf("reply of %s: %w", to, err)
	}
	return reply, nil
}

func (t *transport) callOutside(ctx context.Context, to string, cmd bson.Raw) (bson.Raw, error) {
	client, err := t.client(ctx, to)
	if err != nil {
		return nil, err
	}
	reply, err := client.Call(ctx, cmd)
	if err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("call %s: %w", to, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outside == nil {
		t.outside = map[string][]*wire.Client{}
	}
	t.outside[to] = append(t.outside[to], client)
	return reply, nil
}

func (t *transport) client(ctx context.Context, to string) (*wire.Client, error) {
	t.mu.Lock()
	if idle := t.outside[to]; len(idle) > 0 {
		client := idle[len(idle)-1]
		t.outside[to] = idle[:len(idle)-1]
		t.mu.Unlock()
		return client, nil
	}
	t.mu.Unlock()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", to, err)
	}
	client := wire.NewClient(conn)
	if err := t.shakeHands(ctx, client); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("shake hands with %s: %w", to, err)
	}
	return client, nil
}

// wireVersions are the newest wire protocols that the server versions speak.
var wireVersions = map[string]int32{"4.4": 9, "5.0": 13, "6.0": 17, "7.0": 21, "8.0": 25}

// shakeHands begins a connection as a member of a real set does: with isMaster by
// OP_QUERY, which names the caller. The reply does not matter unless it is an
// error.
func (t *transport) shakeHands(ctx context.Context, client *wire.Client) error {
	m := t.from
	version := wireVersions[m.set.opts.Dialect]
	hello := marshal(bson.D{
		{Key: "isMaster", Value: int32(1)},
		{Key: "client", Value: bson.D{
			{Key: "driver", Value: bson.D{{Key: "name", Value: "NetworkInterfaceTL"}, {Key: "version", Value: m.set.opts.dialect().Version}}},
		}},
		{Key: "hostInfo", Value: m.Host()},
		{Key: "internalClient", Value: bson.D{{Key: "minWireVersion", Value: version}, {Key: "maxWireVersion", Value: version}}},
		{Key: "hangUpOnStepDown", Value: false},
	})
	if _, err := client.Send(ctx, wire.Request{Body: hello, LegacyDB: "admin"}); err != nil {
		return err
	}
	reply, err := client.Receive(ctx)
	if err != nil {
		return err
	}
	if ok, _ := reply.Body.Lookup("ok").AsFloat64OK(); ok != 1 {
		return fmt.Errorf("isMaster was refused: %s", reply.Body)
	}
	return nil
}

// close closes the connections to the outside.
func (t *transport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.outside {
		for _, client := range idle {
			_ = client.Close()
		}
	}
	t.outside = nil
}

// clone copies the data of a member for the initial sync of another one.
func (s *Set) clone(ctx context.Context, from *Member, host string) (*storage.Store, error) {
	m := s.byHost(host)
	if m == nil {
		return nil, fmt.Errorf("mongosim: initial sync from %s, which is not of this process: %w", host, ErrDown)
	}
	if err := s.net.Delay(ctx, m.name, from.name); err != nil {
		return nil, fmt.Errorf("mongosim: initial sync from %s: %w", host, err)
	}
	v, ok := m.view()
	if !ok {
		return nil, fmt.Errorf("mongosim: initial sync from %s: %w", host, ErrDown)
	}
	return m.disk().CloneAt(v.Applied.TS, from.storage())
}
