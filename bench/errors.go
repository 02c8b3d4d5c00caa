package bench

import (
	"fmt"
	"strings"
)

// ConfigError reports a measurement that cannot be made as configured. Nothing was
// written.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// ExistsError reports a set with databases that a run would drop without permission.
// Nothing was written.
type ExistsError struct {
	// Hosts are the set's members.
	Hosts, Databases []string
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("prepare %s: databases that the workload would drop exist there: %s",
		strings.Join(e.Hosts, ","), strings.Join(e.Databases, ", "))
}

// LeftError reports a set on which databases of a run are left.
type LeftError struct {
	Hosts, Databases []string
	Err              error
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("tidy %s: databases of the run are left there: %s: %s",
		strings.Join(e.Hosts, ","), strings.Join(e.Databases, ", "), e.Err)
}

func (e *LeftError) Unwrap() error { return e.Err }
