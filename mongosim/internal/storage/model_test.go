package storage_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// The model is a list of commits, and a state is what comes out of carrying out
// those that a view sees, in order of their timestamps. What two units may not
// both touch has a name.

type modelColl struct {
	ns      string
	options int32
	unique  bool // there is a unique index on k
	docs    map[storage.RecordID]modelDoc
}

type modelDoc struct {
	id string // of _id
	k  []string
	n  int
}

type state map[oplog.UUID]*modelColl

func (s state) clone() state {
	c := state{}
	for id, coll := range s {
		copied := *coll
		copied.docs = maps.Clone(coll.docs)
		c[id] = &copied
	}
	return c
}

type modelUnit struct {
	real     *storage.Unit
	base     state // the snapshot
	state    state
	ops      []func(state)
	touched  map[string]bool
	ts       uint64 // of the snapshot, all if it is the newest
	readTS   uint64
	seq      int
	prepared uint64
}

type modelCommit struct {
	ts, durable uint64
	seq         int
	ops         []func(state)
	touched     map[string]bool
}

type model struct {
	t       *rapid.T
	store   *storage.Store
	commits []modelCommit
	units   []*modelUnit
	seq     int
	clock   uint64
	stable  uint64
	pins    map[uint64]func()
	uuids   int
	log     []uint64
	counts  map[string]int
}

const all = ^uint64(0)

func stamp(ts uint64) bson.Timestamp { return bson.Timestamp{T: uint32(ts >> 4), I: uint32(ts & 15)} }

func (m *model) at(ts uint64, seq int) state {
	var seen []modelCommit
	for _, c := range m.commits {
		if c.ts <= ts && c.seq <= seq {
			seen = append(seen, c)
		}
	}
	slices.SortStableFunc(seen, func(a, b modelCommit) int { return cmp.Or(cmp.Compare(a.ts, b.ts), a.seq-b.seq) })
	s := state{}
	for _, c := range seen {
		for _, op := range c.ops {
			op(s)
		}
	}
	return s
}

// conflicts reports whether another unit touches any of the names, or a commit did
// that u does not see.
func (m *model) conflicts(u *modelUnit, names ...string) bool {
	for _, name := range names {
		for _, o := range m.units {
			if o != u && o.touched[name] && (!strings.HasPrefix(name, "name ") || o.changes(name)) {
				return true
			}
		}
		for _, c := range m.commits {
			if c.touched[name] && (c.ts > u.ts || c.seq > u.seq) {
				return true
			}
		}
	}
	return false
}

// changes reports whether a unit changes a name or an _id in the end: what it made
// and took away again is as if it had never been.
func (u *modelUnit) changes(name string) bool {
	kind, _, _ := strings.Cut(name, " ")
	if kind == "key" {
		return true
	}
	for _, s := range []state{u.base, u.state} {
		for id, c := range s {
			meta := fmt.Sprint("meta ", id)
			if meta == name || u.touched[meta] && name == "name "+c.ns {
				return true
			}
			for rid, doc := range c.docs {
				at := fmt.Sprint("doc ", id, rid)
				if u.touched[at] && (name == at || name == fmt.Sprint("id ", id, doc.id) || name == fmt.Sprint("data ", id)) {
					return true
				}
			}
		}
	}
	return false
}

// do carries out an operation on the model if it is allowed, and demands the same
// of the store.
func (m *model) do(u *modelUnit, what string, got error, conflict bool, code servererr.Code, touched []string, op func(state)) {
	m.t.Helper()
	m.t.Logf("unit at %d, #%d: %s: %v (touches %v)", u.readTS, u.seq, what, got, touched)
	err, _ := errors.AsType[*servererr.Error](got)
	switch {
	case conflict:
		if !errors.Is(got, storage.ErrWriteConflict) {
			m.t.Fatalf("%s: got %v, want a write conflict", what, got)
		}
		m.counts["conflict"]++
		return
	case code != 0:
		if err == nil || err.Code != code {
			m.t.Fatalf("%s: got %v, want %s", what, got, code)
		}
		m.counts[code.String()]++
		return
	}
	if got != nil {
		m.t.Fatalf("%s: got %v, want no error", what, got)
	}
	op(u.state)
	u.ops = append(u.ops, op)
	for _, name := range touched {
		u.touched[name] = true
	}
	m.counts[strings.Fields(what)[0]]++
}
