package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/bench/result"
)

// contender is something that is measured in rounds, in turns with others.
type contender struct {
	run *result.Run
	// prepare makes everything ready for a round, which is what it returns: only that
	// is measured.
	prepare func(ctx context.Context, round int) (work func(ctx context.Context) error, err error)
	// after, if set, ends what prepare has begun.
	after func(ctx context.Context) error
	// note, if set, adds figures that are known after the last round.
	note func(ctx context.Context) error

	rounds rounds
}

// turns measures all contenders in turns, c.Rounds times. The profile is the first
// one's.
func turns(ctx context.Context, c Config, list ...*contender) error {
	for round := range c.Rounds {
		for i, t := range list {
			say(c, "%s, round %d of %d", t.run.Name, round+1, c.Rounds)
			if err := t.turn(ctx, c, round, i == 0 && c.profiles(round)); err != nil {
				return fmt.Errorf("%s, round %d: %w", t.run.Name, round+1, err)
			}
		}
	}
	for _, t := range list {
		t.rounds.into(t.run)
		if t.note == nil {
			continue
		}
		if err := t.note(ctx); err != nil {
			return fmt.Errorf("%s: %w", t.run.Name, err)
		}
	}
	return nil
}

func (t *contender) turn(ctx context.Context, c Config, round int, profiled bool) error {
	work, err := t.prepare(ctx, round)
	if err != nil {
		return err
	}
	usage, err := measure(c, profiled, func() error { return work(ctx) })
	t.rounds = append(t.rounds, usage)
	if t.after != nil {
		err = errors.Join(err, t.after(ctx))
	}
	return err
}
