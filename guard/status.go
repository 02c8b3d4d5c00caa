package guard

// Status has the foreign writes, as far as the process knows them.
type Status struct {
	// Mode is the reaction to them.
	Mode Mode
	// Watching reports whether the target's oplog is read now. Why is why it is not.
	Watching bool
	Why      string
	// State has the findings; it is empty while this process has not led.
	State State
}
