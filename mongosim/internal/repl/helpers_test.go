package repl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// cluster is a set of members that talk through calls of functions, with links
// that a test can cut. It lives inside a synctest bubble.
type cluster struct {
	t     *testing.T
	ctx   context.Context
	hosts []string
	nodes map[string]*testNode
	mu    sync.Mutex
	cut   map[[2]string]bool
	delay time.Duration
	tune  func(*Config)
}

// testNode is a member with the least of a command layer.
type testNode struct {
	*Node
	c     *cluster
	host  string
	store *storage.Store
	stop  context.CancelCauseFunc
	done  chan struct{}

	mu      sync.Mutex
	cursors map[int64]*testCursor
	lastID  int64
	hooks   []string
}

func hostName(i int) string { return string(rune('a'+i)) + ":1" }

// newCluster makes n members that run and know of nothing yet.
func newCluster(t *testing.T, n int, tune func(*Config)) *cluster {
	c := &cluster{t: t, nodes: map[string]*testNode{}, cut: map[[2]string]bool{}, tune: tune}
	ctx, stop := context.WithCancelCause(context.Background())
	c.ctx = ctx
	for i := range n {
		c.hosts = append(c.hosts, hostName(i))
		c.start(hostName(i), storage.New(storage.Options{}))
	}
	t.Cleanup(func() {
		stop(nil)
		for _, tn := range c.nodes {
			<-tn.done
		}
	})
	return c
}

// start makes a member and runs it.
func (c *cluster) start(host string, store *storage.Store) *testNode {
	tn := c.make(host, store)
	ctx, stop := context.WithCancelCause(c.ctx)
	tn.stop = stop
	c.mu.Lock()
	c.nodes[host] = tn
	c.mu.Unlock()
	go func() {
		defer close(tn.done)
		_ = tn.Run(ctx)
	}()
	return tn
}

// make makes a member that does nothing by itself.
func (c *cluster) make(host string, store *storage.Store) *testNode {
	tn := &testNode{c: c, host: host, store: store, done: make(chan struct{}), cursors: map[int64]*testCursor{}}
	cfg := Config{
		Host: host, SetName: "rs", Store: store, Seed: 1, Now: time.Now, Transport: link{c, host},
		Dialect: opwrite.Dialect{Version: "5.0.7", FCV: "5.0"},
		Clone: func(_ context.Context, from string) (*storage.Store, error) {
			src := c.node(from)
			if src == nil || !c.open(host, from) {
				return nil, errors.New("unreachable")
			}
			var at bson.Timestamp
			_ = src.store.Read(func(r *storage.Reader) error {
				if e, ok := r.Oplog().Last(); ok {
					at = e.At.TS
				}
				return nil
			})
			return src.store.CloneAt(at, storage.Options{})
		},
		Hooks: Hooks{
			SteppedUp:   func(term int64, _ []opwrite.Prepared) { tn.note(fmt.Sprintf("up %d", term)) },
			SteppedDown: func() { tn.note("down") },
			RolledBack: func() {
				tn.mu.Lock()
				tn.cursors = map[int64]*testCursor{}
				tn.mu.Unlock()
				tn.note("rolled back")
			},
		},
	}
	if os.Getenv("REPL_TEST_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if c.tune != nil {
		c.tune(&cfg)
	}
	n, err := New(cfg)
	if err != nil {
		c.t.Fatalf("make node %s: %v", host, err)
	}
	tn.Node = n
	return tn
}

func (tn *testNode) note(s string) {
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.hooks = append(tn.hooks, s)
}

// kill stops a member; its store stays.
func (c *cluster) kill(host string) *storage.Store {
	tn := c.node(host)
	c.mu.Lock()
	delete(c.nodes, host)
	c.mu.Unlock()
	tn.stop(nil)
	<-tn.done
	return tn.store
}

func (c *cluster) node(host string) *testNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[host]
}

func (c *cluster) open(a, b string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.cut[[2]string{a, b}]
}

