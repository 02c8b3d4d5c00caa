package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestWriteBlock: a link whose writes the target blocks says how that ends.
func TestWriteBlock(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"retrying", "no-progress"} {
		c := &conditions[slices.IndexFunc(conditions, func(c condition) bool { return c.name == name })]
		s := Snapshot{LastError: &Failure{Error: "applier: shop.a: " + servererr.New(servererr.UserWritesBlocked, "User writes blocked").Error()}}
		if c.next == nil || !strings.Contains(c.next(&s), "setUserWriteBlockMode: 1, global: false") {
			t.Errorf("%s: it says nothing of the block", name)
			continue
		}
		if s.LastError.Error = "applier: shop.a: not primary"; strings.Contains(c.next(&s), "setUserWriteBlockMode") {
			t.Errorf("%s: %s", name, c.next(&s))
		}
	}
}
