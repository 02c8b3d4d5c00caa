package corpus

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/oplogrep/replicator/internal/testkit/memstore"
)

const (
	// allPairs is up to how many pairs of a prefix and a suffix all are tried.
	allPairs = 400
	// defaultRounds is how many are tried otherwise.
	defaultRounds = 200
	// workPerScenario bounds them for a long log, in entries applied; minRounds
	// are tried in any case.
	workPerScenario = 400_000
	minRounds       = 10
	// bytesPerScenario bounds them for large documents, in bytes of documents
	// written and compared; minRoundsOfBytes are tried in any case.
	bytesPerScenario = 2 << 30
	minRoundsOfBytes = 5
	// judgedRounds is in how many of them deltas are compiled as well: there
	// they meet documents that are newer than they expect. They have to be within
	// judgedBytes, in bytes of the documents that were met up to then.
	judgedRounds = 3
	judgedBytes  = 256 << 20
)

// reapply applies a prefix of the log, all of it and a suffix to the store,
// repeatedly. Each time the store must return to its former state, unless the
// log need not converge.
func (p *proof) reapply(ctx context.Context, store *memstore.Store) error {
	rules := p.rules()
	if rules.refused != "" {
		p.report.NotReapplied = rules.refused
		return nil
	}
	want := store.Snapshot()
	rounds := p.rounds()
	p.report.Rounds = len(rounds)
	reordered := false
	for i, round := range rounds {
		p.judge.on = i < judgedRounds && p.judge.bytes < judgedBytes
		if err := context.Cause(ctx); err != nil {
			return err
		}
		differences, reorders := p.again(store, round, want, rules.reorders)
		reordered = reordered || reorders
		switch {
		case len(differences) == 0:
			p.report.Converged++
			continue
		case rules.unsure != "":
			p.report.NotReapplied = rules.unsure
		default:
			what := fmt.Sprintf("the first %d, all %d, then those from %d on, applied again", round.prefix, len(p.groups), round.suffix)
			p.report.fail(what, differences)
		}
		return nil
	}
	if reordered {
		p.report.note("field order ignored when applied again: $v:1 updates")
	}
	return nil
}

// again applies the parts of one round to a store, and says how it differs from
// want then. With mayReorder, the order of fields does not matter; the second
// result reports whether it differed.
func (p *proof) again(store *memstore.Store, r round, want memstore.State, mayReorder bool) (differences []string, reordered bool) {
	n := len(p.groups)
	for _, part := range [][2]int{{0, r.prefix}, {0, n}, {r.suffix, n}} {
		if err := p.apply(store, part[0], part[1], memstore.InitialSync); err != nil {
			return []string{err.Error()}, false
		}
	}
	// Most documents are the very bytes that want has, which is found out fast.
	got := store.Snapshot()
	differences = memstore.Diff(want, got)
	if len(differences) == 0 || !mayReorder {
		return differences, false
	}
	return memstore.Diff(want.IgnoreFieldOrder(), got.IgnoreFieldOrder()), true
}

// round is how many groups are applied first, and from which on last.
type round struct{ prefix, suffix int }

// rounds returns every pair of a prefix and a suffix, or a random sample of
// them in which the empty, the whole and the next to whole parts are present.
func (p *proof) rounds() []round {
	n := len(p.groups)
	affordable := max(minRoundsOfBytes, int(bytesPerScenario/max(1, p.bytesPerRound)))
	var all []round
	if pairs := (n + 1) * (n + 1); p.options.Rounds == 0 && pairs <= min(allPairs, affordable) {
		for i := range n + 1 {
			for j := range n + 1 {
				all = append(all, round{i, j})
			}
		}
		return all
	}
	count := p.options.Rounds
	if count == 0 {
		count = min(defaultRounds, affordable, max(minRounds, workPerScenario/max(1, 2*n)))
	}
	random := rand.New(rand.NewPCG(p.options.Seed, uint64(n)))
	all = []round{{0, n}, {max(n-1, 0), n}, {0, min(1, n)}}
	for len(all) < count {
		all = append(all, round{random.IntN(n + 1), random.IntN(n + 1)})
	}
	return all[:count]
}
