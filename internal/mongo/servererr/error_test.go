package servererr_test

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestBrief: if a message repeats the command, its beginning is shown.
func TestBrief(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"no such command": "no such command (Unauthorized, code 13)",
		`not authorized on app to execute command { find: "links", filter: {}, $db: "app" }`: `not authorized on app to execute command { find: "links", ... } (Unauthorized, code 13)`,
		"not authorized on app to execute command { ping: 1 }":                               "not authorized on app to execute command { ping: 1 } (Unauthorized, code 13)",
		"not authorized on app to execute command { ":                                        "not authorized on app to execute command {  (Unauthorized, code 13)",
	} {
		e := servererr.New(servererr.Unauthorized, "%s", message)
		if got := e.Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if e.Message != message {
			t.Errorf("the message is now %s", e.Message)
		}
	}
}
