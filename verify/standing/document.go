package standing

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

const (
	// MostFound is how many differences of a collection are listed; all are counted.
	MostFound = 50
	// mostText limits the text of an _id or a name, in bytes.
	mostText = 200
)

// Cut is a consistent cut: see verify.Cut.
type Cut struct {
	Source bson.Timestamp `bson:"source"`
	Target bson.Timestamp `bson:"target"`
	// At is when its commit was acknowledged, by the clock of the process that made it.
	At time.Time `bson:"at"`
}

// Wall is the time as of which the target was the source: that of the source's entry, or of the
// commit if that is earlier. A source that writes nothing has an entry every 10 seconds.
func (c *Cut) Wall() time.Time {
	source := time.Unix(int64(c.Source.T), 0).UTC()
	if at := c.At.UTC(); at.Before(source) {
		return at
	}
	return source
}

// Tally counts documents.
type Tally struct {
	// SourceDocs and TargetDocs were read, Equal of them are the same on both sides.
	SourceDocs int64 `json:"sourceDocuments"`
	TargetDocs int64 `json:"targetDocuments"`
	EqualDocs  int64 `json:"equalDocuments"`
	// Bytes are those of the source's documents.
	Bytes   int64 `json:"bytes"`
	Missing int64 `json:"missing"`
	Extra   int64 `json:"extra"`
	Differs int64 `json:"differs"`
	Order   int64 `json:"order"`
}

// Differences returns how many there are.
func (t *Tally) Differences() int64 { return t.Missing + t.Extra + t.Differs + t.Order }

// Add adds another tally.
func (t *Tally) Add(more *Tally) {
	t.SourceDocs += more.SourceDocs
	t.TargetDocs += more.TargetDocs
	t.EqualDocs += more.EqualDocs
	t.Bytes += more.Bytes
	t.Missing += more.Missing
	t.Extra += more.Extra
	t.Differs += more.Differs
	t.Order += more.Order
}

// Found is a difference. It has no values.
type Found struct {
	// Kind is that of verify.Difference.
	Kind string `bson:"kind"`
	// ID is a document's _id as extended JSON, cut if it is long; empty for a catalog.
	ID string `bson:"id,omitempty"`
	// Name is that of an index or option; What says how that differs.
	Name string `bson:"name,omitempty"`
	What string `bson:"what,omitempty"`
}

// NewFound returns a difference with texts that are cut.
func NewFound(kind, id, name, what string) Found {
	return Found{Kind: kind, ID: short(id), Name: short(name), What: what}
}

// IsCut reports whether a text of a Found is cut.
func IsCut(text string) bool { return strings.HasSuffix(text, CutMark) }

// CutMark is at the end of a text that is cut.
const CutMark = "…"

func short(text string) string {
	if len(text) <= mostText {
		return text
	}
	return strings.ToValidUTF8(text[:mostText], "") + CutMark
}

// Range is a range that is compared.
type Range struct {
	Tally Tally `bson:"tally"`
	First *Cut  `bson:"first,omitempty"`
	Last  *Cut  `bson:"last,omitempty"`
}

// Pass is a comparison of a collection that has not ended.
type Pass struct {
	// Made identifies its ranges, as another verification may replace them. Round is that of
	// the verification.
	Made  bson.ObjectID `bson:"made"`
	Round int64         `bson:"round"`
	// Source and Target are the UUIDs of the collections.
	Source bson.Binary     `bson:"source"`
	Target bson.Binary     `bson:"target"`
	How    string          `bson:"how"`
	Ranges []bson.RawValue `bson:"ranges"`
	// Done are the ranges that are compared, by index.
	Done map[string]Range `bson:"done"`
	// Found are the differences so far, the first of them; More counts the others.
	Found []Found `bson:"found"`
	More  int64   `bson:"more"`
	// Told are differences that were reported since the comparison began, before each is: also those of an attempt that
	// was given up, in which case they are not among Found. ToldMore counts the others.
	Told     []Found `bson:"told,omitempty"`
	ToldMore int64   `bson:"toldMore,omitempty"`
}

