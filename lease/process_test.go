package lease_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/lease"
)

// TestProcessWithoutName: the second part of the id of a process that serves nothing is its pid, and cannot be taken for
// a port; that of one that serves its status is the port.
func TestProcessWithoutName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "pid" + strconv.Itoa(os.Getpid()), "9216": "9216"} {
		id := lease.NewProcess(name)
		parts := strings.Split(id, ":")
		if len(parts) < 4 || parts[len(parts)-3] != want {
			t.Errorf("the id is %s, want %s in it", id, want)
		}
	}
}
