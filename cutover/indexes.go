package cutover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/status"
)

// uncheckedNext is the next step if indexes cannot be checked.
const uncheckedNext = "replicator cut --wait …, then try again; or waive it: what violates an index is then found when the index is built."

// Violation is a key that several documents of the target have in an index that is unique on
// the source.
type Violation struct {
	Namespace string `json:"namespace"`
	Index     string `json:"index"`
	// IDs are the smallest and the largest _id of the documents that have the key.
	IDs [2]string `json:"ids"`
}

// Indexes checks whether the deferred options of indexes can be restored, as of a consistent cut
// of the link: without one, writers that are ahead of each other may have duplicates that the
// source never had. cut is nil if there is none. An index that cannot be checked makes the
// precondition unknown, with the reason; the error is the cause of ctx. newest, if not nil, returns the link's newest cut: the next
// indexes are checked as of that one once the target has no history of the last one any more.
func Indexes(ctx context.Context, target mongo.Caller, specs ddl.Specs, cut *checkpoint.Cut, newest func(context.Context) (*checkpoint.Cut, error), now time.Time) (status.Precondition, []Violation, error) {
	c := &indexChecks{cut: cut, newest: newest, violations: []Violation{}}
	if cut != nil {
		c.at = cut.At
	}
	for i := range specs {
		c.one(ctx, target, &specs[i])
		if ctx.Err() != nil {
			return status.Precondition{}, nil, context.Cause(ctx)
		}
	}
	return c.precondition(now), c.violations, nil
}

// indexChecks are the checks so far.
type indexChecks struct {
	cut    *checkpoint.Cut
	newest func(context.Context) (*checkpoint.Cut, error)
	// at is when the oldest of the cuts was made as of which an index was checked.
	at time.Time
	// checked are the unique indexes that were.
	checked int
	// indexes and collections have deferred options; unique and absent are among the indexes.
	indexes, collections, unique, absent int

	violations          []Violation
	violated, unchecked []string
	// later are those that a later release has deferred.
	later []string
}

// one checks one deferred spec.
func (c *indexChecks) one(ctx context.Context, target mongo.Caller, spec *ddl.DeferredSpec) {
	if unknown := spec.Unknown(); len(unknown) > 0 {
		c.later = append(c.later, fmt.Sprintf("%s of %s", strings.Join(unknown, ", "), nameOf(spec)))
	}
	if spec.Index == "" {
		c.collections++
		return
	}
	c.indexes++
	if spec.Absent {
		c.absent++
	}
	if !truth(spec.Spec, "unique") {
		return
	}
	c.unique++
	name := spec.Index + " of " + string(spec.NS)
	if c.cut == nil {
		c.unchecked = append(c.unchecked, name+": there is no consistent cut")
		return
	}
	found, err := violations(ctx, target, spec, c.cut.Target)
	if servererr.IsSnapshotTooOld(err) && c.renew(ctx) {
		found, err = violations(ctx, target, spec, c.cut.Target)
	}
	if err == nil {
		c.checked++
	}
	switch {
	case err != nil:
		c.unchecked = append(c.unchecked, name+": "+err.Error())
	case len(found) > 0:
		c.violated = append(c.violated, name)
		c.violations = append(c.violations, found...)
	}
}

// renew takes a newer cut, if there is one.
func (c *indexChecks) renew(ctx context.Context) bool {
	if c.newest == nil {
		return false
	}
	cut, err := c.newest(ctx)
	if err != nil || cut == nil || oplog.CompareTimestamps(cut.Target, c.cut.Target) <= 0 {
		return false // the target's answer says why the index is not checked
	}
	if c.cut = cut; c.checked == 0 {
		c.at = cut.At
	}
	return true
}

// precondition sums the checks up.
func (c *indexChecks) precondition(now time.Time) status.Precondition {
	p := status.Precondition{Name: DeferredIndexes, Standing: status.Met}
	has := fmt.Sprintf("%d indexes and %d collections have deferred options", c.indexes, c.collections)
	if c.absent > 0 {
		has += fmt.Sprintf(", %d of the indexes have to be built", c.absent)
	}
	if c.unique > 0 && c.cut != nil {
		age := max(0, now.Sub(c.at)).Seconds()
		p.AgeSeconds = &age
	}
	switch {
	case len(c.later) > 0:
		p.Standing = status.Unmet
		p.Value = fmt.Sprintf("%s; this release does not restore those that a later one has deferred: %s", has, some(c.later))
		p.Next = "Cut over with that release."
	case len(c.violated) > 0:
		p.Standing = status.Unmet
		p.Value = fmt.Sprintf("%s; documents have the same key in the unique %s", has, some(c.violated))
		p.Next = "Find out what else writes to the target; copy these collections again: replicator resync …"
	case len(c.unchecked) > 0:
		p.Standing = status.NotKnown
		p.Value = fmt.Sprintf("%s; %d of %d unique indexes are not checked: %s", has, len(c.unchecked), c.unique, some(c.unchecked))
		p.Next = uncheckedNext
	case c.unique > 0:
		p.Value = fmt.Sprintf("%s; no document violates one of the %d unique indexes", has, c.unique)
	default:
		p.Value = has + "; none is unique"
	}
	return p
}

// some lists the first few of many names.
func some(names []string) string {
	const shown = 3
	names = slices.Clone(names)
	out := strings.Join(names[:min(shown, len(names))], "; ")
	if n := len(names) - shown; n > 0 {
		out += fmt.Sprintf("; and %d more", n)
	}
	return out
}
