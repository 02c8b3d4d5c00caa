package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCLI compares the output with the files in testdata/cli.
func TestCLI(t *testing.T) {
	data := must.Get(os.ReadFile(filepath.Join(recordings, "types", "oplog.bson")))(t)
	dir := t.TempDir()
	names := strings.NewReplacer("CORPUS", recordings, "CUT", filepath.Join(dir, "cut.bson"), "NOISE", filepath.Join(dir, "noise.bson"))
	back := strings.NewReplacer(recordings, "CORPUS", dir, "DIR")
	noise := append(append([]byte{}, data[:184]...), make([]byte, 100)...)
	for name, text := range map[string][]byte{"cut.bson": data[:1000], "noise.bson": noise} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	datadriven.Walk(t, "testdata/cli", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			code, stdout, stderr := invoke(t, nil, strings.Fields(names.Replace(d.Input))...)
			var b strings.Builder
			b.WriteString(stdout)
			for line := range strings.Lines(stderr) {
				b.WriteString("! " + line)
			}
			fmt.Fprintf(&b, "exit %d\n", code)
			return back.Replace(b.String())
		})
	})
}
