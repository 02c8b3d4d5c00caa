package storage

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// keyChange is a key of a unique index that a write frees or takes.
type keyChange struct {
	c    *constraint
	key  string
	take bool
}

// plan returns what a write does to the unique indexes of a collection, or why the
// indexes refuse it. old and doc are nil for an insert and a delete.
func (u *Unit) plan(m *tableMeta, r *record, old, doc bson.Raw) ([]keyChange, error) {
	var changes []keyChange
	for c := range m.active {
		var had, has []indexKey
		var err error
		if doc != nil {
			if has, err = c.keys(doc); err != nil {
				if !u.relaxed {
					return nil, err
				}
				has = nil
			}
		}
		if !c.unique {
			continue
		}
		if old != nil {
			if had, err = c.keys(old); err != nil {
				had = nil // a relaxed unit stored it
			}
		}
		// Both are in order and without repetition.
		for len(had) > 0 || len(has) > 0 {
			switch {
			case len(has) == 0 || len(had) > 0 && had[0].bytes < has[0].bytes:
				changes = append(changes, keyChange{c: c, key: had[0].bytes})
				had = had[1:]
			case len(had) == 0 || has[0].bytes < had[0].bytes:
				if err := u.checkKey(m, c, &has[0], r); err != nil {
					return nil, err
				}
				changes = append(changes, keyChange{c: c, key: has[0].bytes, take: true})
				has = has[1:]
			default:
				had, has = had[1:], has[1:]
			}
		}
	}
	return changes, nil
}

// checkKey refuses a key that is taken.
func (u *Unit) checkKey(m *tableMeta, c *constraint, key *indexKey, r *record) error {
	s := c.slots[key.bytes]
	switch {
	case s == nil:
		return nil
	case s.unit != nil && s.unit != u, s.unit == nil && u.isLater(s.ts, s.seq):
		return ErrWriteConflict
	case s.holder == nil || s.holder == r || u.relaxed:
		return nil
	default:
		return duplicate(m.NS, c.name, c.pattern, c.collation, key.values, c.coll)
	}
}

// apply executes the changes of a plan.
func (u *Unit) apply(changes []keyChange, t *table, r *record) {
	for _, k := range changes {
		s := k.c.slots[k.key]
		if s == nil {
			if !k.take {
				continue
			}
			s = &slot{key: k.key}
			k.c.slots[k.key] = s
		}
		switch {
		case !k.take && s.holder != r:
			continue
		case k.take && s.holder != nil && s.holder != r:
			s.shared = true
			continue
		}
		if s.unit != u {
			s.unit, s.kept = u, s.holder
			u.slots = append(u.slots, slotChange{local: t.local, c: k.c, slot: s})
		}
		switch {
		case k.take:
			s.holder = r
		case s.shared:
			s.holder = t.otherHolder(u, k.c, k.key, r)
		default:
			s.holder = nil
		}
	}
}

// otherHolder looks for a document besides r that has the key.
func (t *table) otherHolder(u *Unit, c *constraint, key string, r *record) *record {
	for _, p := range t.places.slots {
		if p.rec == nil || p.rec == r {
			continue
		}
		v := seen(p.rec.head, &u.view)
		if v == nil {
			continue
		}
		keys, err := c.keys(v.val)
		if err != nil {
			continue
		}
		for _, k := range keys {
			if k.bytes == key {
				return p.rec
			}
		}
	}
	return nil
}

// fill gives a constraint the keys of all documents that are seen. Of several
// duplicates it reports the one that comes first in the index, as a build does that
// sorts its keys; with relaxed it accepts everything.
func (t *table) fill(m *tableMeta, c *constraint, v *view, relaxed bool) error {
	if c == nil {
		return nil
	}
	if c.unique {
		c.slots = make(map[string]*slot, t.count)
	}
	var twice *indexKey
	for _, p := range t.places.slots {
		if p.rec == nil {
			continue
		}
		x := seen(p.rec.head, v)
		if x == nil {
			continue
		}
		keys, err := c.keys(x.val)
		if err != nil {
			if relaxed {
				continue
			}
			return err
		}
		if !c.unique {
			continue
		}
		for i := range keys {
			k := &keys[i]
			if s := c.slots[k.bytes]; s != nil {
				s.shared = true
				if twice == nil || k.bytes < twice.bytes {
					twice = k
				}
				continue
			}
			c.slots[k.bytes] = &slot{key: k.bytes, holder: p.rec, kept: p.rec, ts: x.ts, seq: x.seq}
		}
	}
	if twice != nil && !c.lenient && !relaxed {
		return duplicate(m.NS, c.name, c.pattern, c.collation, twice.values, c.coll)
	}
	return nil
}
