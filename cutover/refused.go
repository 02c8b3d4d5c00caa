package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
)

// refused returns the reason why the way back does not begin, after it has restored the options deferred for it, by this
// start or by an earlier one that was interrupted. It withdraws the intent first, so that a concurrent start that has
// examined the target already does not create the link afterwards. One that examines it later finds the same writes.
func (b *Back) refused(ctx context.Context, store *checkpoint.Store, link string, why error) error {
	if !errors.Is(why, ErrTouched) {
		return why
	}
	intent := ""
	for intent == "" {
		is, err := store.Intend(ctx)
		if err != nil {
			return notLetGo(why, err)
		}
		// In this order: a link that is created after it was asked for ends the intent.
		if begun, err := b.begun(ctx, store); err != nil || begun {
			return err // another process was faster: the writes found are those of its link
		}
		if intent, err = store.Withdraw(ctx, is); errors.Is(err, checkpoint.ErrWithdrawn) {
			intent = ""
		} else if err != nil {
			return notLetGo(why, err)
		}
	}
	kept, err := b.letGo(ctx, store, link, intent)
	if errors.Is(err, checkpoint.ErrWithdrawn) {
		if begun, err := b.begun(ctx, store); err != nil || begun {
			return err
		}
		return why // another start was refused as well, and restores them
	} else if err != nil {
		return notLetGo(why, err)
	}
	if len(kept) > 0 {
		return fmt.Errorf("%w; documents do not expire there by %s: an earlier release, or an earlier link of that name, has deferred that: "+
			"restore it by collMod, and remove it from %s.%s", why, some(kept), b.cfg.MetaDB, metadata.Deferred)
	}
	return why
}

func notLetGo(why, err error) error {
	return fmt.Errorf("%w; what expires documents there may stay held: %w", why, err)
}

// letGo restores the options that starts of the way back have deferred, as long as no other process withdraws the intent. It
// returns the names of those that expire documents and stay deferred.
func (b *Back) letGo(ctx context.Context, store *checkpoint.Store, link, intent string) (kept []string, err error) {
	specs, err := ddl.ReadDeferred(ctx, b.cfg.Target, b.cfg.MetaDB, link)
	var other ddl.RefusedErrors // those that an earlier link of that name has left do not belong to this start
	for i := range specs {
		if !specs[i].Held {
			if slices.Contains(specs[i].Fields, "expireAfterSeconds") {
				kept = append(kept, nameOf(&specs[i]))
			}
			other = append(other, &ddl.RefusedError{NS: specs[i].NS, Index: specs[i].Index, UUID: specs[i].UUID})
		}
	}
	if err != nil || len(other) == len(specs) {
		return kept, err
	}
	cfg := (&ConvertConfig{Target: b.cfg.Target, MetaDB: b.cfg.MetaDB, Link: link}).ended()
	cfg.Fence = store.Unmade(intent)
	_, err = cfg.run(ctx, func(c *ddl.Converter, ctx context.Context, done func(ddl.Converted)) error {
		return c.Expire(ctx, other, done)
	})
	return kept, err
}

func nameOf(h *ddl.DeferredSpec) string {
	if h.Index == "" {
		return "the options of " + string(h.NS)
	}
	return "index " + h.Index + " of " + string(h.NS)
}
