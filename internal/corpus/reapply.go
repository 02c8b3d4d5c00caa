package corpus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/memstore"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
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
	// judgedRounds is in how many of them deltas are compiled as well: there
	// they meet documents that are newer than they expect.
	judgedRounds = 3
)

// reapply applies a prefix of the log, all of it and a suffix to the store,
// again and again. Each time the store must be back where it was, unless the log
// has something in it that need not converge.
func (p *proof) reapply(ctx context.Context, store *memstore.Store) error {
	rules := p.rules()
	if rules.refused != "" {
		p.report.NotReapplied = rules.refused
		return nil
	}
	want := store.Snapshot()
	hash := want.Hash()
	rounds := p.rounds()
	p.report.Rounds = len(rounds)
	reordered := false
	for i, round := range rounds {
		p.judge.on = i < judgedRounds
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var differences []string
		for _, part := range [][]memstore.Group{p.groups[:round.prefix], p.groups, p.groups[round.suffix:]} {
			if err := applyAll(store, part, memstore.InitialSync); err != nil {
				differences = []string{err.Error()}
				break
			}
		}
		got := store.Snapshot()
		if differences == nil && got.Hash() != hash {
			differences = memstore.Diff(want, got)
			if rules.reorders {
				reordered = true
				differences = memstore.Diff(want.IgnoreFieldOrder(), got.IgnoreFieldOrder())
			}
		}
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

// round is how many groups are applied first, and from which on last.
type round struct{ prefix, suffix int }

// rounds returns every pair of a prefix and a suffix, or a random sample of
// them in which the empty, the whole and the next to whole parts are present.
func (p *proof) rounds() []round {
	n := len(p.groups)
	var all []round
	if p.options.Rounds == 0 && (n+1)*(n+1) <= allPairs {
		for i := range n + 1 {
			for j := range n + 1 {
				all = append(all, round{i, j})
			}
		}
		return all
	}
	count := p.options.Rounds
	if count == 0 {
		count = min(defaultRounds, max(minRounds, workPerScenario/(2*n)))
	}
	random := rand.New(rand.NewPCG(p.options.Seed, uint64(n)))
	all = []round{{0, n}, {max(n-1, 0), n}, {0, min(1, n)}}
	for len(all) < count {
		all = append(all, round{random.IntN(n + 1), random.IntN(n + 1)})
	}
	return all[:count]
}

// rules are what the log allows.
type rules struct {
	// refused says why the log must not be applied again, empty if it may.
	refused string
	// unsure says why the log need not converge, empty if it must.
	unsure string
	// reorders tells that fields may come out in another order.
	reorders bool
}

// rules finds out whether the log converges when it is applied to its own
// result. The recording may say so itself. Otherwise it does, except that by the
// server's own rules it need not if there are
//
//   - updates of the older form ($v: 1) of array elements: they say where an
//     element is, and it may have moved by the end of the log; the server's
//     tests leave them out; other updates of that form may reorder fields;
//   - capped collections that trim themselves (up to 4.4): what was trimmed
//     comes back, and pushes out what was there;
//   - a capped collection that gets an _id twice: the natural order then depends
//     on what was there before.
//
// Such a log is tried all the same.
func (p *proof) rules() rules {
	var r rules
	said := p.scenario.Meta.Reappliable
	if said != nil && !*said {
		r.refused = "the recording says that it cannot be applied again"
		return r
	}
	capped := map[oplog.UUID]bool{}
	for _, c := range p.base.Collections() {
		capped[c.UUID()] = c.Capped()
	}
	seen := map[string]bool{}
	why := ""
	for i := range p.groups {
		for _, op := range p.groups[i].Ops {
			switch {
			case op.Kind == oplog.KindUpdate:
				older, byPosition := modifiers(op.O)
				r.reorders = r.reorders || older
				if byPosition {
					why = "$v:1 updates of array elements"
				}
			case op.Command == oplog.CommandCreate:
				capped[op.UI] = isCapped(&op)
			case op.Kind == oplog.KindInsert && capped[op.UI]:
				key := string(oplog.AppendIDKey(op.UI[:], op.ID))
				if seen[key] {
					why = "a capped collection gets an _id twice"
				}
				seen[key] = true
				if p.scenario.trimsCapped() {
					why = "capped collections that trim themselves"
				}
			}
		}
	}
	if said == nil {
		r.unsure = why
	}
	return r
}

func isCapped(op *oplog.Op) bool {
	c, err := op.Create()
	if err != nil {
		return false
	}
	v, _ := rawbson.Lookup(c.Options, "capped")
	is, _ := v.Bool()
	return is
}

// modifiers tells whether an update is of the older form, and whether a path in
// it may lead to an array element.
func modifiers(o bson.Raw) (older, byPosition bool) {
	if form, err := update.Classify(o); err != nil || form != update.FormModifiers {
		return false, false
	}
	it := rawbson.NewIter(o)
	for it.Next() {
		paths, _ := it.Document()
		if paths == nil {
			continue
		}
		inner := rawbson.NewIter(paths)
		for inner.Next() {
			for part := range strings.SplitSeq(inner.Name(), ".") {
				if _, err := strconv.ParseUint(part, 10, 32); err == nil {
					byPosition = true
				}
			}
		}
	}
	return true, byPosition
}
