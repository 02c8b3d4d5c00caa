package verify

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/verify/standing"
)

// mostPlanBytes is the maximum size of the ranges of a collection that are stored. One with more
// begins again from its start.
const mostPlanBytes = 8 << 20

// Progress stores in a link's metadata which ranges are compared, so that a verification that
// was stopped can go on, and the results (package standing). It needs Config.Cuts.
type Progress struct {
	// Target is the target, DB its metadata database, Link the link.
	Target mongo.Caller
	DB     string
	Link   string
	// Resume continues a round that is not complete. Otherwise a new one begins.
	Resume bool

	// off is set if the user may not write to the metadata.
	off   bool
	store standing.Store
	round standing.Round
	// heads are the stored results of the collections when this verification began.
	heads map[oplog.Namespace]standing.Head
	// sources are the UUIDs of the source's collections, as they are stored, and gone are those that forgetGone forgets; guarded
	// by Verifier.mu.
	sources map[oplog.Namespace]oplog.UUID
	gone    []*standing.Gone
}

// plan are the ranges of a collection; done are those already compared, by index.
type plan struct {
	ranges [][]idrange.Piece
	done   map[int]standing.Range
	// stored reports whether they are stored; made identifies them, as another verification may
	// replace them.
	stored bool
	made   bson.ObjectID
}

func saved(c *Cut) *standing.Cut { return (*standing.Cut)(c) }

func unsaved(c *standing.Cut) *Cut { return (*Cut)(c) }

// stores reports whether anything is stored.
func (v *Verifier) stores() bool { return v.cfg.Progress != nil && !v.cfg.Progress.off }

// mostBegins is how often a round is tried to be begun while others begin one.
const mostBegins = 20

// start lists the collections, and begins or continues a round with them.
func (v *Verifier) start(ctx context.Context) ([]settled, error) {
	for n := 1; ; n++ {
		began := time.Now()
		seen, err := v.look(ctx)
		if err != nil {
			return nil, err
		}
		all, err := v.settle(ctx)
		if err == nil {
			err = v.begin(ctx, seen, all)
		}
		if err == nil {
			v.listed, v.listing = time.Now(), time.Since(began)
			return all, nil
		}
		if n == mostBegins || !errors.Is(err, standing.ErrOvertaken) {
			return nil, err
		}
		v.cuts.renew() // What the other one has found may be newer than the cut in use.
	}
}

// look reads the stored documents, before the collections are listed.
func (v *Verifier) look(ctx context.Context) (*standing.Seen, error) {
	p := v.cfg.Progress
	if p == nil {
		return nil, nil
	}
	p.store = standing.Store{Target: p.Target, DB: p.DB, Link: p.Link}
	seen, err := p.store.Look(ctx)
	if servererr.IsDenied(err) {
		p.off = true
		return nil, nil
	}
	return seen, err
}

// begin begins or continues a round, and puts the collections in the order in which they are
// compared: those first that are not verified, then those whose comparison is the oldest.
func (v *Verifier) begin(ctx context.Context, seen *standing.Seen, all []settled) error {
	p := v.cfg.Progress
	if p == nil || p.off {
		return nil
	}
	p.sources = make(map[oplog.Namespace]oplog.UUID, len(all))
	listed := make([]standing.Listed, len(all))
	for i := range all {
		listed[i] = all[i].listed()
		p.sources[all[i].sourceNS] = listed[i].Source
	}
	cut, err := v.cuts.get(ctx)
	if err != nil {
		return err
	}
	p.round, p.heads, err = p.store.Begin(ctx, seen, listed, p.Resume, standing.Cut(cut), time.Now())
	if servererr.IsDenied(err) {
		p.off = true
		return nil
	}
	if err != nil {
		return err
	}
	for ns, h := range p.heads {
		if h.Pass != nil {
			v.hasTold(ns, h.Pass, false)
		}
	}
	oldest := func(s *settled) uint64 {
		h := p.heads[s.sourceNS]
		if h.Result == nil || h.Marked {
			return 0
		}
		return uint64(h.Result.First.Target.T)<<32 | uint64(h.Result.First.Target.I)
	}
	slices.SortStableFunc(all, func(a, b settled) int { return cmp.Compare(oldest(&a), oldest(&b)) })
	return nil
}

