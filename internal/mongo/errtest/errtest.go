// Package errtest has every refusal there is, for tests that hold a layer to what it
// does about each kind.
package errtest

import (
	"fmt"
	"iter"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// labels are all labels that a refusal may have, one of which nothing is known included.
func labels() []string {
	return []string{
		servererr.LabelTransient, servererr.LabelUnknownCommit, servererr.LabelRetryableWrite,
		servererr.LabelRetryable, servererr.LabelOverloaded, servererr.LabelResumable, "NoWritesPerformed",
	}
}

// Refusals yields every code with a name, and one without, with no label, with each
// label, and with that of a transaction that is aborted or not.
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

// Errors yields each of Refusals as a layer may meet it, with the kind that it has then:
// by itself, of a commit, tried for as long as may be, without an answer, and with more
// said about it.
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