// split cuts all links between two groups, both ways.
func (c *cluster) split(a, b []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range a {
		for _, y := range b {
			c.cut[[2]string{x, y}], c.cut[[2]string{y, x}] = true, true
		}
	}
}

func (c *cluster) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = map[[2]string]bool{}
}

// configDoc builds a configuration of the first n hosts; extra adds fields to
// members.
func configDoc(version int32, n int, extra map[int]bson.D, settings bson.D) bson.Raw {
	members := bson.A{}
	for i := range n {
		m := bson.D{{Key: "_id", Value: int32(i)}, {Key: "host", Value: hostName(i)}}
		m = append(m, extra[i]...)
		members = append(members, m)
	}
	d := bson.D{{Key: "_id", Value: "rs"}, {Key: "version", Value: version}, {Key: "members", Value: members}}
	if settings != nil {
		d = append(d, bson.E{Key: "settings", Value: settings})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		panic(err)
	}
	return raw
}

// initiate initiates the set at the first host and waits until it works.
func (c *cluster) initiate(extra map[int]bson.D, settings bson.D) *testNode {
	c.t.Helper()
	if err := c.node(c.hosts[0]).Initiate(c.ctx, configDoc(1, len(c.hosts), extra, settings)); err != nil {
		c.t.Fatalf("initiate: %v", err)
	}
	return c.settled()
}

// settled waits until there is one writable primary and every other data-bearing
// member is a secondary with a source or everything.
func (c *cluster) settled() *testNode {
	c.t.Helper()
	var primary *testNode
	c.until("the set settles", func() bool {
		primary = nil
		for _, h := range c.hosts {
			tn := c.node(h)
			if tn == nil {
				continue
			}
			v := tn.View()
			switch {
			case v.State == oplog.MemberPrimary && v.Writable && primary == nil:
				primary = tn
			case v.State == oplog.MemberSecondary || v.State == oplog.MemberArbiter:
			default:
				return false
			}
		}
		return primary != nil
	})
	return primary
}

// until waits, in virtual time, for something to become true.
func (c *cluster) until(what string, is func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			for _, h := range c.hosts {
				if tn := c.node(h); tn != nil {
					v := tn.View()
					c.t.Logf("%s: %s term %d writable %v applied %s committed %s source %q fatal %q", h, v.State, v.Term, v.Writable, v.Applied, v.Committed, v.Source, tn.Fatal())
				}
			}
			c.t.Fatalf("not within five minutes: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// write appends a no-op entry that says what.
func (tn *testNode) write(what string) (oplog.OpTime, error) {
	m, err := tn.writeNoopObject(document(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "w", what)
	}), func() (int64, error) {
		if !tn.View().Writable {
			return 0, notPrimary("not master")
		}
		return tn.WriteTerm()
	})
	if err != nil {
		return oplog.OpTime{}, err
	}
	tn.Wrote(m.at, m.wall)
	return m.at, nil
}

func (tn *testNode) mustWrite(what string) oplog.OpTime {
	tn.c.t.Helper()
	at, err := tn.write(what)
	if err != nil {
		tn.c.t.Fatalf("write %q on %s: %v", what, tn.host, err)
	}
	return at
}

// entries are the optimes in a member's oplog, words what test entries say.
func (tn *testNode) entries() (all []oplog.OpTime) {
	_ = tn.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			all = append(all, e.At)
		}
		return nil
	})
	return all
}

func (tn *testNode) words() (all []string) {
	_ = tn.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			if v, err := e.Raw.LookupErr("o", "w"); err == nil {
				all = append(all, v.StringValue())
			}
		}
		return nil
	})
	return all
}

func (tn *testNode) has(word string) bool { return slices.Contains(tn.words(), word) }

func wantCode(t *testing.T, err error, code servererr.Code) {
	t.Helper()
	var e *servererr.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("error %v, want code %s", err, code)
	}
}

func (c *cluster) newStore() *storage.Store { return storage.New(storage.Options{}) }

// Fatal returns why this member has permanently stopped following the set, "" if
// it has not. Where a server would exit, a Node stays in RECOVERING.
func (n *Node) Fatal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fatal
}
