package mongosim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/fault"
	"github.com/oplogrep/replicator/mongosim/internal/command/admin"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// GitVersion is the gitVersion that buildInfo of a member returns, and no real server
// does.
const GitVersion = admin.GitVersion

// ErrDown is returned by calls to a member that is not running.
var ErrDown = errors.New("the member is down")

// Member is one member of a Set. Its data outlives Kill and Stop, as a disk would.
type Member struct {
	set  *Set
	id   int
	opts MemberOptions
	name string
	port *port
	// full and skew are set by DiskFull and SkewClock, removed by RemoveMember.
	full atomic.Bool
	skew atomic.Int64
	// pressure is set by SetPressure; nil is none.
	pressure atomic.Pointer[dispatch.Pressure]
	removed  atomic.Bool

	// turn lets one start, stop or wipe at a time. It is taken before mu, and guards
	// runs, which counts the starts: each has identifiers of its own.
	turn sync.Mutex
	runs int
	// unclean is set by Kill until the next start, which raises the rollback id, as a
	// server does after an unclean shutdown. turn guards it.
	unclean bool
	// mu guards run, nil while the member is down, and store, the disk, which only
	// Wipe replaces.
	mu    sync.Mutex
	run   *process
	store *storage.Store
}

func newMember(set *Set, id int, opts MemberOptions) (*Member, error) {
	m := &Member{set: set, id: id, opts: opts, name: "m" + strconv.Itoa(id)}
	m.store = storage.New(m.storage())
	if r := set.opts.Recording; r != nil {
		if err := r.fill(m.store); err != nil {
			return nil, err
		}
	}
	var err error
	if m.port, err = set.opts.reserve(set.ctx, id); err != nil {
		return nil, fmt.Errorf("mongosim: member %d: %w", id, err)
	}
	if host := set.opts.Hostname; host != "" && m.opts.Name == "" {
		_, number, _ := net.SplitHostPort(m.port.addr) // it was formatted from both
		m.opts.Name = net.JoinHostPort(host, number)
	}
	return m, nil
}

// records is where the record ids of the member's collections begin: above and below
// those of others, so that no two members have the same document at the same place.
func (m *Member) records() storage.RecordID {
	const apart = 60
	if m.id == 0 {
		return 0
	}
	return storage.RecordID(apart / m.id)
}

// storage returns the options of the member's store.
func (m *Member) storage() storage.Options {
	return storage.Options{
		HistorySeconds: uint32(m.set.opts.SnapshotHistory / time.Second), //nolint:gosec // An hour at most: see validate.
		OplogBytes:     m.set.opts.OplogBytes, Full: m.full.Load, Records: m.records(),
		Filter: func(expr bson.Raw, coll *bsonorder.Collator) (func(doc bson.Raw) bool, error) {
			matcher, err := serverquery.Compile(expr, serverquery.Options{Collator: coll})
			if err != nil {
				return nil, err
			}
			return func(doc bson.Raw) bool {
				match, err := matcher.Match(doc)
				return err == nil && match
			}, nil
		},
	}
}

// Host returns the member's host:port in the set's configuration.
func (m *Member) Host() string {
	if m.opts.Name != "" {
		return m.opts.Name
	}
	return m.port.addr
}

// Address returns the host:port at which the member listens: Host, unless
// MemberOptions.Name is set.
func (m *Member) Address() string { return m.port.addr }

// ID returns the member's number: its index in Set.Members and its _id in the set's
// configuration.
func (m *Member) ID() int { return m.id }

// disk returns the member's data. Wipe replaces it.
func (m *Member) disk() *storage.Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store
}

// Start starts a member that is down, with its data. It is an error if the member
// runs.
func (m *Member) Start() error {
	m.turn.Lock()
	defer m.turn.Unlock()
	if m.process() != nil {
		return fmt.Errorf("mongosim: start %s: it is running", m.Host())
	}
	if m.set.ctx.Err() != nil {
		return fmt.Errorf("mongosim: start %s: %w", m.Host(), ErrClosed)
	}
	m.runs++
	p, err := m.newProcess()
	if err != nil {
		return fmt.Errorf("mongosim: start %s: %w", m.Host(), err)
	}
	m.unclean = false
	m.mu.Lock()
	m.run = p
	m.mu.Unlock()
	p.done.Go(func() {
		if err := p.node.Run(p.ctx); err != nil && p.ctx.Err() == nil {
			m.set.opts.Log.Error("member stopped", keyHost, m.Host(), keyError, err)
		}
	})
	p.done.Go(func() { m.accept(p) })
	p.done.Go(func() { m.expire(p) })
	return nil
}

// Stop shuts the member down cleanly: a primary steps down first, and all its data is
// kept. It returns ErrDown if the member is down.
func (m *Member) Stop(ctx context.Context) error {
	p := m.process()
	if p == nil {
		return fmt.Errorf("mongosim: stop %s: %w", m.Host(), ErrDown)
	}
	if v := p.node.View(); v.Writable && len(v.Members) > 1 {
		timeout := m.set.opts.ElectionTimeout
		if err := p.node.StepDown(ctx, timeout*2, timeout, true); err != nil && p.node.View().Writable {
			return fmt.Errorf("mongosim: stop %s: %w", m.Host(), err)
		}
	}
	m.turn.Lock()
	defer m.turn.Unlock()
	m.halt()
	return nil
}

