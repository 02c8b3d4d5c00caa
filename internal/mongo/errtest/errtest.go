// Package errtest yields all server errors, for tests of how a layer reacts to each
// kind.
package errtest

import (
	"fmt"
	"iter"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// labels returns all labels that an error may have, and an unknown one.
func labels() []string {
	return []string{
		servererr.LabelTransient, servererr.LabelUnknownCommit, servererr.LabelRetryableWrite,
		servererr.LabelRetryable, servererr.LabelOverloaded, servererr.LabelResumable, "NoWritesPerformed",
	}
}

// Kinds returns all kinds but None.
func Kinds() []servererr.Kind {
	all := make([]servererr.Kind, 0, servererr.Stuck)
	for k := servererr.Isolate; k <= servererr.Stuck; k++ {
		all = append(all, k)
	}
	return all
}

// Refusals yields every code with a name, and one without, each with no label, with
// each label, and with the labels of a transaction.
func Refusals() iter.Seq[*servererr.Error] {
	sets := [][]string{nil, {servererr.LabelTransient, servererr.LabelUnknownCommit}}
	for _, l := range labels() {
		sets = append(sets, []string{l})
	}
	return func(yield func(*servererr.Error) bool) {
		for _, c := range append(servererr.Codes(), 999_999) {
			for _, labels := range sets {
				if !yield(servererr.New(c, "no").WithLabels(labels...)) {
					return
				}
			}
		}
	}
}

// Errors yields each of Refusals as a layer may receive it, with its kind: alone,
// wrapped, and in a CommitError, StuckError, LostError and UnconfirmedError.
func Errors() iter.Seq2[error, servererr.Kind] {
	return func(yield func(error, servererr.Kind) bool) {
		for e := range Refusals() {
			for _, err := range []error{
				e, fmt.Errorf("do this: %w", e), &mongo.CommitError{Err: e}, &mongo.StuckError{Err: e},
				&mongo.LostError{Host: "a:1", Err: e}, &mongo.UnconfirmedError{Err: e}, fmt.Errorf("commit: %w", &mongo.CommitError{Err: &mongo.LostError{Err: e}}),
			} {
				if !yield(err, servererr.Classify(err)) {
					return
				}
			}
		}
	}
}
