package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// damaged returns a folder of two recordings with one file changed or removed.
func damaged(t *testing.T, file string, change func(data []byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"types", "retryable"} {
		must.Succeed(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(recordings, name))))
	}
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if data = change(data); data == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestExitCodes(t *testing.T) {
	half := func(data []byte) []byte { return data[:len(data)/2] }
	none := func([]byte) []byte { return nil }
	firstDocument := func(data []byte) []byte { return data[:binary.LittleEndian.Uint32(data)] }
	cut := damaged(t, "types/oplog.bson", half)
	missing := damaged(t, "types/oplog.bson", none)
	noMeta := damaged(t, "types/meta.json", none)
	wrong := damaged(t, "types/after/types.a.bson", firstDocument)
	cutTranscript := damaged(t, "types/commands.jsonl", half)
	wrongReply := damaged(t, "types/commands.jsonl", func(data []byte) []byte {
		lines := bytes.SplitAfter(data, []byte("\n"))
		lines[1] = bytes.Replace(lines[1], []byte(`"n":{"$numberInt":"1"}`), []byte(`"n":{"$numberInt":"2"}`), 1)
		return bytes.Join(lines, nil)
	})
	addNotes := func(dir string) string {
		must.Succeed(t, os.Mkdir(filepath.Join(dir, "notes"), 0o700))
		return dir
	}
	withNotes := addNotes(damaged(t, "types/meta.json", func(data []byte) []byte { return data }))
	wrongAndNotes := addNotes(damaged(t, "types/after/types.a.bson", firstDocument))
	tests := []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // text that must be in there
	}{
		{"help", []string{"--help"}, cli.ExitOK, "Usage: replicator-lab", ""},
		{"help of a command", []string{"corpus", "--help"}, cli.ExitOK, "--only", ""},
		{"version", []string{"version"}, cli.ExitOK, "replicator-lab ", ""},
		{"one recording", []string{"corpus", filepath.Join(recordings, "types")}, cli.ExitOK, "ok   types ", ""},
		{"one recording replayed", []string{"corpus", filepath.Join(recordings, "types")}, cli.ExitOK, "replay:     6/6 replies", ""},
		{"one recording mirrored", []string{"corpus", filepath.Join(recordings, "types")}, cli.ExitOK, "mirror:    13/13 variants equal", ""},
		{"transcript cut off", []string{"corpus", cutTranscript}, cli.ExitBadInput, "FAIL types                  replay: read ", "commands.jsonl at byte "},
		{"wrong reply", []string{"corpus", wrongReply}, cli.ExitFailed, "line 2: n: ", "1 of 2 recordings failed"},
		{"some recordings", []string{"corpus", recordings, "--only=types", "--only=ids"}, cli.ExitOK, "ok   ids ", ""},
		{"no command", nil, cli.ExitUsage, "", "--help"},
		{"unknown command", []string{"frobnicate"}, cli.ExitUsage, "", "frobnicate"},
		{"unknown flag", []string{"corpus", "--frobnicate"}, cli.ExitUsage, "", "--frobnicate"},
		{"bad value", []string{"corpus", "--seed=x"}, cli.ExitUsage, "", "--seed"},
		{"unknown recording", []string{"corpus", recordings, "--only=nope"}, cli.ExitUsage, "", "update-v1"},
		{"no such folder", []string{"corpus", "nowhere"}, cli.ExitBadInput, "", "nowhere"},
		{"log cut off", []string{"corpus", cut}, cli.ExitBadInput, "FAIL types", filepath.Join(cut, "types", "oplog.bson") + " at byte "},
		{"the others are tried all the same", []string{"corpus", cut}, cli.ExitBadInput, "ok   retryable", "types"},
		{"log missing", []string{"corpus", missing}, cli.ExitBadInput, "FAIL types", "no such file"},
		{"meta.json missing", []string{"corpus", noMeta}, cli.ExitBadInput, "FAIL types: read ", "meta.json"},
		{"the others are tried without it too", []string{"corpus", noMeta}, cli.ExitBadInput, "ok   retryable", "meta.json"},
		{"a folder that is no recording", []string{"corpus", withNotes}, cli.ExitBadInput, "FAIL notes: read ", "notes/meta.json"},
		{"the others are tried next to it", []string{"corpus", withNotes}, cli.ExitBadInput, "ok   types", "notes/meta.json"},
		{"bad input goes before wrong data", []string{"corpus", wrongAndNotes}, cli.ExitBadInput, "FAIL types ", "1 of 3 recordings failed"},
		{"only a good one", []string{"corpus", withNotes, "--only=types"}, cli.ExitOK, "ok   types", ""},
		{"only a bad one", []string{"corpus", withNotes, "--only=notes"}, cli.ExitBadInput, "FAIL notes", "notes"},
		{"wrong data is not mirrored either", []string{"corpus", wrong}, cli.ExitFailed, "unique=serialized: types.a: _id ", "1 of 2 recordings failed"},
		{"wrong data", []string{"corpus", wrong}, cli.ExitFailed, "FAIL types", "1 of 2 recordings failed"},
	}
	// A command line that several cases look at is run once.
	type outcome struct {
		code           int
		stdout, stderr string
	}
	ran := map[string]outcome{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			line := strings.Join(tt.args, "\x00")
			got, ok := ran[line]
			if !ok {
				var stdout, stderr bytes.Buffer
				got.code = run(t.Context(), tt.args, &stdout, &stderr)
				got.stdout, got.stderr = stdout.String(), stderr.String()
				ran[line] = got
			}
			if got.code != tt.code {
				t.Errorf("got exit code %d, want %d", got.code, tt.code)
			}
			if !strings.Contains(got.stdout, tt.stdout) {
				t.Errorf("standard output: %q is not in\n%s", tt.stdout, got.stdout)
			}
			if !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("standard error: %q is not in\n%s", tt.stderr, got.stderr)
			}
			if (got.code == cli.ExitOK) != (got.stderr == "") {
				t.Errorf("exit code %d with the complaint %q", got.code, got.stderr)
			}
		})
	}
}

func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(context.Canceled)
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"corpus", recordings}, &stdout, &stderr); code != cli.ExitUnexpected {
		t.Errorf("got exit code %d, want %d", code, cli.ExitUnexpected)
	}
	if !strings.Contains(stderr.String(), "stopped") || stdout.Len() > 0 {
		t.Errorf("got %q and %q", &stdout, &stderr)
	}
}