// listed is the collection as package standing knows it.
func (s *settled) listed() standing.Listed {
	l := standing.Listed{NS: s.ns, SourceNS: s.sourceNS, Source: s.want.uuidOf()}
	if s.cut != nil {
		l.At = s.cut.Target
	}
	return l
}

// already returns the result of a collection that this round has compared, nil if it has not.
func (v *Verifier) already(p *pair) *standing.Result {
	if !v.stores() {
		return nil
	}
	progress := v.cfg.Progress
	h := progress.heads[p.sourceNS]
	if h.Result == nil || h.Marked || h.Result.Round != progress.round.N || !h.Result.TargetUUID.Equal(uuidOf(p.got)) {
		return nil
	}
	return h.Result
}

// replaced records that the source's collection is another one than is stored.
func (v *Verifier) replaced(ctx context.Context, s *settled) error {
	if !v.stores() {
		return nil
	}
	l := s.listed()
	v.mu.Lock()
	before, known := v.cfg.Progress.sources[l.SourceNS]
	v.cfg.Progress.sources[l.SourceNS] = l.Source
	v.mu.Unlock()
	if known && before == l.Source {
		return nil
	}
	v.untell(l.SourceNS)
	v.lose(l.SourceNS, false)
	former, err := v.cfg.Progress.store.Replace(ctx, l, v.cfg.Progress.round.N)
	if former != nil { // it is compared again, if it has another name
		v.mu.Lock()
		v.cfg.Progress.gone = append(v.cfg.Progress.gone, &former.Gone)
		v.moves.left[former.Source] = true
		delete(v.moves.compared, former.Source)
		v.mu.Unlock()
	}
	return err
}

// forget records that neither side has a collection any more. If it is known to differ, and may have another name now, that is
// recorded once it was compared: until then its differences are stored under the old one.
func (v *Verifier) forget(ctx context.Context, sourceNS oplog.Namespace, mayBeRenamed bool) error {
	p := v.cfg.Progress
	v.mu.Lock()
	known := p.sources[sourceNS]
	v.mu.Unlock()
	gone, err := p.store.Forget(ctx, sourceNS, known, p.round.N)
	if err == nil && gone != nil && !mayBeRenamed {
		err, gone = p.store.ForgetGone(ctx, gone), nil
	}
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if gone != nil {
		p.gone = append(p.gone, gone)
	} else {
		delete(p.sources, sourceNS) // it is recorded again if it gets its name back
	}
	return nil
}

