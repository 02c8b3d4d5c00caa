package pipeline

import "github.com/oplogrep/replicator/oplog"

// standing is how far a link is: whether an attempt that failed has got on.
type standing struct {
	applied oplog.OpTime
	// copy is the number of the copy that is being made, 0 if there is none, and the
	// rest is what it has done.
	copy                 int64
	docs                 int64
	collections, indexes int
}

// standing is how far the link is now.
func (p *Pipeline) standing() standing {
	at := standing{applied: p.progress().Applied}
	if c := p.shown.Load(); c != nil {
		s := c.snapshot()
		at.copy = s.Number
		if s.Progress != nil {
			at.docs, at.collections, at.indexes = s.Progress.Docs, s.Progress.Collections, s.Progress.Indexes
		}
	}
	return at
}

// beyond tells whether a link has got on since: what it has applied, or what it has
// copied. A copy that was begun anew has not, or one that is void each time would be
// begun without a pause.
func (s standing) beyond(before standing) bool {
	if s.applied.After(before.applied) {
		return true
	}
	if s.copy != before.copy && before.copy != 0 {
		return false
	}
	return s.docs > before.docs || s.collections > before.collections || s.indexes > before.indexes
}
