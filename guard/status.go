package guard

import "time"

// Status is what a process knows of foreign writes.
type Status struct {
	// Mode is what is done about them.
	Mode Mode
	// Watching reports whether the target's oplog is read now. Why is why it is not.
	Watching bool
	Why      string
	// State is what is known; it is empty while this process has not led. At is when it was
	// last examined, by this process's clock.
	State State
	At    time.Time
}
