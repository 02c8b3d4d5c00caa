package transcript

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// noopsByClock are the notes that a server writes when nothing else is written, or
// for its own sake: they come at other times in every run.
var noopsByClock = []string{"periodic noop"}

// compareLogs compares the recorded log with ours, entry by entry, and then the
// timestamps that were met on the way.
func (p *player) compareLogs(ours []bson.Raw) {
	var want, got []logged
	for i, e := range p.entries {
		if byClock(e.Raw) {
			continue
		}
		want = append(want, read(i, e.Raw))
	}
	p.report.Entries = len(want)
	for i, raw := range ours {
		if !byClock(raw) {
			got = append(got, read(i, raw))
		}
	}
	stands := p.align(want, got)
	p.compareStamps(want, stands)
}

// logged is an entry and the fields by which a similar one is found.
type logged struct {
	at    int
	raw   bson.Raw
	ns    oplog.Namespace
	shape string
	ts    bson.Timestamp
	wall  int64
}

func read(at int, raw bson.Raw) logged {
	l := logged{at: at, raw: raw}
	field := func(name string) rawbson.Elem {
		e, _ := rawbson.Lookup(raw, name)
		return e
	}
	ts, wall, op, ns := field("ts"), field("wall"), field("op"), field("ns")
	l.ts, _ = ts.Timestamp()
	l.wall, _ = wall.DateTime()
	kind, _ := op.Text()
	name, _ := ns.Text()
	l.ns = oplog.Namespace(name)
	l.shape = kind + " " + temporary.ReplaceAllString(name, "$1$3")
	o := field("o")
	doc, _ := o.Document()
	switch kind {
	case "c":
		it := rawbson.NewIter(doc)
		it.Next()
		target, _ := it.Text()
		l.shape += " " + it.Name() + " " + temporary.ReplaceAllString(target, "$1$3")
	case "u":
		o2 := field("o2")
		doc, _ = o2.Document()
		fallthrough
	default:
		id, _ := rawbson.Lookup(doc, "_id")
		if id.Type != bson.TypeObjectID && !strings.Contains(name, "system.indexBuilds") { // those may be generated
			l.shape += " " + string(id.Value)
		}
	}
	return l
}

func byClock(raw bson.Raw) bool {
	op, _ := rawbson.Lookup(raw, "op")
	if kind, _ := op.Text(); kind != "n" {
		return false
	}
	o, _ := rawbson.Lookup(raw, "o")
	doc, _ := o.Document()
	e, _ := rawbson.Lookup(doc, "msg")
	msg, _ := e.Text()
	return slices.Contains(noopsByClock, msg)
}

// farthest is how many entries ahead the like of an entry is looked for.
const farthest = 60

// align goes through both logs, and where they do not agree looks for the nearest
// place where they do again. It returns which timestamp of ours stands for which
// recorded one.
func (p *player) align(want, got []logged) map[bson.Timestamp]bson.Timestamp {
	stands := map[bson.Timestamp]bson.Timestamp{}
	for len(want) > 0 || len(got) > 0 {
		if len(want) > 0 && len(got) > 0 && want[0].shape == got[0].shape {
			stands[want[0].ts] = got[0].ts
			p.compareEntry(&want[0], &got[0])
			want, got = want[1:], got[1:]
			continue
		}
		missing, extra := resync(want, got)
		for _, w := range want[:missing] {
			p.found = append(p.found, Difference{Part: PartEntry, At: w.at, What: "missing: " + show(document(w.raw))})
		}
		at := len(p.entries)
		if len(want) > missing {
			at = want[missing].at
		}
		for _, g := range got[:extra] {
			p.found = append(p.found, Difference{Part: PartEntry, At: at, What: "before it, there is one too many: " + show(document(g.raw)), extra: true})
		}
		want, got = want[missing:], got[extra:]
	}
	return stands
}

func document(raw bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: raw}
}

// resync returns how many entries to pass over on each side.
func resync(want, got []logged) (missing, extra int) {
	for together := 1; together <= 2*farthest; together++ {
		for m := 0; m <= together; m++ {
			e := together - m
			if m < len(want) && e < len(got) && want[m].shape == got[e].shape {
				return m, e
			}
		}
	}
	return len(want), len(got)
}

// clockSlack is how far a document's time may be from its entry's wall time.
const clockSlack = 2 * time.Second

func (p *player) compareEntry(want, got *logged) {
	c := comparer{rules: entryRules, pairs: p.pairs, part: PartEntry, at: want.at}
	if want.ns.IsBuckets() {
		c.rules = bucketRules
	}
	c.clock = func(w, g bson.RawValue) bool { return nearWall(w, want.wall) && nearWall(g, got.wall) }
	c.document("", want.raw, got.raw)
	p.found = append(p.found, c.found...)
}

// nearWall reports whether a value is a time close to an entry's, in milliseconds.
func nearWall(v bson.RawValue, wall int64) bool {
	ms := int64(0)
	if t, ok := v.DateTimeOK(); ok {
		ms = t
	} else if t, _, ok := v.TimestampOK(); ok {
		ms = int64(t) * 1000
	} else {
		return false
	}
	return max(ms-wall, wall-ms) <= clockSlack.Milliseconds()
}

// compareStamps checks that timestamps which stand for each other are of entries
// that do. Those from before the log, and of entries that were left out, are not
// known.
func (p *player) compareStamps(want []logged, stands map[bson.Timestamp]bson.Timestamp) {
	known := map[bson.Timestamp]bool{}
	for _, w := range want {
		known[w.ts] = true
	}
	for _, s := range p.pairs.stamps {
		ours, ok := stands[s.want]
		if !known[s.want] || !ok || oplog.CompareTimestamps(ours, s.got) == 0 {
			continue
		}
		p.found = append(p.found, Difference{Part: s.part, At: s.at, Path: s.path, What: fmt.Sprintf(
			"%d:%d is not the timestamp of the entry that stands for %d:%d, which is %d:%d", s.got.T, s.got.I, s.want.T, s.want.I, ours.T, ours.I)})
	}
}
