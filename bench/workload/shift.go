package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// shifted moves the entries of a recording to another place of a log: all seconds
// and terms in them are shifted equally, so that they stay in order, and
// references between them stay valid.
type shifted struct {
	groups  *groups
	first   oplog.OpTime
	last    oplog.OpTime
	started bool
	// seconds and terms are added to each optime.
	seconds, terms int64
}

func newShifted(path string, limit int, first oplog.OpTime) (*shifted, error) {
	g, err := openGroups(path, limit)
	return &shifted{groups: g, first: first, last: first}, err
}

func (s *shifted) next() (raw bson.Raw, ops int, ok bool, err error) {
	entry, ok, err := s.groups.next()
	if err != nil || !ok {
		return nil, 0, false, err
	}
	if !s.started {
		s.started = true
		s.seconds = int64(s.first.TS.T) + 1 - int64(entry.OpTime.TS.T)
		s.terms = s.first.Term - entry.OpTime.Term
	}
	raw = slices.Clone(entry.Raw)
	if err := s.shift(raw, entry.Command); err != nil {
		return nil, 0, false, fmt.Errorf("move entry %v of %s after %v: %w", entry.OpTime, s.groups.path, s.first, err)
	}
	s.last = oplog.NewOpTime(uint32(int64(entry.OpTime.TS.T)+s.seconds), entry.OpTime.TS.I, entry.OpTime.Term+s.terms)
	return raw, len(entry.ops), true, nil
}

var errNoTerm = errors.New("an entry without a term cannot be moved")

// shift changes an entry in place. All changed fields keep their length.
func (s *shifted) shift(raw bson.Raw, command oplog.Command) error {
	term := false
	it := rawbson.NewIter(raw)
	for it.Next() {
		var err error
		switch it.Name() {
		case "ts":
			err = s.shiftTimestamp(it.Value)
		case "t":
			term = true
			err = s.shiftTerm(&it.Elem)
		case "wall":
			wall, _ := it.DateTime()
			binary.LittleEndian.PutUint64(it.Value, uint64(wall+s.seconds*1000))
		case "prevOpTime", "preImageOpTime", "postImageOpTime":
			err = s.shiftOpTime(it.Value)
		case "o":
			if command == oplog.CommandCommitTransaction {
				if at, ok := rawbson.Lookup(it.Value, "commitTimestamp"); ok {
					err = s.shiftTimestamp(at.Value)
				}
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", it.Name(), err)
		}
	}
	if !term {
		return errNoTerm
	}
	return it.Err()
}

func (s *shifted) shiftTimestamp(value []byte) error {
	seconds := binary.LittleEndian.Uint32(value[4:])
	if seconds == 0 {
		return nil // the null timestamp
	}
	moved := int64(seconds) + s.seconds
	if moved <= 0 || moved > math.MaxUint32 {
		return fmt.Errorf("second %d would become %d", seconds, moved)
	}
	binary.LittleEndian.PutUint32(value[4:], uint32(moved))
	return nil
}

func (s *shifted) shiftTerm(e *rawbson.Elem) error {
	if e.Type != bson.TypeInt64 {
		return fmt.Errorf("a term of type %s cannot be changed", e.Type)
	}
	term, _ := e.Int64()
	if term == oplog.UninitializedTerm {
		return nil
	}
	binary.LittleEndian.PutUint64(e.Value, uint64(term+s.terms))
	return nil
}

func (s *shifted) shiftOpTime(doc bson.Raw) error {
	it := rawbson.NewIter(doc)
	for it.Next() {
		var err error
		switch it.Name() {
		case "ts":
			err = s.shiftTimestamp(it.Value)
		case "t":
			err = s.shiftTerm(&it.Elem)
		}
		if err != nil {
			return err
		}
	}
	return it.Err()
}
