package pipeline

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/oplog/txn"
)

// TestRetries: an error that ends a link, so that it is restarted, does not permanently
// end the copy of one collection.
func TestRetries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err         error
		link, aPart bool
	}{
		{&mongo.LostError{Host: "a:1", Err: errors.New("no answer")}, true, true},
		{&driver.AuthError{}, false, true},
		{&spool.FullError{}, false, true},
		{&txn.SpillError{}, false, true},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, false, true},
		{ErrSettings, false, false},
		{errors.New("something else"), false, false},
	} {
		err := fmt.Errorf("in an attempt: %w", tt.err)
		if got := (&Pipeline{}).retries(err); got != tt.link {
			t.Errorf("%T: a link retries: %t", tt.err, got)
		}
		if got := (&Pipeline{cfg: Config{part: &part{}}}).retries(err); got != tt.aPart {
			t.Errorf("%T: a part retries: %t", tt.err, got)
		}
	}
	if !(&Pipeline{term: 1}).retries(&driver.AuthError{}) {
		t.Error("a link that was let in before does not retry")
	}
}
