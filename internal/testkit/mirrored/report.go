package mirrored

import (
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/internal/testkit/compare"
)

// Report is the result of mirroring one recording.
type Report struct {
	Name string
	// Entries is how many entries the log has.
	Entries int
	// Seed is that of the choice of variants.
	Seed uint64
	// Moving is true if the target began with a copy taken during writes.
	Moving bool
	Runs   []Run
	// Skipped says why nothing was mirrored, empty if it was.
	Skipped string
	// Err is why the proof could not be made.
	Err     error
	Elapsed time.Duration
}

// Run is one variant of a recording.
type Run struct {
	Variant Variant
	// Report is how the target differs from the recording.
	Report compare.Report
	// Err is why the run did not complete.
	Err error
}

// OK reports whether the target came out equal.
func (r *Run) OK() bool { return r.Err == nil && r.Report.Equal() }

// OK reports whether every variant came out equal.
func (r *Report) OK() bool { return r.Err == nil && r.Equal() == len(r.Runs) }

// Equal is how many variants came out equal.
func (r *Report) Equal() int {
	n := 0
	for i := range r.Runs {
		if r.Runs[i].OK() {
			n++
		}
	}
	return n
}

// Documents is how many documents were found equal in one run, at least.
func (r *Report) documents() (n int64) {
	for i := range r.Runs {
		if d := r.Runs[i].Report.Documents; i == 0 || d < n {
			n = d
		}
	}
	return n
}

// shownDifferences is how many differences String gives for each run.
const shownDifferences = 5

// String is one line, and more for the variants that did not come out equal.
func (r *Report) String() string {
	var b strings.Builder
	switch {
	case r.Err != nil:
		fmt.Fprintf(&b, "FAIL %-22s mirror: %s", printable.Text(r.Name), printable.Text(r.Err.Error()))
		return b.String()
	case r.Skipped != "":
		fmt.Fprintf(&b, "skip %-22s mirror: %s", printable.Text(r.Name), printable.Text(r.Skipped))
		return b.String()
	}
	verdict := "ok  "
	if !r.OK() {
		verdict = "FAIL"
	}
	fmt.Fprintf(&b, "%s %-22s mirror: %5d/%d variants equal %9d documents %6d entries each   %.2fs",
		verdict, printable.Text(r.Name), r.Equal(), len(r.Runs), r.documents(), r.Entries, r.Elapsed.Seconds())
	if r.Moving {
		b.WriteString("   (onto a moving copy)")
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.OK():
			continue
		case run.Err != nil:
			fmt.Fprintf(&b, "\n     %s: %s", run.Variant, printable.Text(run.Err.Error()))
		}
		for j, d := range run.Report.Differences {
			if j == shownDifferences {
				fmt.Fprintf(&b, "\n     %s: and %d more", run.Variant, len(run.Report.Differences)-j+run.Report.More)
				break
			}
			fmt.Fprintf(&b, "\n     %s: %s", run.Variant, printable.Text(d.String()))
		}
	}
	return b.String()
}
