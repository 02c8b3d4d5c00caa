package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Level is the result of a check.
type Level uint8

const (
	// OK means that there is nothing to do.
	OK Level = iota + 1
	// Warn means that the link can run, but an operator should know.
	Warn
	// Fail means that the link must not start.
	Fail
)

// String returns the level as printed in a finding.
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

// Finding is the result of one check, with details.
type Finding struct {
	Level Level
	// Check is the subject of the check, such as "source version".
	Check string
	// Detail is the result in words.
	Detail string
	// Do is the remedy, empty if none is needed.
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

// FailedError reports that checks failed.
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

// Details returns what failed, with the findings, and what to do about them.
func (e *FailedError) Details() (what, do string) {
	var found, remedies []string
	for _, f := range e.Findings {
		found = append(found, f.Check+": "+f.Detail)
		if f.Do != "" && !slices.Contains(remedies, f.Do) {
			remedies = append(remedies, f.Do)
		}
	}
	return "startup checks failed: " + strings.Join(found, "; "), strings.Join(remedies, " ")
}

// Denied reports whether all failures are missing privileges.
func (e *FailedError) Denied() bool {
	for _, f := range e.Findings {
		if !f.Denied {
			return false
		}
	}
	return true
}
