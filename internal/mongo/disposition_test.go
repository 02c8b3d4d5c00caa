package mongo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestDispositionOf(t *testing.T) {
	t.Parallel()
	e := func(code servererr.Code, labels ...string) error {
		return servererr.New(code, "no").WithLabels(labels...)
	}
	commit := func(err error) error { return &CommitError{Err: err} }
	for _, tt := range []struct {
		name string
		err  error
		want Disposition
	}{
		{"no answer", &LostError{Err: e(servererr.WriteConflict, servererr.LabelTransient)}, End},
		{"not confirmed", &UnconfirmedError{Err: servererr.New(servererr.WriteConflict, "no").WithLabels(servererr.LabelTransient)}, End},
		{"not a server's", errors.New("no"), End},
		{"conflict", e(servererr.WriteConflict), Again},
		{"conflict, said with more", fmt.Errorf("write: %w", e(servererr.WriteConflict)), Again},
		{"a server without memory", e(365), Again},
		{"too large", e(servererr.TransactionTooLarge), Smaller},
		{"too large for the cache", e(388), Smaller},
		{"another primary, labelled", e(servererr.NotWritablePrimary, servererr.LabelTransient), End},
		{"connection of the server", e(9001, servererr.LabelTransient), End},
		{"not allowed", e(servererr.Unauthorized), End},
		{"full disk", e(servererr.OutOfDiskSpace, servererr.LabelTransient), End},
		{"new and passing", e(99999, servererr.LabelTransient), Again},
		{"new", e(99999), Other},
		{"duplicate key", e(servererr.DuplicateKey), Other},

		{"commit, conflict", commit(e(servererr.WriteConflict, servererr.LabelTransient)), Again},
		{"commit, conflict, not said to be aborted", commit(e(servererr.WriteConflict)), End},
		{"commit, outcome unknown", commit(e(servererr.WriteConflict, servererr.LabelTransient, servererr.LabelUnknownCommit)), End},
		{"commit, too large, outcome unknown", commit(e(servererr.TransactionTooLarge, servererr.LabelUnknownCommit)), End},
		{"commit, too large", commit(e(servererr.TransactionTooLarge)), Smaller},
		{"commit, new", commit(e(99999)), End},

		{"not known after a while", Aged(e(servererr.NoSuchTransaction, servererr.LabelTransient), longTxn), Smaller},
		{"not known soon", Aged(e(servererr.NoSuchTransaction, servererr.LabelTransient), longTxn-time.Millisecond), End},
		{"commit, not known after a while", Aged(commit(e(servererr.NoSuchTransaction)), longTxn), Smaller},
		{"conflict after a while", Aged(e(servererr.WriteConflict), longTxn), Again},
	} {
		if got := DispositionOf(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