// Kill crashes the member. Entries that are not durable are lost (see
// Options.JournalDelay), except committed ones. It returns ErrDown if the member is
// down.
func (m *Member) Kill() error {
	m.turn.Lock()
	defer m.turn.Unlock()
	p := m.halt()
	if p == nil {
		return fmt.Errorf("mongosim: kill %s: %w", m.Host(), ErrDown)
	}
	m.unclean = true
	durable := p.node.View().Durable
	if durable.IsNull() {
		return nil
	}
	err := m.disk().Write(func(w *storage.Writer) error {
		to := durable.TS
		if stable := w.Stable(); stable.After(to) {
			to = stable
		}
		return w.RollbackTo(to)
	})
	if err != nil {
		return fmt.Errorf("mongosim: kill %s: drop writes that are not durable: %w", m.Host(), err)
	}
	return nil
}

// Wipe deletes the data of a member that is down. When it is started again, the other
// members send it the configuration, and it makes an initial sync.
func (m *Member) Wipe() error {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		return fmt.Errorf("mongosim: wipe %s: it is running", m.Host())
	}
	if m.set.opts.Recording != nil {
		return fmt.Errorf("mongosim: wipe %s: %w", m.Host(), errRecorded)
	}
	m.store = storage.New(m.storage())
	return nil
}

// halt ends the run and waits until it has ended. Callers hold turn.
func (m *Member) halt() *process {
	m.mu.Lock()
	p := m.run
	m.run = nil
	m.mu.Unlock()
	if p == nil {
		return nil
	}
	p.cancel(ErrDown)
	_ = p.listener.Close()
	p.done.Wait()
	p.server.Close()
	p.transport.close()
	_ = m.disk().Write(func(w *storage.Writer) error { // which cannot fail
		w.AbortAll()
		return nil
	})
	return p
}

// retire halts a member permanently and releases its port.
func (m *Member) retire() {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.halt()
	m.port.release()
}

func (m *Member) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run
}

// enter returns the run for a call, which halt waits for: it must not reach the
// store after that. The caller has to call done.Done, unless nothing is running.
func (m *Member) enter() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.run != nil {
		m.run.done.Add(1)
	}
	return m.run
}

// node is the running node, ErrDown if there is none.
func (m *Member) node() (*repl.Node, error) {
	p := m.process()
	if p == nil {
		return nil, fmt.Errorf("%s: %w", m.Host(), ErrDown)
	}
	return p.node, nil
}

// Call runs a command on the member, without a connection or a login. The command
// names its database in $db. An error of the command is a reply with ok: 0.
func (m *Member) Call(ctx context.Context, cmd bson.Raw) (bson.Raw, error) {
	p := m.enter()
	if p == nil {
		return nil, fmt.Errorf("call %s: %w", m.Host(), ErrDown)
	}
	defer p.done.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(ErrDown) })()
	reply := p.server.Call(ctx, cmd)
	if p.ctx.Err() != nil {
		return nil, fmt.Errorf("call %s: %w", m.Host(), ErrDown)
	}
	return reply, nil
}

// Freeze stops all traffic of the member, as SIGSTOP does: connections stay open and
// nothing is answered until Thaw. Unlike a stopped process its clock keeps running: a
// primary that is thawed after the election timeout has stepped down.
func (m *Member) Freeze() {
	m.set.must(m.set.net.Set(m.name, netfault.Any, fault.Fault{Kind: fault.Freeze}))
}

// Thaw reverts Freeze.
func (m *Member) Thaw() { m.set.net.Heal(m.name, netfault.Any) }

// FailCommand sets the fail point failCommand. The fields of spec are mode and data, as
// in the command configureFailPoint.
func (m *Member) FailCommand(ctx context.Context, spec bson.Raw) error {
	if err := spec.Validate(); err != nil {
		return fmt.Errorf("mongosim: set the fail point failCommand of %s: %w", m.Host(), err)
	}
	i, cmd := bsoncore.AppendDocumentStart(nil)
	cmd = bsoncore.AppendStringElement(cmd, "configureFailPoint", "failCommand")
	cmd = append(cmd, spec[4:len(spec)-1]...)
	cmd = bsoncore.AppendStringElement(cmd, "$db", "admin")
	cmd, err := bsoncore.AppendDocumentEnd(cmd, i)
	if err != nil {
		return fmt.Errorf("mongosim: set the fail point failCommand of %s: %w", m.Host(), err)
	}
	reply, err := m.Call(ctx, cmd)
	if err != nil {
		return err
	}
	if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
		reason, _ := reply.Lookup("errmsg").StringValueOK()
		code, _ := reply.Lookup("codeName").StringValueOK()
		return fmt.Errorf("mongosim: set the fail point failCommand of %s: %s (%s)", m.Host(), reason, code)
	}
	return nil
}

// DiskFull makes every write of the member fail with OutOfDiskSpace, until it is called
// with false.
func (m *Member) DiskFull(full bool) { m.full.Store(full) }

// SkewClock sets how far the member's clock is ahead of the machine's; a negative
// duration makes it late.
func (m *Member) SkewClock(by time.Duration) { m.skew.Store(int64(by)) }

func (m *Member) now() time.Time { return time.Now().Add(time.Duration(m.skew.Load())) }