// forgetGone forgets the collections that may have had another name, and were compared under that.
func (v *Verifier) forgetGone(ctx context.Context) error {
	if !v.stores() {
		return nil
	}
	for _, g := range v.cfg.Progress.gone {
		if err := v.cfg.Progress.store.ForgetGone(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// record stores the result of a comparison that has ended.
func (v *Verifier) record(ctx context.Context, s *settled, c *Collection) error {
	if !v.stores() {
		return nil
	}
	p := v.cfg.Progress
	switch {
	case c.Type == "":
		return v.forget(ctx, c.SourceNS, true)
	case c.Fault != "":
		return v.faulty(ctx, c)
	}
	if r := v.already(&s.pair); r != nil && r.Catalog == int64(c.Catalog) {
		return nil
	}
	used := c.used
	used.add(s.cut)
	found, _ := v.foundIn(c.SourceNS)
	return p.store.SaveResult(ctx, s.listed(), &standing.Result{
		Round: p.round.N, Type: c.Type, How: c.How, First: *saved(used.first), Last: *saved(used.last), At: time.Now().UTC(),
		TargetUUID: uuidOf(s.got), Tally: c.Tally, Catalog: int64(c.Catalog), Found: found,
	}, v.knows(c.SourceNS))
}

// faulty stores that a collection could not be compared. If a new difference was found before that, the
// results of earlier comparisons do not count any more.
func (v *Verifier) faulty(ctx context.Context, c *Collection) error {
	p := v.cfg.Progress
	if !p.heads[c.SourceNS].Result.Knows(v.toldIn(c.SourceNS)) {
		if err := p.store.Mark(ctx, standing.WhyDiffers+"the comparison that has found that did not come to its end: "+c.Fault, c.SourceNS); err != nil {
			return err
		}
	}
	return p.store.SaveFault(ctx, c.SourceNS, &standing.Fault{Why: c.Fault, Round: p.round.N, At: time.Now().UTC()}, v.knows(c.SourceNS))
}

// knows returns the differences of a collection that were reported, as far as this verification knows.
func (v *Verifier) knows(ns oplog.Namespace) *standing.Told {
	list, more := v.toldIn(ns)
	return &standing.Told{Found: list, More: more}
}

func uuidOf(l *listed) bson.Binary {
	id := l.uuidOf()
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]}
}

// load returns the stored plan of a pair, false if there is none that fits.
func (v *Verifier) load(ctx context.Context, p *pair, how order) (plan, bool, error) {
	progress := v.cfg.Progress
	s, err := progress.store.Pass(ctx, p.sourceNS)
	if err == nil && s != nil && s.Round == progress.round.N {
		v.hasTold(p.sourceNS, s, true)
	}
	if err != nil || s == nil || s.Round != progress.round.N || s.How != string(how) || !s.Source.Equal(uuidOf(p.want)) || !s.Target.Equal(uuidOf(p.got)) {
		return plan{}, false, err
	}
	out := plan{stored: true, done: map[int]standing.Range{}}
	for _, v := range s.Ranges {
		pieces, err := idrange.Parse(&rawbson.Elem{Type: v.Type, Value: v.Value})
		if err != nil {
			return plan{}, false, nil //nolint:nilerr // It is damaged, or of another release: the collection begins again.
		}
		out.ranges = append(out.ranges, pieces)
	}
	for text, r := range s.Done {
		i, err := strconv.Atoi(text)
		if err != nil || i < 0 || i >= len(out.ranges) {
			return plan{}, false, nil //nolint:nilerr // As above.
		}
		out.done[i] = r
	}
	if len(out.ranges) == 0 {
		return plan{}, false, nil
	}
	taken, err := progress.store.TakePass(ctx, p.sourceNS, s)
	if err != nil || !taken {
		return plan{}, false, err
	}
	out.made = s.Made
	v.hasFound(p.sourceNS, s.Found, s.More)
	return out, true, nil
}

// plan returns the ranges of a collection: those that are stored, if the verification is resumed,
// or new ones, which it stores.
func (v *Verifier) plan(ctx context.Context, p *pair, how order) (plan, error) {
	progress := v.cfg.Progress
	if v.stores() && progress.Resume {
		stored, found, err := v.load(ctx, p, how)
		if err != nil || found {
			return stored, err
		}
	}
	ranges, err := v.split(ctx, p, how)
	if err != nil || !v.stores() {
		return plan{ranges: ranges}, err
	}
	s := standing.Pass{
		Made: bson.NewObjectID(), Round: progress.round.N, Source: uuidOf(p.want), Target: uuidOf(p.got), How: string(how),
		Done: map[string]standing.Range{},
	}
	s.Found, s.More = v.foundIn(p.sourceNS)
	s.Told, s.ToldMore = v.toldIn(p.sourceNS)
	size := 0
	for _, pieces := range ranges {
		list := bsoncore.NewArrayBuilder()
		for i := range pieces {
			list.AppendDocument(bsoncore.Document(pieces[i].Encode()))
		}
		array := list.Build()
		size += len(array)
		s.Ranges = append(s.Ranges, bson.RawValue{Type: bson.TypeArray, Value: array})
	}
	if size > mostPlanBytes {
		return plan{ranges: ranges}, nil // too large to be stored
	}
	return plan{ranges: ranges, stored: true, made: s.Made}, progress.store.SavePass(ctx, p.sourceNS, &s)
}

// compared stores that a range is compared, unless another verification has stored other ranges
// meanwhile.
func (v *Verifier) compared(ctx context.Context, pl *plan, i int, s *scan) error {
	if !pl.stored {
		return nil
	}
	found, more := v.foundIn(s.p.sourceNS)
	first, last := s.span() // The process that goes on may do so much later.
	return v.cfg.Progress.store.SaveRange(ctx, s.p.sourceNS, pl.made, i, &standing.Range{Tally: s.tally, First: saved(first), Last: saved(last)}, found, more)
}

// end completes the round.
func (v *Verifier) end(ctx context.Context) error {
	if !v.stores() {
		return nil
	}
	return v.cfg.Progress.store.End(ctx, &v.cfg.Progress.round, time.Now())
}
