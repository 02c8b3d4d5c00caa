package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The program that runs in production links nothing that only demonstrations,
// proofs and measurements need: that is replicator-lab.
func TestLinksNoLab(t *testing.T) {
	unwanted := regexp.MustCompile(`mongosim|mongotest|memstore|serverquery|serverupdate|replicator/bench|internal/(corpus|demo|mirrored|traffic|compare|bsongen)` +
		`|HdrHistogram|testcontainers|^testing$|pgregory\.net|go-cmp`)
	of := func(command string) (all, found []string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", command).Output()
		if err != nil {
			t.Fatalf("go list -deps %s: %v", command, err)
		}
		for path := range strings.FieldsSeq(string(out)) {
			if all = append(all, path); unwanted.MatchString(path) {
				found = append(found, path)
			}
		}
		return all, found
	}
	if all, found := of("."); len(found) > 0 || len(all) < 100 {
		t.Errorf("replicator links %d packages, and of those it should not %q", len(all), found)
	}
	// The names are right: the other program has them.
	_, found := of("../replicator-lab")
	for _, name := range []string{"/mongosim", "/memstore", "HdrHistogram", "replicator/bench"} {
		if !strings.Contains(strings.Join(found, "\n"), name) {
			t.Errorf("replicator-lab does not link %s either: it has another name now", name)
		}
	}
}
