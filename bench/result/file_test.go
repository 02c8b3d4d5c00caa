package result

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFile: a report that is read equals the one written, to Compare too, down to
// the last digit of a seed.
func TestFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	want := sample()
	for range 2 { // The second time over the first one.
		if err := want.Write(file); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if changes := Compare(want, got); len(changes) > 0 {
		t.Errorf("it differs from what was read: %+v", changes)
	}
	for i := range want.Runs { // Of a workload the fields are read, whatever it was.
		want.Runs[i].Workload, got.Runs[i].Workload = nil, nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o600 != 0o600 {
		t.Errorf("its mode is %s", info.Mode())
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "unexpected end"},
		{`[]`, "cannot unmarshal array"},
		{`{"runs": []}`, "no format given"},
		{`{"format": 2, "novelty": 1}`, "format 2: this program knows 1 only"},
		{`{"format": 1} {}`, "after top-level value"},
	} {
		file := filepath.Join(t.TempDir(), "bad.json")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Read(file)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q and the file's name", c.text, err, c.want)
		}
	}
	if _, err := Read("no-such-file.json"); err == nil || !strings.Contains(err.Error(), "no-such-file.json") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestWriteErrors: what could not be written whole leaves everything as it was.
func TestWriteErrors(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "bench.json")
	if err := sample().Write(file); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	noNumber, noFormat := sample(), sample()
	noNumber.Runs[0].AllocsPerOp = math.NaN()
	noFormat.Format = 0
	occupied := filepath.Join(folder, "occupied")
	if err := os.Mkdir(occupied, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		report     *Report
		file, want string
	}{
		{noNumber, file, "NaN"},
		{noFormat, file, "format 0"},
		{sample(), occupied, "directory"},
		{sample(), filepath.Join(folder, "missing", "bench.json"), "no such file"},
	} {
		if err := c.report.Write(c.file); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%v, want %q and %s", err, c.want, c.file)
		}
	}
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("the old file was changed:\n%s", diff)
	}
	names, err := filepath.Glob(filepath.Join(folder, ".*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left over: %v, %v", names, err)
	}
}

// TestWriteThroughLink: the file that a link names is replaced, not the link; and
// other things than files are not replaced.
func TestWriteThroughLink(t *testing.T) {
	folder := t.TempDir()
	file, link := filepath.Join(folder, "bench.json"), filepath.Join(folder, "latest.json")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Skip(err)
	}
	if err := sample().Write(link); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(file); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if err := sample().Write(os.DevNull); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%s is %v, %v", os.DevNull, info, err)
	}
}

// TestKept: the results that are kept can be read, and the baseline is of runs as they are
// measured now: an end that has no words would make each run of it another one.
func TestKept(t *testing.T) {
	files, err := filepath.Glob("../results/*.json")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d files of results, %v", len(files), err)
	}
	for _, file := range files {
		report, err := Read(file)
		if err != nil {
			t.Error(err)
			continue
		}
		if filepath.Base(file) != "baseline.json" {
			continue
		}
		for i := range report.Runs {
			run := &report.Runs[i]
			for _, end := range []End{run.Source, run.Target} {
				if end.Set() && (end.Version == "" || end.Members == 0) {
					t.Errorf("%s: %s: an end is only %q", file, run.Name, end)
				}
			}
		}
	}
}
