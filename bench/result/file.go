package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Write writes a report as JSON to a file, which has either its old content or all of
// the new one. A figure that is not a number is an error.
func (r *Report) Write(file string) error {
	if r.Format != format {
		return fmt.Errorf("write the results to %s: they say format %d, want %d", file, r.Format, format)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results to %s: %w", file, err)
	}
	if err := replace(file, append(text, '\n')); err != nil {
		return fmt.Errorf("write the results to %s: %w", file, err)
	}
	return nil
}

// replace replaces a file by renaming another one over it. It writes directly to anything
// but a regular file, such as /dev/null or a pipe.
func replace(file string, text []byte) error {
	if at, err := filepath.EvalSymlinks(file); err == nil {
		file = at
	}
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(file, text, 0o644)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(tmp.Name()))
	}
	return err
}

// Read reads one. An unknown format is an error; a field that this program does not know is
// ignored, as it compares no more than it knows.
func Read(file string) (*Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the results: %w", err)
	}
	report, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read the results in %s: %w", file, err)
	}
	return report, nil
}

func parse(text []byte) (*Report, error) {
	var version struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, err
	}
	switch {
	case version.Format == nil:
		return nil, errors.New("no format given: these are no results of the harness")
	case *version.Format != format:
		return nil, fmt.Errorf("format %d: this program knows %d only", *version.Format, format)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // A workload's seed has 64 bits.
	var report Report
	if err := dec.Decode(&report); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the results")
	}
	return &report, nil
}
