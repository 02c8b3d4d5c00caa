package mongosim_test

import (
	"bytes"
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// pymongoVersion is the driver that is fetched where Python has none.
const pymongoVersion = "4.10.1"

//go:embed testdata/session.py
var pythonSession []byte

// servePyMongo runs a session of Python's driver. It takes the pymongo that python3
// has, else fetches one from the Python package index into the user's cache directory.
func servePyMongo(t *testing.T, program string) {
	python := pymongo(t)
	script := filepath.Join(t.TempDir(), "session.py")
	must.Succeed(t, os.WriteFile(script, pythonSession, 0o600))
	s := serve(t, program, "--members=3", "--dialect=7.0", "--port=0")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, script, s.uri).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("session ends well")) {
		t.Errorf("pymongo: %v\n%s", err, out)
	}
	s.end(t, os.Interrupt)
}

// pymongo returns a Python that has pymongo, or skips the test.
func pymongo(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on this machine")
	}
	has := func(python string) bool {
		return exec.CommandContext(t.Context(), python, "-c", "import pymongo").Run() == nil
	}
	if has(python) {
		return python
	}
	if testing.Short() {
		t.Skip("pymongo is not fetched in short mode")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("nowhere to keep pymongo: %v", err)
	}
	dir := filepath.Join(cache, "replicator-pymongo-"+pymongoVersion)
	fetched := filepath.Join(dir, "bin", "python3")
	if has(fetched) {
		return fetched
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, python, "-m", "venv", dir).CombinedOutput(); err != nil {
		t.Skipf("python3 makes no venv: %v: %s", err, lastLine(out))
	}
	install := exec.CommandContext(ctx, fetched, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
		"--retries=0", "--timeout=20", "pymongo=="+pymongoVersion)
	if out, err := install.CombinedOutput(); err != nil {
		t.Skipf("the Python package index does not give pymongo: %v: %s", err, lastLine(out))
	}
	return fetched
}
