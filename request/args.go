package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// ErrInvalid is wrapped by the error of a request that cannot be asked: of a kind that this
// release does not know, or with wrong arguments.
var ErrInvalid = errors.New("not a valid request")

// Limit is a limit in the arguments of a Throttle: absent, null for none, or a number.
type Limit struct {
	Given bool
	// PerSecond is 0 for none.
	PerSecond int64
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *Limit) UnmarshalJSON(text []byte) error {
	*l = Limit{Given: true}
	if string(text) == "null" {
		return nil
	}
	return json.Unmarshal(text, &l.PerSecond)
}

// MarshalJSON implements json.Marshaler. A limit that is not given has to be omitted.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l.PerSecond == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(l.PerSecond)
}

// IsZero reports whether it is not given.
func (l Limit) IsZero() bool { return !l.Given }

// Change is the arguments of a Throttle. Absent fields leave a limit as it is.
type Change struct {
	CopyBytesPerSecond  Limit `json:"copyBytesPerSecond,omitzero"`
	CopyOpsPerSecond    Limit `json:"copyOpsPerSecond,omitzero"`
	ApplyBytesPerSecond Limit `json:"applyBytesPerSecond,omitzero"`
	ApplyOpsPerSecond   Limit `json:"applyOpsPerSecond,omitzero"`
	// Adaptive lowers the limits of applying while the target is under pressure.
	Adaptive *bool `json:"adaptive,omitempty"`
	// Default removes the limits of the copy that were asked for: those apply that the process
	// was started with.
	Default bool `json:"default,omitempty"`
}

// AgainArgs are the arguments of Again and Verify: collections, as the source names them.
type AgainArgs struct {
	Namespaces []string `json:"namespaces,omitempty"`
	Namespace  string   `json:"namespace,omitempty"`
}

// All returns the collections.
func (a *AgainArgs) All() []oplog.Namespace {
	var all []oplog.Namespace
	for _, ns := range append(slices.Clone(a.Namespaces), a.Namespace) {
		if ns != "" && !slices.Contains(all, oplog.Namespace(ns)) {
			all = append(all, oplog.Namespace(ns))
		}
	}
	return all
}

// LevelArgs are the arguments of LogLevel: debug, info, warn, error, or default for the level
// that the process was started with.
type LevelArgs struct {
	Level string `json:"level"`
}

// levels are the values of LevelArgs.
func levels() []string { return []string{"debug", "info", "warn", "error", "default"} }

const (
	// most of a limit: what a token bucket can count.
	mostPerSecond = 1 << 50
	// mostNamespaces is how many collections one request may name.
	mostNamespaces = 100
)

// Change reads the arguments of a Throttle.
func (r *Record) Change() (c Change, err error) {
	if err := decode(r.Args, &c); err != nil {
		return c, err
	}
	for _, l := range []Limit{c.CopyBytesPerSecond, c.CopyOpsPerSecond, c.ApplyBytesPerSecond, c.ApplyOpsPerSecond} {
		if l.PerSecond < 0 || l.PerSecond > mostPerSecond {
			return c, fmt.Errorf("a limit of %d per second: want a number from 1, or null for none", l.PerSecond)
		}
	}
	copies := c.CopyBytesPerSecond.Given || c.CopyOpsPerSecond.Given
	switch {
	case c.Default && copies:
		return c, errors.New("default removes the limits of the copy: they cannot be set as well")
	case !c.Default && !copies && !c.ApplyBytesPerSecond.Given && !c.ApplyOpsPerSecond.Given && c.Adaptive == nil:
		return c, errors.New("it changes nothing: name a limit, adaptive or default")
	}
	return c, nil
}

// Again reads the arguments of Again.
func (r *Record) Again() (a AgainArgs, err error) {
	if err := decode(r.Args, &a); err != nil {
		return a, err
	}
	all, err := a.check()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("namespaces: want 1 to %d collections, there are none", mostNamespaces)
	}
	return a, err
}

// Verify reads the arguments of Verify: the collections, none for everything.
func (r *Record) Verify() ([]oplog.Namespace, error) {
	var a AgainArgs
	if err := decode(r.Args, &a); err != nil {
		return nil, err
	}
	return a.check()
}

func (a *AgainArgs) check() ([]oplog.Namespace, error) {
	all := a.All()
	for _, ns := range all {
		if err := checkNamespace(string(ns)); err != nil {
			return nil, err
		}
	}
	if len(all) > mostNamespaces {
		return nil, fmt.Errorf("namespaces: want at most %d collections, there are %d", mostNamespaces, len(all))
	}
	return all, nil
}

// Level reads the arguments of LogLevel.
func (r *Record) Level() (string, error) {
	var a LevelArgs
	if err := decode(r.Args, &a); err != nil {
		return "", err
	}
	if !slices.Contains(levels(), a.Level) {
		return "", fmt.Errorf("level: %q is none of %s", a.Level, strings.Join(levels(), ", "))
	}
	return a.Level, nil
}

// Check validates a request. Its errors wrap ErrInvalid.
func (r *Record) Check() error {
	var err error
	switch r.Kind {
	case Pause, Resume:
		err = decode(r.Args, &struct{}{})
	case Throttle:
		_, err = r.Change()
	case Again:
		_, err = r.Again()
	case LogLevel:
		_, err = r.Level()
	case Cut:
		_, err = r.Within()
	case Repair:
		_, err = r.Repair()
	case Verify:
		_, err = r.Verify()
	default:
		names := make([]string, 0, len(kinds()))
		for _, k := range kinds() {
			names = append(names, string(k))
		}
		return fmt.Errorf("%w: this release knows no kind %q, only %s", ErrInvalid, r.Kind, strings.Join(names, ", "))
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, r.Kind, err)
	}
	return nil
}

// decode reads a JSON object. A field that is not known is an error: it may be what matters.
func decode(args json.RawMessage, into any) error {
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("args: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("args: more than one JSON value")
	}
	return nil
}
