package transcript

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

// tampered returns a copy of a recording with one file changed.
func tampered(t *testing.T, name, file string, change func(data []byte) []byte) *corpus.Scenario {
	t.Helper()
	from, to := filepath.Join(corpusDir, name), filepath.Join(t.TempDir(), name)
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.ToSlash(rel) == file {
			if data = change(bytes.Clone(data)); data == nil {
				return nil
			}
		}
		return os.WriteFile(filepath.Join(to, rel), data, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	scenarios, err := corpus.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	return &scenarios[0]
}

// TestTampered: whatever is changed in a recording shows.
func TestTampered(t *testing.T) {
	replace := func(old, with string) func([]byte) []byte {
		return func(data []byte) []byte {
			if !bytes.Contains(data, []byte(old)) {
				t.Fatalf("there is no %s to be replaced", old)
			}
			return bytes.Replace(data, []byte(old), []byte(with), 1)
		}
	}
	for _, tt := range []struct {
		name, scenario, file string
		change               func([]byte) []byte
		shows                string
	}{
		{"a number in a reply", "update-objects", "commands.jsonl", replace(`"nModified":{"$numberInt":"1"}`, `"nModified":{"$numberInt":"0"}`), "nModified"},
		{"a type in a reply", "update-objects", "commands.jsonl", replace(`"nModified":{"$numberInt":"1"}`, `"nModified":{"$numberLong":"1"}`), "nModified"},
		{"a field in a reply", "update-objects", "commands.jsonl", replace(`"nModified":`, `"nmodified":`), "missing"},
		{"an optime in a reply", "ids", "commands.jsonl", replace(`"operationTime":{"$timestamp":{"t":1795167875,"i":16}`, `"operationTime":{"$timestamp":{"t":1795167875,"i":15}`), "is not the timestamp"},
		{"a message", "txn-prepared", "commands.jsonl", replace(`has been committed.`, `was committed.`), "errmsg"},
		{"a code", "txn-prepared", "commands.jsonl", replace(`"code":{"$numberInt":"256"}`, `"code":{"$numberInt":"257"}`), "code"},
		{"a label", "txn-prepared", "commands.jsonl", replace(`["TransientTransactionError"]`, `null`), "labels"},
		{"a refusal that was none", "commands", "commands.jsonl", replace(`"nosuchcommand":`, `"ping":`), "want the refusal"},
		{"a success that was none", "commands", "commands.jsonl", replace(`"replSetGetRBID":`, `"replSetGetNothing":`), "refused: "},
		{"a document in the log", "update-v1", "oplog.bson", replace("pppppppp", "pppppppq"), "entry 2: o.pad"},
		{"a document afterwards", "update-v1", "after/upd.o.bson", replace("pppppppp", "pppppppq"), "data: upd.o"},
		{"a statement", "update-v1", "commands.jsonl", replace(`"new"`, `"old"`), "entry "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			report := Replay(t.Context(), tampered(t, tt.scenario, tt.file, tt.change), Options{})
			if report.OK() || !strings.Contains(report.String(), tt.shows) {
				t.Errorf("%q is not in %s", tt.shows, report.String())
			}
		})
	}
}

// TestEntryMissing: an entry that the recorded server did not write, and one that
// ours does not, shift nothing else.
func TestEntryMissing(t *testing.T) {
	s := tampered(t, "ids", "commands.jsonl", func(data []byte) []byte {
		lines := bytes.SplitAfter(data, []byte("\n"))
		return append(bytes.Join(lines[:9], nil), bytes.Join(lines[10:], nil)...)
	})
	report := Replay(t.Context(), s, Options{})
	if report.Err != nil || report.EqualEntries < 110 || report.OK() || !strings.Contains(report.String(), "missing: ") {
		t.Error(report.String())
	}
}

func TestNoTranscript(t *testing.T) {
	s := tampered(t, "types", "commands.jsonl", func([]byte) []byte { return nil })
	report := Replay(t.Context(), s, Options{})
	if !report.OK() || !strings.HasPrefix(report.String(), "skip types") {
		t.Error(report.String())
	}
}

func TestUnplayedVersion(t *testing.T) {
	s := tampered(t, "types", "meta.json", func(data []byte) []byte {
		return bytes.Replace(data, []byte("5.0.7"), []byte("3.6.1"), 1)
	})
	report := Replay(t.Context(), s, Options{})
	if !report.OK() || !strings.HasPrefix(report.String(), "skip types") || !strings.Contains(report.String(), "3.6") {
		t.Error(report.String())
	}
}

func TestCorrupt(t *testing.T) {
	s := tampered(t, "types", "commands.jsonl", func(data []byte) []byte { return data[:len(data)-20] })
	if report := Replay(t.Context(), s, Options{}); report.OK() || !strings.Contains(report.String(), "commands.jsonl") {
		t.Error(report.String())
	}
}

// TestOmitted: inserts that a transcript lacks come from the log, in and outside of
// transactions; nothing else can.
func TestOmitted(t *testing.T) {
	omit := func(has string) func([]byte) []byte {
		return func(data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			for i, line := range lines {
				before, _, _ := bytes.Cut(line, []byte(`"command":{`))
				to := bytes.Index(line, []byte(`,"reply":{`))
				if bytes.Contains(line, []byte(has)) && to > 0 {
					lines[i] = slices.Concat(before, []byte(`"command":{"$omitted":{"$numberInt":"70000"}}`), line[to:])
					return bytes.Join(lines, nil)
				}
			}
			t.Fatalf("there is no line with %s", has)
			return nil
		}
	}
	for _, tt := range []struct {
		scenario, line string
		rebuilt        bool
	}{
		{"ids", `"insert":`, true},
		{"retryable", `"insert":`, true},
		{"txn-prepared", `"p1-1"`, true},
		{"ids", `"update":`, false},
		{"txn-prepared", `"p2-1"`, true},
		{"txn-small", `"commitTransaction":`, false},
	} {
		report := Replay(t.Context(), tampered(t, tt.scenario, "commands.jsonl", omit(tt.line)), Options{})
		if tt.rebuilt != report.OK() || !tt.rebuilt && !strings.Contains(report.String(), "together again") {
			t.Errorf("%s without %s: %s", tt.scenario, tt.line, report.String())
		}
	}
}
