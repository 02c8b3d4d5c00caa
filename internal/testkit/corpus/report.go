package corpus

import (
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/printable"
)

// Report is the result of the proof of one recording.
type Report struct {
	Name string
	// Entries is how many entries the log has, Transactions how many
	// transactions were committed in it.
	Entries, Transactions int
	// Deltas is how many times a delta met a document and was compiled as well,
	// to an update that has to do the same.
	Deltas int
	// Rounds is how many times a prefix, all and a suffix were applied again,
	// Converged how many of them ended where they should.
	Rounds, Converged int
	// Seed is that of the sample.
	Seed uint64
	// NotReapplied says why the log need not converge when it is applied again,
	// and was not found to, empty if it does: the feature compatibility version
	// changes in it, it has updates of the older form ($v: 1) of array elements,
	// its capped collections trim themselves or get an _id twice, or a name is that
	// of a view and of a collection in turn; or the recording says so.
	NotReapplied string
	// Notes are deviations from the usual proof.
	Notes []string
	// Failures are the failed proofs.
	Failures []Failure
	// Err is why the proof could not be made: a [*FileError], or the cause of
	// its end.
	Err     error
	Elapsed time.Duration
}

// Failure is a way of applying the log that does not give after/.
type Failure struct {
	// Way is how it was applied.
	Way string
	// Differences are the first differences, or the error that ended it.
	Differences []string
}

// OK reports whether everything was proved.
func (r *Report) OK() bool { return r.Err == nil && len(r.Failures) == 0 }

func (r *Report) note(text string) { r.Notes = append(r.Notes, text) }

func (r *Report) fail(way string, differences []string) {
	if len(differences) > 0 {
		r.Failures = append(r.Failures, Failure{way, differences})
	}
}

// shownDifferences is how many differences String gives for each failure.
const shownDifferences = 5

// String is one line, and one more for each difference, whatever bytes there are
// in names and documents.
func (r *Report) String() string {
	var b strings.Builder
	switch {
	case r.Err != nil:
		fmt.Fprintf(&b, "FAIL %s: %s", printable.Text(r.Name), printable.Text(r.Err.Error()))
		return b.String()
	case r.OK():
		b.WriteString("ok   ")
	default:
		b.WriteString("FAIL ")
	}
	again := fmt.Sprintf("idempotent %d/%d", r.Converged, r.Rounds)
	if r.NotReapplied != "" {
		again = "applied once"
	}
	fmt.Fprintf(&b, "%-22s %6d entries %4d txns %6d deltas compiled   %-20s %7.2fs",
		printable.Text(r.Name), r.Entries, r.Transactions, r.Deltas, again, r.Elapsed.Seconds())
	notes := r.Notes
	if r.NotReapplied != "" {
		notes = append([]string{r.NotReapplied}, notes...)
	}
	if len(notes) > 0 {
		fmt.Fprintf(&b, "   (%s)", printable.Text(strings.Join(notes, "; ")))
	}
	for _, f := range r.Failures {
		for i, d := range f.Differences {
			if i == shownDifferences {
				fmt.Fprintf(&b, "\n     %s: and more", f.Way)
				break
			}
			fmt.Fprintf(&b, "\n     %s: %s", f.Way, printable.Text(d))
		}
	}
	return b.String()
}
