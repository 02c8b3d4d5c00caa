package preflight

import (
	"os"
	"strings"
	"testing"
)

// TestRoleOnPage: the command that the check gives is that of docs/privileges.md,
// with which the end-to-end tests run.
func TestRoleOnPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) string { return strings.Join(strings.Fields(text), "") }
	if !strings.Contains(plain(string(page)), plain(usersRole)) {
		t.Errorf("docs/privileges.md does not have %s", usersRole)
	}
}
