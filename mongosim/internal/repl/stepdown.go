package repl

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// StepDown makes a primary step down (replSetStepDown): the member is not
// electable for stepDown; without force an electable secondary has to have caught
// up within catchUp, else it is ExceededTimeLimit. While it waits, writes are
// refused. It returns when Hooks.SteppedDown has.
func (n *Node) StepDown(ctx context.Context, stepDown, catchUp time.Duration, force bool) error {
	start := time.Now()
	waitUntil, until := start.Add(catchUp), start.Add(stepDown)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role != leader || !n.writable {
		return notPrimary("not primary so can't step down")
	}
	if n.attempting {
		return servererr.New(servererr.ConflictingOperationInProgress, "This node is already in the process of stepping down")
	}
	epoch := n.epoch
	n.attempting = true
	n.bump()
	defer func() {
		if n.epoch == epoch {
			n.attempting = false
			n.bump()
		}
	}()
	for {
		now := time.Now()
		if n.epoch != epoch {
			return servererr.New(servererr.PrimarySteppedDown, "While waiting for secondaries to catch up before stepping down, this node decided to step down for other reasons")
		}
		if stepDown > 0 && !now.Before(until) {
			return servererr.New(servererr.ExceededTimeLimit, "By the time we were ready to step down, we were already past the time we were supposed to step down until")
		}
		if n.handOver() || force && !now.Before(waitUntil) {
			break
		}
		if !now.Before(waitUntil) {
			return servererr.New(servererr.ExceededTimeLimit,
				"No electable secondaries caught up as of %sPlease use the replSetStepDown command with the argument {force: true} to force node to step down.",
				n.cfg.Now().Format("2006-01-02T15:04:05.000-07:00"))
		}
		if err := n.waitChange(ctx, waitUntil.Sub(now)); err != nil {
			return err
		}
	}
	n.frozenUntil = until
	n.heirTo = n.heir()
	n.stepDown("replSetStepDown")
	for n.downPending {
		if err := n.waitChange(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// waitChange releases mu until there is progress, d has passed (0: no limit) or ctx
// is done.
func (n *Node) waitChange(ctx context.Context, d time.Duration) error {
	progress := n.progress.wait()
	n.mu.Unlock()
	defer n.mu.Lock()
	sleep(ctx, d, progress)
	return context.Cause(ctx)
}

// handOver reports whether a majority has everything, and one of these members is
// electable. Callers hold mu.
func (n *Node) handOver() bool {
	have := 0
	for i := range n.members {
		if n.conf.members[i].Votes > 0 && !n.conf.members[i].Arbiter && n.memberHas(i, n.applied.at, false) {
			have++
		}
	}
	return have >= n.conf.writeMajority() && n.heir() != ""
}

// heir returns the host of the best successor of this primary, "" if there is
// none. Callers hold mu.
func (n *Node) heir() string {
	best := -1
	for i, m := range n.members {
		caught := !m.applied.at.Before(n.applied.at) && m.applied.at.Term == n.applied.at.Term
		if i == n.self || !electable(&n.conf.members[i]) || !m.up || !m.electable || !caught {
			continue
		}
		if best < 0 || n.conf.members[i].Priority > n.conf.members[best].Priority {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	return n.conf.members[best].Host
}

// callHeir asks a member to stand for election at once, without waiting.
func (n *Node) callHeir(ctx context.Context, host string, limit time.Duration) {
	cmd := command("replSetStepUp", func(dst []byte) []byte {
		return bsoncore.AppendBooleanElement(dst, "skipDryRun", true)
	})
	ctx, done := context.WithTimeout(ctx, limit)
	n.background.Go(func() {
		defer done()
		_, _ = n.cfg.Transport.Call(ctx, host, cmd) // without it the election timers decide
	})
}

// StepUp makes the member stand for election now (replSetStepUp); CommandFailed if
// it is not primary afterwards.
func (n *Node) StepUp(ctx context.Context) error {
	ask := stepUpRequest{done: make(chan struct{})}
	n.mu.Lock()
	already := n.role == leader
	n.mu.Unlock()
	if !already {
		select {
		case n.stepUps <- ask:
		case <-n.ended:
			return errShutdown()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-ask.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.role != leader:
		return servererr.New(servererr.CommandFailed, "Election failed.")
	case n.attempting:
		return servererr.New(servererr.CommandFailed, "Election failed due to concurrent stepdown")
	}
	return nil
}

// Freeze keeps the member from standing for election (replSetFreeze); 0 ends it.
// A primary refuses with NotSecondary.
func (n *Node) Freeze(d time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conf == nil {
		return notYetInitialized()
	}
	if n.role == leader {
		return servererr.New(servererr.NotSecondary, "cannot freeze node when primary or running for election. state: Primary")
	}
	if d < 0 {
		return badValue("freeze period must not be below zero: %s", d)
	}
	n.frozenUntil = time.Now().Add(d)
	if d == 0 {
		n.frozenUntil = time.Time{}
	}
	if len(n.members) == 1 {
		n.resetElection()
	}
	return nil
}
