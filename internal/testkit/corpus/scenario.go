package corpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// Scenario is one recording.
type Scenario struct {
	// Name is the recording's own name for itself, or that of its folder.
	Name string
	// Dir is the folder.
	Dir  string
	Meta Meta
	// Err is why meta.json cannot be used, a [*FileError], nil if it can. Then
	// there is no Meta, Oplog yields just Err, and Verify reports it.
	Err error
}

// Meta is a recording's metadata.
type Meta struct {
	Name string `json:"name"`
	What string `json:"what"`
	// ServerVersion is the version that wrote the log, as in "5.0.7".
	ServerVersion string `json:"serverVersion"`
	// FCV is the feature compatibility version at the start of the log, empty for
	// that of ServerVersion.
	FCV string `json:"featureCompatibilityVersion"`
	// Entries is how many entries the log has.
	Entries int `json:"entries"`
	// First is the timestamp before the log's first entry, Last that of its last
	// one, as SECONDS:INCREMENT.
	First string `json:"first"`
	Last  string `json:"last"`
	// Reappliable says whether the log can be applied to its own result, nil
	// where that is left to be found out.
	Reappliable *bool `json:"reappliable"`

	first, last oplog.OpTime
}

const metaFile = "meta.json"

// Open returns the recordings in dir by name: dir itself if it is one, or else
// its folders. One whose meta.json is missing or cannot be used says so in its
// Err. A dir without folders is an error. Only the meta.json files are read.
func Open(dir string) ([]Scenario, error) {
	if _, err := os.Stat(filepath.Join(dir, metaFile)); err == nil {
		return []Scenario{open(dir)}, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fileError(dir, plain(err))
	}
	var all []Scenario
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); err != nil || !info.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		all = append(all, open(path))
	}
	if len(all) == 0 {
		return nil, fileError(dir, fmt.Errorf("%w: it holds no recording (a folder with %s)", fs.ErrNotExist, metaFile))
	}
	return all, nil
}

func open(dir string) Scenario {
	s := Scenario{Dir: dir, Name: printable.Text(filepath.Base(dir))}
	meta, err := readMeta(filepath.Join(dir, metaFile))
	if err != nil {
		s.Err = err
		return s
	}
	s.Meta = meta
	if meta.Name != "" {
		s.Name = printable.Text(meta.Name)
	}
	return s
}

func readMeta(file string) (Meta, error) {
	var meta Meta
	data, err := os.ReadFile(file)
	if err != nil {
		return meta, fileError(file, plain(err))
	}
	if err := json.Unmarshal(data, &meta); err != nil {
		return meta, &FileError{File: file, Offset: jsonOffset(err), Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
	}
	for _, stamp := range []struct {
		name, value string
		into        *oplog.OpTime
	}{{"first", meta.First, &meta.first}, {"last", meta.Last, &meta.last}} {
		if *stamp.into, err = oplog.ParseOpTime(stamp.value); err != nil {
			return meta, fileError(file, fmt.Errorf("%w: %s: %w", ErrCorrupt, stamp.name, err))
		}
	}
	if meta.Entries <= 0 {
		return meta, fileError(file, fmt.Errorf("%w: entries: %d", ErrCorrupt, meta.Entries))
	}
	return meta, nil
}

// Span returns the timestamp before the log's first entry and that of its last
// one, as optimes without a term.
func (s *Scenario) Span() (first, last oplog.OpTime) { return s.Meta.first, s.Meta.last }

// trimsCapped reports whether members trimmed capped collections by themselves
// when the log was written: up to feature compatibility version 4.4.
func (s *Scenario) trimsCapped() bool {
	if s.Meta.FCV != "" {
		return trims(s.Meta.FCV)
	}
	return trims(s.Meta.ServerVersion)
}

// trims reports whether members of a version, such as "4.4", trim capped
// collections by themselves.
func trims(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n < 5
}

func (s *Scenario) path(name string) string { return filepath.Join(s.Dir, name) }

// plain takes the path out of an error of the file system: FileError has it.
func plain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

func jsonOffset(err error) int64 {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return s.Offset
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return t.Offset
	}
	return -1
}
