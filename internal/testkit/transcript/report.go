package transcript

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/printable"
)

// Report is the result of replaying one recording.
type Report struct {
	Name string
	// Commands is how many commands were sent, Refused how many of them the
	// recorded server refused, Equal how many were answered as recorded.
	Commands, Refused, Equal int
	// Entries is how many entries of the recorded log were looked for in the member's,
	// EqualEntries how many of them were found. Those that a server
	// writes by the clock are left out.
	Entries, EqualEntries int
	// Differences are the deviations from the recording.
	Differences []Difference
	// Reordered says that the columns of buckets have another order: see ruleColumns.
	Reordered bool
	// Skipped says why nothing was replayed, empty if it was.
	Skipped string
	// Err is why the recording could not be replayed to its end.
	Err     error
	Elapsed time.Duration
}

// Part is the part of a recording that a Difference is about.
type Part string

// The parts of a recording.
const (
	PartReply Part = "line"  // a line of the transcript, counted from 1
	PartEntry Part = "entry" // an entry of the recorded log, counted from 0
	PartData  Part = "data"  // the data afterwards
)

// Difference is one thing that is not as recorded.
type Difference struct {
	Part Part
	// At is the number of the line or entry, 0 for data.
	At int
	// Path is the field, with dots; empty for the whole.
	Path string
	// What describes the difference.
	What string

	// extra says that it is about an entry of ours before this one.
	extra bool
}

// String returns the difference in one line, whatever bytes there are in it.
func (d Difference) String() string {
	where := string(d.Part)
	if d.Part != PartData {
		where += " " + strconv.Itoa(d.At)
	}
	if d.Path != "" {
		where += ": " + d.Path
	}
	return printable.Text(where + ": " + d.What)
}

// OK reports whether everything was as recorded.
func (r *Report) OK() bool { return r.Err == nil && len(r.Differences) == 0 }

// count counts the replies and entries without differences.
func (r *Report) count(found []Difference) {
	lines, entries := map[int]bool{}, map[int]bool{}
	for _, d := range found {
		switch {
		case d.Part == PartReply:
			lines[d.At] = true
		case d.Part == PartEntry && !d.extra:
			entries[d.At] = true
		}
	}
	r.Equal, r.EqualEntries = r.Commands-len(lines), r.Entries-len(entries)
}

// shownDifferences is how many differences String gives.
const shownDifferences = 10

// String is one line, and one more for each of the first differences.
func (r *Report) String() string {
	var b strings.Builder
	switch {
	case r.Err != nil:
		fmt.Fprintf(&b, "FAIL %-22s replay: %s", printable.Text(r.Name), printable.Text(r.Err.Error()))
	case r.Skipped != "":
		fmt.Fprintf(&b, "skip %-22s replay: %s", printable.Text(r.Name), printable.Text(r.Skipped))
	default:
		verdict := "ok  "
		if !r.OK() {
			verdict = "FAIL"
		}
		fmt.Fprintf(&b, "%s %-22s replay: %5d/%d replies (%d refusals) %5d/%d entries   %.2fs",
			verdict, printable.Text(r.Name), r.Equal, r.Commands, r.Refused, r.EqualEntries, r.Entries, r.Elapsed.Seconds())
	}
	for i, d := range r.Differences {
		if i == shownDifferences {
			fmt.Fprintf(&b, "\n     and %d more", len(r.Differences)-i)
			break
		}
		b.WriteString("\n     " + d.String())
	}
	return b.String()
}
