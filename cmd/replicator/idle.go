package main

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// idleNote tells an operator who waits for a link, once, that no process runs it.
type idleNote struct {
	link string
	out  cli.Output
	// idle reports whether none is known to run it; nil if that is not looked at.
	idle func(ctx context.Context) bool
	said bool
}

// newIdleNote returns that of the link of a store.
func newIdleNote(store *checkpoint.Store, out cli.Output) idleNote {
	return idleNote{link: store.Link(), out: out, idle: func(ctx context.Context) bool { return isIdle(ctx, store) }}
}

// isIdle reports whether no process runs a link: its lease has ended, or was given back. A process that renews none, and one that
// cannot be read, may run it; while a cutover converts it, they stand by.
func isIdle(ctx context.Context, store *checkpoint.Store) bool {
	seen, found, err := store.Look(ctx, lease.NewWatch(""))
	if err != nil || !found || seen.Converting != nil {
		return false
	}
	grant := &seen.Lease.Record.Grant
	return seen.Lease.Record.Holder == "" || !grant.ID.IsZero() && (seen.Lease.Free || grant.Released)
}

// acquiredWithin is how long a process that stands by may take to acquire a lease that was given back.
const acquiredWithin = 10 * time.Second

// staysIdle reports whether no process has begun to run a link for that long.
func staysIdle(ctx context.Context, store *checkpoint.Store) bool {
	for begun := time.Now(); isIdle(ctx, store); {
		if time.Since(begun) > acquiredWithin {
			return true
		}
		if mongo.Pause(ctx, acquiredWithin/20) != nil {
			return false
		}
	}
	return false
}

// look tells it if it is so.
func (n *idleNote) look(ctx context.Context) {
	if n.said || n.idle == nil || !n.idle(ctx) {
		return
	}
	n.said = true
	n.out.Complain("No process runs link %s: this waits until replicator run does. The request stays, whether this command waits for it or not.", n.link)
}
