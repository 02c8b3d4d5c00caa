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

	"github.com/oplogrep/replicator/oplog"
)

// Scenario is one recording.
type Scenario struct {
	// Name is the recording's own name for itself, or that of its folder.
	Name string
	// Dir is the folder.
	Dir  string
	Meta Meta
}

// Meta is what a recording says about itself.
type Meta struct {
	Name string `json:"name"`
	What string `json:"what"`
	// ServerVersion is the version that wrote the log, as in "5.0.7".
	ServerVersion string `json:"serverVersion"`
	// FCV is the feature compatibility version, empty for the server's own.
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
// its folders. A folder without meta.json is an error, as is a dir without
// recordings. Only the meta.json files are read.
func Open(dir string) ([]Scenario, error) {
	if _, err := os.Stat(filepath.Join(dir, metaFile)); err == nil {
		s, err := open(dir)
		return []Scenario{s}, err
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
		s, err := open(path)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fileError(dir, fmt.Errorf("%w: it holds no recording (a folder with %s)", fs.ErrNotExist, metaFile))
	}
	return all, nil
}

func open(dir string) (Scenario, error) {
	s := Scenario{Dir: dir, Name: filepath.Base(dir)}
	file := filepath.Join(dir, metaFile)
	data, err := os.ReadFile(file)
	if err != nil {
		return s, fileError(file, plain(err))
	}
	if err := json.Unmarshal(data, &s.Meta); err != nil {
		return s, &FileError{File: file, Offset: jsonOffset(err), Err: fmt.Errorf("%w: %w", ErrCorrupt, err)}
	}
	for _, stamp := range []struct {
		name, value string
		into        *oplog.OpTime
	}{{"first", s.Meta.First, &s.Meta.first}, {"last", s.Meta.Last, &s.Meta.last}} {
		if *stamp.into, err = oplog.ParseOpTime(stamp.value); err != nil {
			return s, fileError(file, fmt.Errorf("%w: %s: %w", ErrCorrupt, stamp.name, err))
		}
	}
	if s.Meta.Entries <= 0 {
		return s, fileError(file, fmt.Errorf("%w: entries: %d", ErrCorrupt, s.Meta.Entries))
	}
	if s.Meta.Name != "" {
		s.Name = s.Meta.Name
	}
	return s, nil
}

// trimsCapped tells whether members trimmed capped collections by themselves
// when the log was written: up to feature compatibility version 4.4.
func (s *Scenario) trimsCapped() bool {
	major, _, _ := strings.Cut(s.Meta.FCV, ".")
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
