package lease

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// memory is a store in memory, for bubbles of synctest. It knows no sessions: the tests
// with the embedded set are for these.
type memory struct {
	t testing.TB

	mu   sync.Mutex // guards the rest
	docs map[string]bson.Raw
	// skew is how far the store's clock is ahead.
	skew time.Duration
	// fault, if not nil, is called before each command. It returns whether the command is
	// executed, and the error in place of its reply.
	fault func(ctx context.Context, name string) (executed bool, err error)
	// sent counts the commands by their name.
	sent map[string]int
}

// newMemory has the document "a" in term 0.
func newMemory(t testing.TB) *memory {
	r := Record{Instance: "1"}
	return &memory{t: t, docs: map[string]bson.Raw{"a": metadata.Document(func(dst []byte) []byte { return r.Append(metadata.ByID("a")(dst)) })}, sent: map[string]int{}}
}

func (m *memory) now() time.Time { return time.Now().Add(m.skew) }

// Call implements mongo.Caller.
func (m *memory) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first := must.Get(cmd.Body.IndexErr(0))(m.t)
	m.mu.Lock()
	fault := m.fault
	m.sent[first.Key()]++
	m.mu.Unlock()
	if cmd.Overdue() {
		return nil, mongo.ErrTooLate
	}
	executed, err := true, ctx.Err()
	if fault != nil && err == nil {
		executed, err = fault(ctx, first.Key())
	}
	if !executed {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	reply := m.execute(first.Key(), cmd)
	if err != nil {
		return nil, err
	}
	return reply, nil
}

func (m *memory) execute(name string, cmd mongo.Command) bson.Raw {
	switch name {
	case "hello":
		return must.Get(bson.Marshal(bson.D{{Key: "localTime", Value: bson.DateTime(m.now().UnixMilli())}, {Key: "ok", Value: 1}}))(m.t)
	case "find":
		found := bson.A{}
		for _, doc := range m.matching(cmd.Body.Lookup("filter").Document()) {
			found = append(found, doc)
		}
		return must.Get(bson.Marshal(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.c"}, {Key: "firstBatch", Value: found}}}, {Key: "ok", Value: 1}}))(m.t)
	case "update":
		found := m.matching(cmd.Docs[0].Lookup("q").Document())
		for id, doc := range found {
			opts := serverupdate.Options{Clock: func() bson.DateTime { return bson.DateTime(m.now().UnixMilli()) }}
			m.docs[id] = must.Get(opts.Apply(doc, cmd.Docs[0].Lookup("u")))(m.t)
		}
		return must.Get(bson.Marshal(bson.D{{Key: "n", Value: len(found)}, {Key: "ok", Value: 1}}))(m.t)
	}
	m.t.Errorf("command %s", name)
	return nil
}

func (m *memory) matching(filter bson.Raw) map[string]bson.Raw {
	match := must.Get(serverquery.Compile(filter, serverquery.Options{}))(m.t)
	found := maps.Clone(m.docs)
	maps.DeleteFunc(found, func(_ string, doc bson.Raw) bool { return !must.Get(match.Match(doc))(m.t) })
	return found
}

// updates returns how many updates were sent.
func (m *memory) updates() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent["update"]
}

// fail sets the fault.
func (m *memory) fail(fault func(ctx context.Context, name string) (bool, error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
}

// elect makes another member the primary: its clock is ahead by skew, and it has the
// document that the store had then, nil for the present one.
func (m *memory) elect(skew time.Duration, doc bson.Raw) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew = skew
	if doc != nil {
		m.docs["a"] = doc
	}
}

func (m *memory) doc() bson.Raw {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.docs["a"]
}

func (m *memory) record() Record {
	r := metadata.NewReader(m.doc())
	record := ReadRecord(r)
	must.Succeed(m.t, r.Err())
	return record
}

// set changes fields of the document.
func (m *memory) set(fields func(dst []byte) []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: metadata.Document(func(dst []byte) []byte { return metadata.AppendDoc(dst, "$set", fields) })}
	m.docs["a"] = must.Get(serverupdate.Options{}.Apply(m.docs["a"], u))(m.t)
}

// process is one that wants the lease.
type process struct {
	name   string
	store  *memory
	keeper *Keeper
	watch  *Watch
	ctx    context.Context // of Lead
	end    func()
	lease  *Lease
	failed atomic.Int64 // renewals
}

// process starts one, whose Keeper runs until the test ends.
func (m *memory) process(name string) *process {
	p := &process{name: name, store: m, watch: NewWatch(name)}
	p.keeper = NewKeeper(KeeperConfig{Target: m, DB: "db", Collection: "c", ID: "a", Holder: name, Renewed: func(_ time.Duration, err error) {
		if err != nil {
			p.failed.Add(1)
		}
	}})
	p.lead()
	ctx, cancel := context.WithCancelCause(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.keeper.Run(ctx) })
	m.t.Cleanup(func() {
		cancel(nil)
		running.Wait()
		p.end()
	})
	return p
}

func (p *process) lead() { p.ctx, p.end = p.keeper.Lead(context.Background()) }

// acquire acquires the lease with the defaults.
func (p *process) acquire(claim Claim) error {
	claim.TTL = DefaultTTL
	l, _, err := Acquire(p.ctx, Config{
		Target: p.store, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "a", Holder: p.name, Keeper: p.keeper, Claim: claim,
	}, p.store.record(), 0)
	if err == nil {
		p.lease = l
	}
	return err
}

// again retries lost commands, too: the writes are retryable.
func again(err error) bool { return mongo.Passes(err) || isLost(err) }

// standBy waits for the lease as a process does that stands by, and acquires it.
func (p *process) standBy(every time.Duration) error {
	for {
		s, err := p.watch.Look(p.ctx, p.store, p.store.record())
		if err == nil && s.Free {
			return p.acquire(Claim{Unmoved: s.Unmoved})
		}
		time.Sleep(min(every, max(s.Wait, time.Millisecond)))
	}
}

func appendTerm(n int64) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "term", n) }
}
