package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// The codes are fixed, and scripts depend on them: this holds the numbers and
// the page that promises them.
func TestExitCodesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, meaning := range map[int]struct {
		got  int
		says string
	}{
		0:  {ExitOK, "Done"},
		1:  {ExitUnexpected, "An error that no other code stands for"},
		2:  {ExitUsage, "The command line is wrong"},
		3:  {ExitBadInput, "The input is bad"},
		4:  {ExitFailed, "A verification failed"},
		5:  {failure.ExitFenced, "Another process has the link"},
		6:  {failure.ExitResync, "The link cannot continue from its checkpoint"},
		7:  {failure.ExitDiverged, "The target differs from what the link wrote"},
		8:  {ExitConnect, "A server cannot be reached"},
		9:  {ExitCheck, "A startup check failed"},
		10: {failure.ExitNotDrained, "Stopped before everything"},
		11: {failure.ExitUnsupported, "The source's oplog has an entry"},
	} {
		if meaning.got != code {
			t.Errorf("%q is %d, and must stay %d", meaning.says, meaning.got, code)
		}
		if row := fmt.Sprintf("| %d | %s", code, meaning.says); !strings.Contains(string(page), row) {
			t.Errorf("the page has no row that begins with %q", row)
		}
	}
}

// TestMisnamed: the hint for hosts of another set has its name, and that of the set that was asked for; a host that has not answered may be of
// the right one.
func TestMisnamed(t *testing.T) {
	for _, c := range []struct {
		err  driver.NoServerError
		want string
	}{
		{driver.NoServerError{Set: "prod", Other: "rs0"}, "The connection string asks for the replica set prod (replicaSet=prod), and the hosts say that theirs is rs0: correct the name, or the hosts."},
		{driver.NoServerError{Set: "prod"}, "The connection string asks for the replica set prod (replicaSet=prod): correct the name, which rs.status().set shows, or the hosts."},
		{driver.NoServerError{Set: "prod", Other: "rs0", Seen: []driver.Sight{{Host: "a:1"}}}, "The connection string asks for the replica set prod (replicaSet=prod), and a host says that its own is rs0: correct the name, or the hosts. If the name is right, check the other hosts"},
		{driver.NoServerError{Set: "prod", Seen: []driver.Sight{{Host: "a:1"}}}, "Check the addresses"},
		{driver.NoServerError{}, "Check the addresses"},
	} {
		code, hint := Explain(fmt.Errorf("open: %w", &mongo.LostError{Err: &c.err}))
		if code != ExitConnect || !strings.HasPrefix(hint, c.want) {
			t.Errorf("%+v: %d, %q", c.err, code, hint)
		}
	}
}
