package share_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errCut  = fmt.Errorf("the network is cut: %w", locks.ErrUnavailable)
	errLost = fmt.Errorf("the reply was lost: %w", locks.ErrUnavailable)
	errKill = errors.New("killed")
)

// fleet is a group of members over one store, in a bubble.
type fleet struct {
	t     *testing.T
	store *lockstest.Memory
	board *sharetest.Memory

	mu         sync.Mutex // guards the rest
	partitions []string
	listErr    error
	// unlisted: a list of the partitions is not answered.
	unlisted bool
	// listTakes is how long a list of the partitions takes.
	listTakes time.Duration
	// slows is how long a work goes on when it should end, fails why it fails; changed is
	// closed when that changes.
	slows   func(member, partition string) time.Duration
	fails   func(member, partition string) error
	changed chan struct{}
	// running is the member that works on a partition, began since when, ended when it stopped last.
	running      map[string]string
	began, ended map[string]time.Time
	// gaps is how long partitions stood still that started over, unless it is nil.
	gaps    []time.Duration
	terms   map[string]int64
	started int
	all     map[string]*process
}

// process is a member that can be killed, suspended, and cut off.
type process struct {
	*share.Share
	name string
	net  *network
	stop context.CancelCauseFunc
	done chan struct{}
}

func newFleet(t *testing.T, partitions int) *fleet {
	f := &fleet{
		t: t, store: lockstest.NewMemory(), board: sharetest.NewMemory(), all: map[string]*process{}, changed: make(chan struct{}),
		running: map[string]string{}, began: map[string]time.Time{}, ended: map[string]time.Time{}, terms: map[string]int64{},
	}
	for i := range partitions {
		f.partitions = append(f.partitions, fmt.Sprintf("p%04d", i))
	}
	t.Cleanup(f.close)
	return f
}

// close stops everything: all leases are released, and the board is empty.
func (f *fleet) close() {
	f.board.Fail(nil)
	f.store.Fail(nil)
	for _, p := range f.all {
		p.net.set(up)
		p.stop(errors.New("the end"))
	}
	for _, p := range f.all {
		<-p.done
	}
}

func (f *fleet) start(name string, limit int) *process {
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &process{name: name, net: &network{}, stop: cancel, done: make(chan struct{})}
	p.Share = must.Get(share.New(share.Config{
		Store: netStore{f.store, p.net}, Board: netBoard{f.board, p.net}, Group: "g", Member: name, Limit: limit,
		Partitions: f.list,
		Work: func(ctx context.Context, partition string, term int64) error {
			f.begin(name, partition, term)
			defer f.end(partition)
			return f.work(ctx, name, partition)
		},
	}))(f.t)
	f.all[name] = p
	go func() {
		defer close(p.done)
		_ = p.Run(ctx)
	}()
	return p
}

// startAll starts n members.
func (f *fleet) startAll(n int) {
	for i := range n {
		f.start("m"+strconv.Itoa(1000+i), 0)
	}
}

// shutdown ends a member cleanly.
func (p *process) shutdown() {
	p.stop(errors.New("shutdown"))
	<-p.done
}

// kill ends a member at once: nothing of what it sends arrives.
func (p *process) kill() {
	p.net.set(cut)
	p.stop(errKill)
	<-p.done
}

