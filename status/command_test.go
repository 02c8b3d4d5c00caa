package status

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCommand: the commands of verdicts can be pasted into a shell, whatever names a link's
// collections have.
func TestCommand(t *testing.T) {
	known := Snapshot{Link: "dr", Target: Target{Set: "rs1", Hosts: []string{"x:1", "y:2"}}}
	meta, silent := known, Snapshot{Link: "dr"}
	meta.metaDB = "meta"
	own := known
	own.metaDB = defaultMetaDB
	for _, c := range []struct {
		s    *Snapshot
		args []string
		want string
	}{
		{&known, nil, "replicator resume --link dr --target 'mongodb://x:1,y:2/?replicaSet=rs1'"},
		{&own, nil, "replicator resume --link dr --target 'mongodb://x:1,y:2/?replicaSet=rs1'"},
		{&meta, nil, "replicator resume --link dr --target 'mongodb://x:1,y:2/?replicaSet=rs1' --metadata-db meta"},
		{&silent, nil, "replicator resume --link dr --target …"},
		{&silent, []string{"--namespace", "a.$(reboot); 'b' c"}, `replicator resume --link dr --target … --namespace 'a.$(reboot); '\''b'\'' c'`},
	} {
		if got := c.s.command("resume", c.args...); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell")
	}
	name := "a.b c'd\"$e`f`\\g;h&i|j*k?l~m#n!o(p)q<r>s\nt"
	out := must.Get(exec.CommandContext(t.Context(), sh, "-c", "printf '%s\\0' "+known.command("resync", "--namespace", name)).Output())(t)
	if words := strings.Split(string(out), "\x00"); len(words) != 9 || words[5] != "mongodb://x:1,y:2/?replicaSet=rs1" || words[7] != name {
		t.Errorf("%q", words)
	}
}
