package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Builds are the index builds that a command of this member is completing. A build of a
// former primary, or of a command whose client has left, belongs to none, until a command
// asks for its indexes again.
type Builds struct {
	mu      sync.Mutex
	running map[oplog.UUID]bool
	// commands are those that build, or wait for it, with how to interrupt them.
	commands map[*Request]context.CancelCauseFunc
}

// Take makes the caller the one that completes a build. It reports whether there was none;
// the caller must then call Leave.
func (b *Builds) Take(build oplog.UUID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == nil {
		b.running = map[oplog.UUID]bool{}
	}
	taken := b.running[build]
	b.running[build] = true
	return !taken
}

// Leave ends Take.
func (b *Builds) Leave(build oplog.UUID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, build)
}

// Outlive runs a command that continues when its client has left: it ends with the server,
// or when its session is killed (create_indexes.cpp, kill_sessions_common.cpp).
func (r *Request) Outlive(ctx context.Context, out *Reply, run func(ctx context.Context, r *Request, out *Reply) error) error {
	own, reply := *r, *out
	own.Cmd, reply.Buf = slices.Clone(r.Cmd), slices.Clone(out.Buf)
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b := &r.Server.Builds
	b.enter(&own, cancel)
	result := make(chan error, 1)
	go func() {
		defer cancel(nil)
		defer context.AfterFunc(r.Server.closed, func() { cancel(errShutdown) })()
		defer b.exit(&own)
		result <- run(lasting, &own, &reply)
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		if _, refused := errors.AsType[*servererr.Error](context.Cause(ctx)); !refused {
			return Interrupted(ctx) // the client has left
		}
		cancel(context.Cause(ctx))
		err = <-result
	}
	*r, *out = own, reply
	return err
}

func (b *Builds) enter(r *Request, interrupt context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.commands == nil {
		b.commands = map[*Request]context.CancelCauseFunc{}
	}
	b.commands[r] = interrupt
}

func (b *Builds) exit(r *Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.commands, r)
}

// kill interrupts the commands of some sessions.
func (b *Builds) kill(which func(*LSID) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for r, interrupt := range b.commands {
		if r.LSID != nil && which(r.LSID) {
			interrupt(errKilled)
		}
	}
}

// IsKilled reports whether a command ends because its session was killed.
func IsKilled(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errKilled) }

// MaxBuilds is how many index builds of non-empty collections may be in progress before
// those of clients wait.
func (s *Server) MaxBuilds() int {
	p := Parameters[maxBuilds]
	return int(arg.Int64(s.setValue(maxBuilds, &p)))
}

// HangBuild waits while builds have to hang and this one is in progress, until the member
// steps down or ctx is done.
func (r *Request) HangBuild(ctx context.Context, build opwrite.Build) error {
	for {
		changed, hanging := r.Server.Config.Store.Changed(), r.Server.Fails.While(HangIndexBuild)
		inProgress := false
		err := r.Server.Config.Store.Read(func(reader *storage.Reader) error {
			coll, exists := reader.View(bson.Timestamp{}).ByUUID(build.Coll)
			inProgress = exists && slices.Contains(opwrite.Builds(coll), build.ID)
			return nil
		})
		if err != nil || hanging == nil || !inProgress {
			return err
		}
		primary := r.Server.asPrimary()
		select {
		case <-hanging:
		case <-changed:
		case <-primary.Done():
			return Interrupted(primary)
		case <-ctx.Done():
			return Interrupted(ctx)
		}
	}
}
