package cutover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/status"
)

// Report is whether a link can be cut over, and why not.
type Report struct {
	Link string `json:"link"`
	// At is the time of this machine's clock.
	At time.Time `json:"at"`
	// From is the origin of the link's state: process or metadata.
	From string `json:"from"`
	status.Readiness
	// Violations are the keys that unique indexes would refuse.
	Violations []Violation `json:"violations"`
}

// Names of preconditions that this package adds to those of a status.Snapshot.
const (
	// DeferredIndexes: the deferred options of indexes can be restored.
	DeferredIndexes = "deferred-indexes"
	verified        = "verified"
	divergences     = "divergences"
	foreignWrites   = "foreign-writes"
	lacking         = "lacking"
	lag             = "lag"
	oplogWindow     = "oplog-window"
	steady          = "steady"
	targetDisk      = "target-disk"
)

// Waivable returns the names of the preconditions that an operator may waive: those that say
// how well the target is known, or concern what can be repaired after a cutover.
func Waivable() []string {
	return []string{DeferredIndexes, divergences, foreignWrites, lacking, targetDisk, verified}
}

// CheckWaived returns an error for names that cannot be waived.
func CheckWaived(names []string) error {
	for _, name := range names {
		if !slices.Contains(Waivable(), name) {
			return fmt.Errorf("%q cannot be waived; only %s can", name, strings.Join(Waivable(), ", "))
		}
	}
	return nil
}

// Sum sums preconditions up. Those that are not met and have one of the given names are waived.
func (r *Report) Sum(list []status.Precondition, waived []string) {
	for i := range list {
		if p := &list[i]; p.Standing != status.Met && slices.Contains(waived, p.Name) && slices.Contains(Waivable(), p.Name) {
			p.Standing, p.Next = status.Waived, ""
		}
	}
	r.Readiness = status.NewReadiness(list)
}

// FromFinding returns the precondition that a check of the servers stands for. A warning is
// met, and says what can be done.
func FromFinding(f *preflight.Finding) status.Precondition {
	p := status.Precondition{Name: strings.ReplaceAll(f.Check, " ", "-"), Standing: status.Met, Value: f.Detail, Next: f.Do}
	if f.Level == preflight.Fail {
		p.Standing = status.Unmet
	}
	return p
}