// all returns all differences that were reported.
func (p *Pass) all() []Found {
	all := slices.Clone(p.Found)
	for _, f := range p.Told {
		if !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// Told are the differences of a collection that a verification knows to have been reported; More counts those that are not listed.
type Told struct {
	Found []Found
	More  int64
}

// told returns the differences that were reported in the comparison of a collection, as the document has them. A nil document has none.
func (d *document) told() *Told {
	if d == nil || d.Pass == nil {
		return &Told{}
	}
	return &Told{Found: d.Pass.Told, More: d.Pass.ToldMore}
}

// has reports whether all that were reported in a pass are known: other verifications of its round may have reported some since.
func (t *Told) has(p *Pass) bool {
	return p.ToldMore <= t.More && !slices.ContainsFunc(p.Told, func(f Found) bool { return !slices.Contains(t.Found, f) })
}

// Result is a comparison of a collection that has ended.
type Result struct {
	Round int64  `bson:"round"`
	Type  string `bson:"type"`
	How   string `bson:"how"`
	// First and Last are the oldest and the newest cut at which anything was compared.
	First Cut `bson:"first"`
	Last  Cut `bson:"last"`
	// At is when it ended.
	At time.Time `bson:"at"`
	// TargetUUID is that of the target's collection.
	TargetUUID bson.Binary `bson:"targetUUID"`
	Tally      Tally       `bson:"tally"`
	// Catalog counts the differences of existence, options and indexes.
	Catalog int64 `bson:"catalog"`
	// Found are the first differences.
	Found []Found `bson:"found"`
}

// Differences returns how many there are.
func (r *Result) differences() int64 { return r.Tally.Differences() + r.Catalog }

// Knows reports whether differences that another comparison has found are among those of the result. A nil
// Result knows none.
func (r *Result) Knows(found []Found, more int64) bool {
	if r == nil {
		return len(found) == 0 && more <= 0
	}
	return more <= max(0, r.differences()-int64(len(r.Found))) && !slices.ContainsFunc(found, func(f Found) bool { return !slices.Contains(r.Found, f) })
}

// Fault says why a collection could not be compared.
type Fault struct {
	Why   string    `bson:"why"`
	Round int64     `bson:"round"`
	At    time.Time `bson:"at"`
}

// Mark says since when a collection is not known to be the source's, whatever was compared before.
type Mark struct {
	// Target is the cluster time of the target up to which something may have changed it.
	Target bson.Timestamp `bson:"target"`
	Why    string         `bson:"why"`
	At     time.Time      `bson:"at"`
}

// document is what the metadata have of a collection, by its name at the source.
type document struct {
	ID string `bson:"_id"`
	// NS is its name on the target.
	NS oplog.Namespace `bson:"ns"`
	// Source is the UUID of the source's collection, zero for a view and for one that only the target
	// has.
	Source bson.Binary `bson:"source"`
	// SourceAt is Listed.At of that, absent if an earlier release has stored it: see replaceable and differed.
	SourceAt bson.Timestamp `bson:"sourceAt,omitempty"`
	// Joined is the first round that had listed it when it began, 0 if none has.
	Joined int64   `bson:"joined"`
	Is     *Result `bson:"is,omitempty"`
	Fault  *Fault  `bson:"fault,omitempty"`
	Mark   *Mark   `bson:"mark,omitempty"`
	// Differed is Mark.Target of the newest mark whose Why begins with WhyDiffers: a mark for another reason may have replaced it. Nil
	// for none, and if an earlier release has stored that.
	Differed *bson.Timestamp `bson:"differed,omitempty"`
	Pass     *Pass           `bson:"pass,omitempty"`
	// Repaired are documents that were found the same at a later cut than the result's, the newest
	// ones.
	Repaired []Repaired `bson:"repaired,omitempty"`

	// raw is the document as it was read, nil for none.
	raw bson.Raw
}

// Repaired is a document that was found the same on both sides.
type Repaired struct {
	// ID is that of Found.
	ID string `bson:"id"`
	// Target is the cut's time.
	Target bson.Timestamp `bson:"target"`
}

// mostRepaired is how many a document has.
const mostRepaired = 1000

// repair takes the differences out of the result that a later comparison of their documents alone has
// not found any more. Those that are only counted stay, as does what the comparison may have seen after
// that.
func (d *document) repair() {
	if d.Is == nil || len(d.Repaired) == 0 {
		return
	}
	same := map[string]bool{}
	for _, r := range d.Repaired {
		if oplog.CompareTimestamps(r.Target, d.Is.Last.Target) > 0 {
			same[r.ID] = true
		}
	}
	left := make([]Found, 0, len(d.Is.Found))
	for _, f := range d.Is.Found {
		if f.ID == "" || !same[f.ID] || !d.Is.Tally.take(f.Kind) {
			left = append(left, f)
		}
	}
	d.Is.Found = left
}

// take counts a difference as one less, and reports whether it did.
func (t *Tally) take(kind string) bool {
	n := map[string]*int64{"missing": &t.Missing, "extra": &t.Extra, "differs": &t.Differs}[kind]
	if n == nil || *n == 0 {
		return false
	}
	*n--
	if kind != "extra" {
		t.EqualDocs++
	}
	return true
}

// markAs takes over the mark of the time series whose buckets the collection has: what changes documents of a time series, or copies
// it, is known by its name.
func (d *document) markAs(ns oplog.Namespace, docs map[oplog.Namespace]*document) {
	series := docs[ns.Series()]
	if !ns.IsBuckets() || series == nil || series.Mark == nil {
		return
	}
	if d.Mark == nil || oplog.CompareTimestamps(d.Mark.Target, series.Mark.Target) < 0 {
		d.Mark = series.Mark
	}
}

// marked reports whether the collection was marked after its result.
func (d *document) marked() bool {
	return d.Mark != nil && (d.Is == nil || oplog.CompareTimestamps(d.Is.First.Target, d.Mark.Target) <= 0)
}

// overtaken takes away the pass of another round than the present one. If differences were found in that of an earlier one, the collection
// is marked: the process that has begun the present round stores that, but only afterwards.
func (d *document) overtaken(round int64) {
	p := d.Pass
	d.Pass = nil
	if p.Round > round || d.Is.Knows(p.all(), max(p.More, p.ToldMore)) {
		return
	}
	d.Differed = &bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}
	if !d.marked() {
		d.Mark = &Mark{Target: *d.Differed, Why: whyReplaced}
	}
}

// passOf returns the pass of a round, nil for none.
func (d *document) passOf(round int64) *Pass {
	if d.Pass == nil || d.Pass.Round != round {
		return nil
	}
	return d.Pass
}

// differed reports whether a comparison has found a difference in the collection that no other one has looked for since: it counts then
// although no round has listed it yet.
func (d *document) differed() bool {
	at := d.Differed
	if m := d.Mark; m != nil && strings.HasPrefix(m.Why, WhyDiffers) && (at == nil || oplog.CompareTimestamps(m.Target, *at) > 0) {
		at = &m.Target
	}
	return at != nil && (d.Is == nil || oplog.CompareTimestamps(d.Is.First.Target, *at) <= 0) && oplog.CompareTimestamps(*at, justBefore(d.SourceAt)) >= 0
}

// sources returns the UUIDs of the collections in which a difference of the document may have been found: its own, and that of its pass,
// as another verification may have forgotten or replaced the collection before the pass was stored.
func (d *document) sources() (list []oplog.UUID) {
	ids := []bson.Binary{d.Source}
	if d.Pass != nil && !d.Pass.Source.Equal(d.Source) {
		ids = append(ids, d.Pass.Source)
	}
	for _, b := range ids {
		if len(b.Data) == len(oplog.UUID{}) && oplog.UUID(b.Data) != (oplog.UUID{}) {
			list = append(list, oplog.UUID(b.Data))
		}
	}
	return list
}

// differs reports whether a difference in the collection is known, or was.
func (d *document) differs() bool {
	return d.Is != nil && d.Is.differences() > 0 || d.Pass != nil && (len(d.Pass.all()) > 0 || d.Pass.More > 0 || d.Pass.ToldMore > 0) || d.differed()
}

// Round is a verification of all collections. Its document has the _id LINK//round: no database has
// an empty name.
type Round struct {
	// N is its number, from 1 on; Complete is the newest one that is complete, 0 for none.
	N        int64 `bson:"n"`
	Complete int64 `bson:"complete"`
	// Began is a cut of when it began, At the time of that.
	Began Cut       `bson:"began"`
	At    time.Time `bson:"at"`
	// Listed is how many collections there were.
	Listed int64 `bson:"listed"`
	// Begins counts how often a round began or went on.
	Begins int64 `bson:"begins"`
	// Last is the newest complete one.
	Last *Ended `bson:"last,omitempty"`
}

// Ended is a round that is complete.
type Ended struct {
	Began Cut       `bson:"began"`
	From  time.Time `bson:"from"`
	To    time.Time `bson:"to"`
}

// Open reports whether the round is not complete.
func (r *Round) Open() bool { return r.N > r.Complete }
