package corpus

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// rules are the properties of a log that limit the proof.
type rules struct {
	// refused says why the log must not be applied again, empty if it may.
	refused string
	// unsure says why the log need not converge, empty if it must.
	unsure string
	// reorders is true if applying the log may change the order of fields.
	reorders bool
}

// rules finds out whether the log converges when it is applied to its own
// result. The recording may say so itself. Otherwise it does, except that by the
// server's own rules it need not if there are
//
//   - updates of the older form ($v: 1) of array elements: they say where an
//     element is, and it may have moved by the end of the log; the server's
//     tests leave them out; other updates of that form may reorder fields;
//   - capped collections that trim themselves (up to 4.4): trimmed documents
//     come back, and displace others;
//   - a capped collection that gets an _id twice: the natural order then depends
//     on the documents before;
//   - a name that is that of a view and of a collection in turn: views and
//     collections are not in each other's way as collections are, so that an older
//     create or rename is passed over while the view is there.
//
// Such a log is tried all the same.
func (p *proof) rules() rules {
	var r rules
	said := p.scenario.Meta.Reappliable
	if said != nil && !*said {
		r.refused = "the recording says that it cannot be applied again"
		return r
	}
	logged := survey(p.base)
	for i := range p.groups {
		for j := range p.groups[i].Ops {
			logged.add(&p.groups[i].Ops[j])
		}
	}
	r.reorders = logged.older
	if said == nil {
		r.unsure = strings.Join(logged.reasons(p.scenario.trimsCapped()), ", ")
	}
	return r
}

// surveyed are the properties of a log that matter for applying it again.
type surveyed struct {
	older, byPosition bool // updates of the older form, of array elements
	capped            map[oplog.UUID]bool
	inCapped          map[string]bool // keys of the _ids that capped collections had
	fillsCapped       bool
	cappedTwice       bool
	collections       map[oplog.Namespace]bool // names that collections were given
	views             map[oplog.Namespace]bool
}

// survey begins with the data that the log is applied to.
func survey(base *memstore.Store) *surveyed {
	s := surveyed{
		capped: map[oplog.UUID]bool{}, inCapped: map[string]bool{},
		collections: map[oplog.Namespace]bool{}, views: map[oplog.Namespace]bool{},
	}
	for _, c := range base.Collections() {
		s.capped[c.UUID()] = c.Capped()
		for doc := range c.All() {
			id, _ := rawbson.Lookup(doc, "_id")
			switch {
			case c.Capped():
				s.inCapped[string(oplog.AppendIDKey(uuidOf(c), id.Raw()))] = true
			case c.NS().IsSystemViews():
				s.addView(id.Raw())
			}
		}
	}
	return &s
}

func uuidOf(c *memstore.Collection) []byte {
	u := c.UUID()
	return u[:]
}

func (s *surveyed) addView(id bson.RawValue) {
	if name, ok := id.StringValueOK(); ok {
		s.views[oplog.Namespace(name)] = true
	}
}

func (s *surveyed) add(op *oplog.Op) {
	switch {
	case op.Kind == oplog.KindUpdate:
		older, byPosition := modifiers(op.O)
		s.older = s.older || older
		s.byPosition = s.byPosition || byPosition
	case op.Command == oplog.CommandCreate:
		s.capped[op.UI] = isCapped(op)
		if c, err := op.Create(); err == nil {
			s.collections[c.NS] = true
		}
	case op.Command == oplog.CommandRenameCollection:
		if c, err := op.RenameCollection(); err == nil {
			s.collections[c.To] = true
		}
	case op.Kind == oplog.KindInsert && s.capped[op.UI]:
		key := string(oplog.AppendIDKey(op.UI[:], op.ID))
		s.cappedTwice = s.cappedTwice || s.inCapped[key]
		s.inCapped[key] = true
		s.fillsCapped = true
	case op.Kind == oplog.KindInsert && op.NS.IsSystemViews():
		s.addView(op.ID)
	}
}

// reasons says why the log need not converge.
func (s *surveyed) reasons(trims bool) []string {
	var all []string
	if s.byPosition {
		all = append(all, "$v:1 updates of array elements")
	}
	if s.fillsCapped && trims {
		all = append(all, "capped collections that trim themselves")
	} else if s.cappedTwice {
		all = append(all, "a capped collection gets an _id twice")
	}
	for name := range s.views {
		if s.collections[name] {
			return append(all, "a name is that of a view and of a collection in turn")
		}
	}
	return all
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

// modifiers reports whether an update is of the older form, and whether a path in
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
