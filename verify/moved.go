package verify

import (
	"context"
	"slices"

	"github.com/oplogrep/replicator/oplog"
)

// moves knows which collections of the source were listed, and were not under that name any more
// when they were to be compared: they may have been renamed to a name that was not listed. They
// are known by UUID. Verifier.mu guards it.
type moves struct {
	// left are those that were not found again, compared those whose comparison has ended.
	left, compared map[oplog.UUID]bool
}

// leave records that a collection of the source has left its name, unless it is in a newer listing
// of that name.
func (v *Verifier) leave(l *listed, newer []settled) {
	still := func(s settled) bool { return s.want != nil && s.want.uuid == l.uuid }
	if l == nil || l.uuid == (oplog.UUID{}) || slices.ContainsFunc(newer, still) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.moves.left[l.uuid] = true
}

// arrive records that the comparison of a collection has ended, whatever its result.
func (v *Verifier) arrive(l *listed) {
	if l == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.moves.compared[l.uuid] = true
}

// moved returns the collections of the source that have other names by now than when they were
// listed, and were not compared.
func (v *Verifier) moved(ctx context.Context) ([]settled, error) {
	v.mu.Lock()
	left := v.moves.left
	v.moves.left = map[oplog.UUID]bool{}
	for id := range v.moves.compared {
		delete(left, id)
	}
	v.mu.Unlock()
	if len(left) == 0 {
		return nil, nil
	}
	all, err := v.settle(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s settled) bool { return s.want == nil || !left[s.want.uuid] }), nil
}
