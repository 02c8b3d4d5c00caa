package workload

import (
	"errors"
	"fmt"
	"math"
)

const (
	maxNamespaces = 10_000
	maxSpread     = 2
	// maxDocument is the largest document that is made, in bytes, whatever the
	// spread: far from a server's limit, so that an entry has room for it.
	maxDocument = 8 << 20
	// maxTransaction is what the operations of a transaction may take at their
	// median size, in bytes: one entry has to hold them.
	maxTransaction = 4 << 20
)

// withDefaults returns the workload with its zero fields filled in.
func (w Workload) withDefaults() Workload {
	if w.File != "" {
		return w
	}
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	set(&w.Ops, 100_000)
	set(&w.Size, 200)
	set(&w.Namespaces, 4)
	set(&w.Repeat, 1)
	set(&w.Alike, 1)
	if w.TxnShare != 0 {
		set(&w.TxnOps, 8)
	}
	if w.Mix == (Mix{}) {
		w.Mix.Insert = 1
	}
	if w.Deltas == (Deltas{}) {
		w.Deltas.Set = 1
	}
	return w
}

// faults collects errors.
type faults struct{ errs []error }

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

// Validate returns all faults, joined.
func (w Workload) Validate() error {
	var f faults
	f.check(w.Ops >= 0, "ops: %d is negative", w.Ops)
	w = w.withDefaults()
	if w.File == "" {
		w.checkWeights(&f)
		w.checkDocuments(&f)
		w.checkChoice(&f)
		w.checkGroups(&f)
		if len(f.errs) == 0 { // the numbers mean something
			w.checkSupply(&f)
		}
	}
	if len(f.errs) == 0 {
		return nil
	}
	return fmt.Errorf("workload %q: %w", w.Name, errors.Join(f.errs...))
}

func (w Workload) checkWeights(f *faults) {
	for _, x := range []struct {
		name  string
		value float64
	}{
		{"mix.insert", w.Mix.Insert},
		{"mix.update", w.Mix.Update},
		{"mix.delete", w.Mix.Delete},
		{"mix.replace", w.Mix.Replace},
		{"deltas.set", w.Deltas.Set},
		{"deltas.many", w.Deltas.Many},
		{"deltas.nested", w.Deltas.Nested},
		{"deltas.array", w.Deltas.Array},
		{"deltas.unset", w.Deltas.Unset},
		{"deltas.dotted", w.Deltas.Dotted},
		{"deltas.text", w.Deltas.Text},
	} {
		f.check(x.value >= 0 && !math.IsInf(x.value, 1), "%s: %v is no weight", x.name, x.value)
	}
}

func (w Workload) checkDocuments(f *faults) {
	f.check(w.Documents >= 0, "documents: %d is negative", w.Documents)
	f.check(w.Namespaces > 0 && w.Namespaces <= maxNamespaces, "namespaces: %d is not in 1 to %d", w.Namespaces, maxNamespaces)
	f.check(w.Spread >= 0 && w.Spread <= maxSpread, "spread: %v is not in 0 to %d", w.Spread, maxSpread)
	f.check(int64(w.Documents)+int64(w.Ops) <= math.MaxUint32, "documents and ops: more than %d documents", uint32(math.MaxUint32))
	l := newLayout(w)
	f.check(w.Size >= l.least && w.Size <= maxDocument,
		"size: %d is not in %d, what a document has without text, to %d", w.Size, l.least, maxDocument)
	f.check(w.Deltas.Many == 0 || len(l.scalars) >= manyFields, "deltas.many: a document of less than %d bytes has not %d fields to set", wideSize, manyFields)
	f.check(w.Indexes >= 0 && w.Indexes <= len(l.keys()), "indexes: %d is not in 0 to %d, the fields of a document of %d bytes", w.Indexes, len(l.keys()), w.Size)
}

func (w Workload) checkChoice(f *faults) {
	f.check(w.Hot >= 0 && w.Hot <= w.Documents, "hot: %d is not in 0 to %d, the documents", w.Hot, w.Documents)
	f.check(w.HotShare >= 0 && w.HotShare <= 1, "hotShare: %v is no share", w.HotShare)
	f.check((w.Hot > 0) == (w.HotShare > 0), "hot and hotShare: one is nothing without the other")
	f.check(w.Repeat >= 1, "repeat: %d is negative", w.Repeat)
	ways := 0
	for _, chosen := range []bool{w.Distinct, w.Hot > 0, w.Phases} {
		if chosen {
			ways++
		}
	}
	f.check(ways <= 1, "distinct, hot and phases: each is a way to choose documents, and there can be one")
	f.check(w.Alike >= 1, "alike: %d is negative", w.Alike)
	f.check(w.Alike == 1 || w.Distinct || w.Phases, "alike: it takes distinct documents, or phases")
	f.check(w.Alike == 1 || w.Deltas.Array+w.Deltas.Unset == 0, "alike: deltas of arrays, and those that remove a field, depend on the document")
	f.check(w.Repeat == 1 || !w.Distinct && !w.Phases, "repeat: it does not go with distinct or phases")
}

func (w Workload) checkGroups(f *faults) {
	f.check(w.TxnShare >= 0 && w.TxnShare <= 1, "txnShare: %v is no share", w.TxnShare)
	f.check(w.TxnOps >= 0, "txnOps: %d is negative", w.TxnOps)
	f.check(w.TxnOps == 0 || w.TxnShare > 0, "txnOps: it is nothing without txnShare")
	f.check(w.TxnOps*w.Size <= maxTransaction, "txnOps: %d operations of %d bytes are more than one entry may have", w.TxnOps, w.Size)
	f.check(!w.Phases || w.TxnShare == 0, "phases: they do not go with transactions")
}

// checkSupply returns an error if there are too few documents for updates and
// deletes.
func (w Workload) checkSupply(f *faults) {
	if w.Phases {
		return
	}
	m := w.Mix
	sum := m.Insert + m.Update + m.Delete + m.Replace
	others := sum - m.Insert
	if w.Distinct {
		f.check(others == 0 || w.Documents >= w.Ops, "documents: %d are too few for %d operations on distinct ones", w.Documents, w.Ops)
		return
	}
	f.check(others == 0 || w.Documents > 0, "documents: updates and deletes need some")
	deletes := float64(w.Ops) * (m.Delete - m.Insert) / sum
	if deletes > 0 && sum > m.Delete {
		deletes += 5 * math.Sqrt(float64(w.Ops)) // their number is random
	}
	f.check(deletes <= float64(w.Documents-w.Hot), "documents: %d, %d of them hot, are too few for about %.0f deletes", w.Documents, w.Hot, deletes)
}
