package compare

import (
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// Report is what a comparison found.
type Report struct {
	// Collections are how many collections and views are on both sides, Documents
	// how many documents of theirs are the same, and Bytes their size.
	Collections int
	Documents   int64
	Bytes       int64
	// Differences are in the order of names.
	Differences []Difference
	// More is how many differences there are besides. Where a collection was given
	// up, that is at least how many.
	More int
}

// Difference is one difference.
type Difference struct {
	// NS is the name on the second side.
	NS oplog.Namespace
	// What is wrong with it there, in a line.
	What string
}

// String is a line.
func (d Difference) String() string { return string(d.NS) + ": " + d.What }

// Equal reports whether nothing differs.
func (r *Report) Equal() bool { return len(r.Differences) == 0 && r.More == 0 }

// String says what came out: a line with counts, and one for each difference.
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
