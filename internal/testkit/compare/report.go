package compare

import (
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// Report is the result of a comparison.
type Report struct {
	// Collections are how many collections and views are on both sides, Documents
	// how many documents of theirs are the same, and Bytes their size.
	Collections int
	Documents   int64
	Bytes       int64
	// Differences are in the order of names.
	Differences []Difference
	// More counts the further differences; it is a lower bound if the comparison
	// of a collection was abandoned.
	More int
}

// Difference is one difference.
type Difference struct {
	// NS is the name on the second side.
	NS oplog.Namespace
	// What describes the difference in one line.
	What string
}

// String is a line.
func (d Difference) String() string { return string(d.NS) + ": " + d.What }

// Equal reports whether nothing differs.
func (r *Report) Equal() bool { return len(r.Differences) == 0 && r.More == 0 }

// String returns a line with counts, and one for each difference.
func (r *Report) String() string {
	var b strings.Builder
	if r.Equal() {
		b.WriteString("equal: ")
	} else {
		fmt.Fprintf(&b, "%d differences: ", len(r.Differences)+r.More)
	}
	fmt.Fprintf(&b, "%d collections, %d documents, %d bytes alike", r.Collections, r.Documents, r.Bytes)
	for _, d := range r.Differences {
		b.WriteString("\n" + printable.Text(d.String()))
	}
	if r.More > 0 {
		fmt.Fprintf(&b, "\nand %d more", r.More)
	}
	return b.String()
}
