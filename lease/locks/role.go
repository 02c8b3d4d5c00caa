package locks

import (
	"context"
	"fmt"
	"time"
)

// Role is a role that one process at a time has: its leader. The others follow. The record of
// a role is that of a lock of the same name, such as "data center/role".
type Role struct {
	Elect *Elect
	Name  string
	// Why is shown to others.
	Why string
	// OnLead is called when the process has become the leader, with a context that ends when
	// it is not any more, before another process can be. The process resigns when OnLead
	// returns. Token and Check are for its context. Nil: the process only observes.
	OnLead func(context.Context)
	// OnFollow, if not nil, is called when another process leads than at the last call, or in
	// another term, and when no process leads.
	OnFollow func(leader Record)
}

// Run leads or follows until ctx is done or the Elect is closed. It calls OnLead and OnFollow
// one after the other.
func (r *Role) Run(ctx context.Context) error {
	if err := r.Elect.enter(); err != nil {
		return fmt.Errorf("role %s: %w", r.Name, err)
	}
	defer r.Elect.running.Done()
	ctx, cancel, stop := r.Elect.untilClosed(ctx)
	defer cancel(nil)
	defer stop()
	var told Record
	for {
		leader, err := r.turn(ctx)
		if err != nil && ctx.Err() == nil {
			r.Elect.cfg.Failed(fmt.Errorf("role %s: %w", r.Name, err))
		}
		if err == nil && leader.Process != r.Elect.cfg.Process && (told.ID != leader.ID || told.State != leader.State || told.Term != leader.Term) {
			if told = leader; r.OnFollow != nil {
				r.OnFollow(leader)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := pause(ctx, r.Elect.cfg.Every*2/3); err != nil {
			return err
		}
	}
}

// turn tries once to become the leader, and if it does leads. It returns the last record of
// the role that it has seen.
func (r *Role) turn(ctx context.Context) (Record, error) {
	if r.OnLead == nil {
		return r.look(ctx)
	}
	t, now, err := r.Elect.acquire(ctx, r.Name, r.Why, false)
	if err != nil || t == nil {
		return now, err
	}
	if err := t.run(r.OnLead); err != nil { //nolint:contextcheck // a term has a context of its own
		return now, err
	}
	// It has resigned: others have their turn.
	return now, wait(ctx, r.Elect.cfg.Every)
}

// look reads the record of the role.
func (r *Role) look(ctx context.Context) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, max(r.Elect.cfg.Every, time.Second))
	defer cancel()
	list, err := r.Elect.cfg.Store.List(ctx, "")
	if err != nil {
		return Record{}, err
	}
	for _, now := range list {
		if now.Name == r.Name {
			return now, nil
		}
	}
	return Record{Name: r.Name}, nil
}
