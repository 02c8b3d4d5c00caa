package mongosim_test

import (
	"bytes"
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// mongoshVersion is the shell that is fetched; it runs on Node 20 and later.
const mongoshVersion = "2.5.9"

//go:embed testdata/session.js
var session []byte

// TestMongosh runs a scripted session of MongoDB's own shell. It takes the program
// in $MONGOSH, else one in PATH, else fetches one from the npm registry into the
// user's cache directory.
func TestMongosh(t *testing.T) {
	t.Parallel()
	shell := mongosh(t)
	for _, dialect := range []string{"5.0", "8.0"} {
		t.Run(dialect, func(t *testing.T) {
			set := mongosim.StartTest(t, mongosim.Options{Members: 3, Dialect: dialect, Seed: 8})
			runSession(t, shell, set.URI())
		})
	}
}

// serveMongosh: the session runs on a set of another process too.
func serveMongosh(t *testing.T, program string) {
	shell := mongosh(t)
	s := serve(t, program, "--members=3", "--dialect=7.0", "--port=0")
	runSession(t, shell, s.uri)
	s.end(t, os.Interrupt)
}

// runSession runs the scripted session.
func runSession(t *testing.T, shell, uri string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	script := filepath.Join(t.TempDir(), "session.js")
	must.Succeed(t, os.WriteFile(script, session, 0o600))
	cmd := exec.CommandContext(ctx, shell, "--quiet", "--norc", uri, "--file", script)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "MONGOSH_TELEMETRY=0")
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("session ends well")) {
		t.Errorf("mongosh: %v\n%s", err, out)
	}
}

// mongosh returns the path of a shell that runs here, or skips the test.
func mongosh(t *testing.T) string {
	t.Helper()
	shell := fetchMongosh(t)
	if out, err := exec.CommandContext(t.Context(), shell, "--version").CombinedOutput(); err != nil {
		t.Skipf("%s does not run here, it wants Node 20 or newer: %v: %s", shell, err, lastLine(out))
	}
	return shell
}

// fetchMongosh returns the path of the shell, or skips the test.
func fetchMongosh(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("MONGOSH"); path != "" {
		return path
	}
	if path, err := exec.LookPath("mongosh"); err == nil {
		return path
	}
	if testing.Short() {
		t.Skip("mongosh is not fetched in short mode")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("neither mongosh nor npm is on this machine")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("nowhere to keep mongosh: %v", err)
	}
	dir := filepath.Join(cache, "replicator-mongosh-"+mongoshVersion)
	path := filepath.Join(dir, "node_modules", ".bin", "mongosh")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	// It is fetched to the side and moved into place, so that half of it is never
	// taken for the whole.
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Skipf("nowhere to keep mongosh: %v", err)
	}
	fresh, err := os.MkdirTemp(cache, "replicator-mongosh-") //nolint:usetesting // it is renamed within the cache
	if err != nil {
		t.Skipf("nowhere to keep mongosh: %v", err)
	}
	defer os.RemoveAll(fresh) //nolint:errcheck // it is a cache
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, npm, "install", "--no-audit", "--no-fund", "--ignore-scripts",
		"--fetch-retries=0", "--fetch-timeout=20000", "--prefix", fresh, "mongosh@"+mongoshVersion)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("the npm registry does not give mongosh: %v: %s", err, lastLine(out))
	}
	if err := os.Rename(fresh, dir); err != nil {
		if _, there := os.Stat(path); there != nil {
			t.Fatalf("keep mongosh: %v", err)
		}
	}
	return path
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
