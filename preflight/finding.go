package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Level is how a check ended.
type Level uint8

const (
	// OK says that nothing is to be done.
	OK Level = iota + 1
	// Warn says that the link can run, but an operator should know.
	Warn
	// Fail says that the link must not start.
	Fail
)

// String returns the level as it stands in a line.
func (l Level) String() string {
	switch l {
	case OK:
		return "OK"
	case Warn:
		return "WARN"
	case Fail:
		return "FAIL"
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// Finding is what one check found.
type Finding struct {
	Level Level
	// Check is what was looked at, such as "source version".
	Check string
	// Detail is what was found.
	Detail string
	// Do is what to do about it, empty where nothing is.
	Do string
	// Denied is set if a privilege is missing.
	Denied bool
}

// String returns the finding as one line.
func (f Finding) String() string {
	line := fmt.Sprintf("%-4s %s: %s", f.Level, f.Check, f.Detail)
	if f.Do != "" {
		line += ". " + f.Do
	}
	return line
}

// FailedError is a set of checks some of which failed.
type FailedError struct {
	// Findings are those with level Fail.
	Findings []Finding
}

func (e *FailedError) Error() string {
	var names []string
	for _, f := range e.Findings {
		if !slices.Contains(names, f.Check) {
			names = append(names, f.Check)
		}
	}
	return "startup checks failed: " + strings.Join(names, ", ")
}

// Denied reports whether nothing failed but for want of privileges.
func (e *FailedError) Denied() bool {
	for _, f := range e.Findings {
		if !f.Denied {
			return false
		}
	}
	return true
}
