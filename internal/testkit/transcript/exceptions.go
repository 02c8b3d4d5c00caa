package transcript

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// exception is a difference that is known and kept.
type exception struct {
	// scenario and last name the recording: its name, and the optime of its last
	// entry.
	scenario, last string
	part           Part
	// from and to are the first and last line or entry.
	from, to int
	// path is the field, or what the difference is about; everything if empty.
	path string
	// why says why the difference is kept.
	why string
}

// exceptions are all that there are, but for excepted orders of fields.
var exceptions = []exception{}

// ruleColumns excepts the order of a bucket's columns, in the recordings of
// time-series collections: the recorded server takes the columns out of a hash
// table, and the order changes within one run of it, at the 28th entry. Ours stays
// as it was at first. What is in the columns is compared. Where orders differ, that
// counts as one exception of the scenario.
var ruleColumns = rule{"columns", func(c *comparer, path string, want, got bson.RawValue) bool {
	if want.Type != bson.TypeEmbeddedDocument || got.Type != want.Type {
		return false
	}
	if !sameOrder(want.Value, got.Value) {
		c.pairs.reordered = true
	}
	c.unordered(path+".", want.Value, got.Value)
	return true
}}

// sameOrder reports whether two documents have the same names in the same order.
func sameOrder(a, b bson.Raw) bool {
	x, y := rawbson.NewIter(a), rawbson.NewIter(b)
	for x.Next() {
		if !y.Next() || !x.Is(y.Name()) {
			return false
		}
	}
	return !y.Next()
}

// except takes the known differences out, and reports exceptions that did not
// occur.
func (p *player) except(known []exception) {
	meta := &p.scenario.Meta
	for _, x := range known {
		if x.scenario != p.scenario.Name || x.last != meta.Last {
			continue
		}
		n := 0
		var rest []Difference
		for _, d := range p.found {
			if x.matches(d) {
				n++
			} else {
				rest = append(rest, d)
			}
		}
		p.found = rest
		if n == 0 {
			p.report.Differences = append(p.report.Differences, Difference{
				Part: x.part, At: x.from, Path: x.path, What: "the exception does not apply any more: " + x.why,
			})
			continue
		}
		p.report.Exceptions++
	}
	if p.pairs.reordered {
		p.report.Exceptions++
	}
	p.report.Differences = append(p.report.Differences, p.found...)
}

func (x *exception) matches(d Difference) bool {
	return d.Part == x.part && d.At >= x.from && d.At <= x.to && (x.path == "" || d.Path == x.path)
}
