package pipeline

import "github.com/oplogrep/replicator/oplog"

// standing is the progress of a link, to find out whether a failed attempt advanced it.
type standing struct {
	applied oplog.OpTime
	// copy is the number of the copy that is being made, 0 if there is none; the rest
	// is its progress.
	copy                 int64
	docs                 int64
	collections, indexes int
}

// standing returns the present progress of the link.
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

// beyond reports whether a link has advanced since before: in what it has applied or
// copied. A copy that was started anew does not count, as otherwise one that becomes
// void each time would be restarted without a pause.
func (s standing) beyond(before standing) bool {
	if s.applied.After(before.applied) {
		return true
	}
	if s.copy != before.copy && before.copy != 0 {
		return false
	}
	return s.docs > before.docs || s.collections > before.collections || s.indexes > before.indexes
}