func (f *fleet) list(ctx context.Context) ([]string, error) {
	f.mu.Lock()
	list, err, unlisted, takes := slices.Clone(f.partitions), f.listErr, f.unlisted, f.listTakes
	f.mu.Unlock()
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if unlisted {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return list, err
}

// work works on a partition until ctx is done, or it fails.
func (f *fleet) work(ctx context.Context, member, partition string) error {
	for {
		f.mu.Lock()
		fails, changed := f.fails, f.changed
		f.mu.Unlock()
		if fails != nil {
			if err := fails(member, partition); err != nil {
				return err
			}
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		f.mu.Lock()
		slows := f.slows
		f.mu.Unlock()
		if slows != nil {
			time.Sleep(slows(member, partition))
		}
		return context.Cause(ctx)
	}
}

func (f *fleet) begin(member, partition string, term int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other := f.running[partition]; other != "" {
		f.t.Errorf("%s: %s works on it with %s", partition, member, other)
	}
	if term < f.terms[partition] || term == 0 {
		f.t.Errorf("%s: token %d of %s after %d", partition, term, member, f.terms[partition])
	}
	if ended, again := f.ended[partition]; again && f.gaps != nil {
		f.gaps = append(f.gaps, time.Since(ended))
	}
	f.running[partition], f.terms[partition], f.began[partition] = member, term, time.Now()
	f.started++
}

func (f *fleet) end(partition string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running[partition], f.ended[partition] = "", time.Now()
}

// starts returns how often a work has begun.
func (f *fleet) starts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// term returns the term of the last work on a partition.
func (f *fleet) term(partition string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.terms[partition]
}

// owners returns the member that works on each partition, of those that have one.
func (f *fleet) owners() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	owners := map[string]string{}
	for p, member := range f.running {
		if member != "" {
			owners[p] = member
		}
	}
	return owners
}

// counts returns how many partitions each member works on.
func counts(owners map[string]string) map[string]int {
	n := map[string]int{}
	for _, member := range owners {
		n[member]++
	}
	return n
}

// moved returns how many partitions have another owner, and of how many the old one was none of those.
func moved(before, after map[string]string, gone ...string) (n, needless int) {
	for p, was := range before {
		if after[p] == was {
			continue
		}
		n++
		if !slices.Contains(gone, was) {
			needless++
		}
	}
	return n, needless
}

// even fails unless all partitions run, on n members that differ by one at most.
func (f *fleet) even(n int) map[string]string {
	f.t.Helper()
	owners := f.owners()
	least, most := len(owners), 0
	number := counts(owners)
	for _, c := range number {
		least, most = min(least, c), max(most, c)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(owners) != len(f.partitions) || len(number) != n || most-least > 1 {
		f.t.Errorf("%d of %d partitions run, on %d members, want %d; from %d to %d", len(owners), len(f.partitions), len(number), n, least, most)
	}
	return owners
}

// latency is how long a call takes until it is executed.
const latency = 5 * time.Millisecond

// The outcomes of the calls of a process.
const (
	up = iota
	cut
	// frozen: a call waits until the process is thawed, whatever its context says, and is sent then.
	frozen
	// deaf: calls are executed, and their replies lost.
	deaf
)

// network is between a process and the store.
type network struct {
	mu    sync.Mutex // guards the rest
	state int
	moved chan struct{} // closed at the next change
	// late, unless it is nil, is closed when the next plan that is sent arrives.
	late chan struct{}
}

func (n *network) set(state int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = state
	if n.moved != nil {
		close(n.moved)
		n.moved = nil
	}
}

// do makes a call.
func (n *network) do(ctx context.Context, call func(ctx context.Context) error) error {
	for {
		n.mu.Lock()
		state := n.state
		if n.moved == nil {
			n.moved = make(chan struct{})
		}
		changed := n.moved
		n.mu.Unlock()
		switch state {
		case cut:
			return errCut
		case deaf:
			_ = call(ctx)
			return errLost
		case up:
			time.Sleep(latency)
			return call(ctx)
		}
		<-changed
		ctx = context.WithoutCancel(ctx) //nolint:fatcontext // it has been sent; the second time changes nothing
	}
}

// netBoard is a board over a network.
type netBoard struct {
	share.Board
	net *network
}

func (b netBoard) Beat(ctx context.Context, group string, m share.Member, taken time.Duration) (now share.Member, err error) {
	err = b.net.do(ctx, func(ctx context.Context) error {
		now, err = b.Board.Beat(ctx, group, m, taken)
		return err
	})
	return now, err
}

func (b netBoard) Leave(ctx context.Context, group, member, process string) error {
	return b.net.do(ctx, func(ctx context.Context) error { return b.Board.Leave(ctx, group, member, process) })
}

func (b netBoard) Members(ctx context.Context, group string) (list []share.Member, now time.Time, err error) {
	err = b.net.do(ctx, func(ctx context.Context) error {
		list, now, err = b.Board.Members(ctx, group)
		return err
	})
	return list, now, err
}

func (b netBoard) Plan(ctx context.Context, group, member string, seen int64) (plan *share.Plan, err error) {
	err = b.net.do(ctx, func(ctx context.Context) error {
		plan, err = b.Board.Plan(ctx, group, member, seen)
		return err
	})
	return plan, err
}

func (b netBoard) Propose(ctx context.Context, group string, version int64, p *share.Plan) (done bool, err error) {
	b.net.mu.Lock()
	late := b.net.late
	b.net.mu.Unlock()
	if late != nil {
		<-late
		return b.Board.Propose(context.WithoutCancel(ctx), group, version, p)
	}
	err = b.net.do(ctx, func(ctx context.Context) error {
		done, err = b.Board.Propose(ctx, group, version, p)
		return err
	})
	return done, err
}

// netStore is a store over a network. A share makes no other calls.
type netStore struct {
	locks.Store
	net *network
}

func (s netStore) Acquire(ctx context.Context, c locks.Claim) (r locks.Record, err error) {
	err = s.net.do(ctx, func(ctx context.Context) error {
		r, err = s.Store.Acquire(ctx, c)
		return err
	})
	return r, err
}

func (s netStore) Renew(ctx context.Context, name string, id bson.ObjectID) (r locks.Record, err error) {
	err = s.net.do(ctx, func(ctx context.Context) error {
		r, err = s.Store.Renew(ctx, name, id)
		return err
	})
	return r, err
}

func (s netStore) Release(ctx context.Context, name string, id bson.ObjectID) error {
	return s.net.do(ctx, func(ctx context.Context) error { return s.Store.Release(ctx, name, id) })
}
