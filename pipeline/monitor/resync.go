package monitor

import (
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/resync"
)

// Position returns the position of the link for copying collections again. While the link is
// paused, it cannot be advanced to that of a part either.
func (m *Monitor) Position() resync.Position {
	spooled, follows := m.isSpooled()
	return resync.Position{
		Applied: m.Progress().Applied, Copying: m.Gaps().Copying, KeptBack: len(m.KeptBack()) > 0,
		Spooled: spooled, Overflows: follows, Paused: m.cfg.Paused != nil && m.cfg.Paused(), Kept: m.kept(),
	}
}

// OfPart returns the status of a part, given its snapshot.
func (s *Snapshot) OfPart() resync.Status {
	text := string(s.State)
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	now := resync.Status{Text: text, Steady: s.State == Steady, Applied: s.Progress.Applied, KeptBack: len(s.Applier.KeptBack) > 0}
	if s.Copy == nil {
		return now
	}
	now.Consistent = s.Copy.Phase == checkpoint.Copied
	if c := s.Copy.Progress; c != nil {
		now.Text = fmt.Sprintf("%s: %d of about %d documents", c.Step, c.Docs, c.TotalDocs)
	} else {
		now.Text += ", " + string(s.Copy.Phase)
	}
	return now
}
