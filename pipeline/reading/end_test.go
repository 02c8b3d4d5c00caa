package reading

import (
	"context"
	"testing"

	"github.com/oplogrep/replicator/initialsync"
)

// TestEndWith: an attempt that is told to end applies what it has read, and waits for index builds
// of that. A part, which continues later, does not wait for them, also without a spool: the link
// might wait for it for hours. Nor does an attempt whose spool is not applied anyway.
func TestEndWith(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		part bool
		log  *initialsync.Log
		want bool
	}{
		{"a link", false, nil, false},
		{"a link with a spool", false, &initialsync.Log{}, true},
		{"a part", true, nil, true},
		{"a part with a spool", true, &initialsync.Log{}, true},
	} {
		a := &Attempt{of: &Oplog{cfg: Config{Part: c.part}}, log: c.log}
		left, ended := false, false
		a.leave, a.end = func() { left = true }, func(error) { ended = true }
		soft, tell := context.WithCancelCause(t.Context())
		stop := a.EndWith(t.Context(), soft)
		tell(nil)
		stop()
		if left != c.want || !ended {
			t.Errorf("%s: left %v, want %v; ended %v", c.name, left, c.want, ended)
		}
	}
}
