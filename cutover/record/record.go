package record

import (
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// State is the state of a cutover.
type State string

// The states.
const (
	Running    State = "running"
	Cancelling State = "cancelling"
	Done       State = "done"
	Cancelled  State = "cancelled"
)

// Step is the name of a step.
type Step string

// The steps, in order. Unblock lifts a write block of the target, if there is one; Thaw lets the old source take writes again, if that is asked for; Expire restores
// the options by which the target deletes documents by itself; Undo is the step of a
// cancellation.
const (
	Check   Step = "check"
	Freeze  Step = "freeze"
	Drain   Step = "drain"
	Verify  Step = "verify"
	Convert Step = "convert"
	Arm     Step = "arm"
	Commit  Step = "commit"
	Unblock Step = "unblock"
	Thaw    Step = "thaw"
	Expire  Step = "expire"
	Undo    Step = "undo"
)

// Taken is one step that was begun.
type Taken struct {
	Step    Step      `bson:"step"    json:"step"`
	Started time.Time `bson:"started" json:"started"`
	// Ended is zero until it has ended, Outcome its outcome.
	Ended   time.Time `bson:"ended,omitempty"   json:"ended,omitzero"`
	By      string    `bson:"by"                json:"by"`
	Outcome string    `bson:"outcome,omitempty" json:"outcome,omitempty"`
}

// Failure is the error with which a process has ended that worked on a cutover.
type Failure struct {
	Step  Step      `bson:"step"  json:"step"`
	At    time.Time `bson:"at"    json:"at"`
	By    string    `bson:"by"    json:"by"`
	Error string    `bson:"error" json:"error"`
	// OnlyCancel means that to resume it finds the same again, or Lasting: it can only be cancelled.
	OnlyCancel bool `bson:"onlyCancel,omitempty" json:"onlyCancel,omitempty"`
	// Lasting is the error that whoever resumes it meets again, this one or one before it, empty for none. It is kept, with OnlyCancel, until
	// the commit begins or the cutover is cancelled, also if another error comes after it. Earlier releases do not record it.
	Lasting string `bson:"lasting,omitempty" json:"lasting,omitempty"`
}

// String names the step, the time and the operator, then the error.
func (f *Failure) String() string {
	return fmt.Sprintf("at step %s, %s, by %s: %s", f.Step, when(f.At), f.By, f.Errors())
}

// Errors returns the error, and after it the lasting one if that came before it.
func (f *Failure) Errors() string {
	if f.Lasting == "" || f.Lasting == f.Error {
		return f.Error
	}
	return f.Error + "; before, and to be met again: " + f.Lasting
}

// Method is how writes to the source are stopped.
type Method string

// The methods.
const (
	// Block is the server's write block.
	Block Method = "block"
	// Command is a command of the operator, which stops the applications.
	Command Method = "command"
	// Quiet waits until no client writes any more.
	Quiet Method = "quiet"
	// Stopped is the operator's word.
	Stopped Method = "stopped"
)

// NoReverse as Options.Reverse means that there is no way back.
const NoReverse = "none"

// Options are the options with which a cutover was begun. They do not change.
type Options struct {
	Freeze        Method   `bson:"freeze"                  json:"freeze"`
	FreezeCommand string   `bson:"freezeCommand,omitempty" json:"freezeCommand,omitempty"`
	ThawCommand   string   `bson:"thawCommand,omitempty"   json:"thawCommand,omitempty"`
	ThawSource    bool     `bson:"thawSource"              json:"thawSource"`
	Waived        []string `bson:"waived,omitempty"        json:"waived,omitempty"`
	// Verify means that the target is compared with the source once writes are stopped.
	Verify bool `bson:"verify,omitempty" json:"verify,omitempty"`
	// Reverse is arm or none.
	Reverse string `bson:"reverse,omitempty" json:"reverse,omitempty"`
}

// Record is the record of the newest cutover of a link.
type Record struct {
	Link string `bson:"_id" json:"link"`
	// ID is that of this cutover.
	ID      string    `bson:"id"              json:"id"`
	State   State     `bson:"state"           json:"state"`
	By      string    `bson:"by"              json:"by"`
	Started time.Time `bson:"started"         json:"started"`
	Ended   time.Time `bson:"ended,omitempty" json:"ended,omitzero"`
	Options Options   `bson:"options"         json:"options"`
	Steps   []Taken   `bson:"steps"           json:"steps"`
	// Failed is the last error. It is nil if a step has ended since; one with an error that lasts is kept until the commit begins or the
	// cutover is cancelled. Earlier releases do not record it.
	Failed *Failure `bson:"failed,omitempty" json:"failed,omitempty"`
	// Found is set if writes to the source were blocked already before the cutover: it does not
	// lift that block.
	Found bool `bson:"found,omitempty" json:"found,omitempty"`
	// BlockSeconds limits how long after its arrival the source executes a command of this cutover
	// that blocks writes, 0 in records of earlier releases.
	BlockSeconds float64 `bson:"blockSeconds,omitempty" json:"blockSeconds,omitempty"`
	// Late is when it was found that such a command was sent, and that it is not known whether it was
	// executed: it may still be, for BlockSeconds. Zero if each was answered.
	Late time.Time `bson:"late,omitempty" json:"late,omitzero"`
	// Frozen is when the last write was acknowledged at the latest, by the clock of the process that
	// has stopped writes; zero before.
	Frozen time.Time `bson:"frozen,omitempty" json:"frozen,omitzero"`
	// Drained is the entry of the source up to which the target has everything, and nothing was
	// written after it.
	Drained Drained `bson:"drained,omitempty" json:"drained,omitzero"`
	// DowntimeSeconds is the time from Frozen until applications could use the target.
	DowntimeSeconds float64 `bson:"downtimeSeconds,omitempty" json:"downtimeSeconds,omitempty"`
	// GoneBack is the way back if that was cut over before all was done: the rest was left.
	GoneBack string `bson:"goneBack,omitempty" json:"goneBack,omitempty"`

	// Rev counts the changes, Save identifies the last one.
	Rev  int64         `bson:"rev"  json:"rev"`
	Save bson.ObjectID `bson:"save" json:"-"`
}

// Drained is an optime of the source, and the time of the target of the cut that proved it.
type Drained struct {
	T    uint32         `bson:"t"    json:"t"`
	I    uint32         `bson:"i"    json:"i"`
	Term int64          `bson:"term" json:"term"`
	Cut  bson.Timestamp `bson:"cut"  json:"cut"`
}

// Open reports whether it is neither done nor cancelled. In a state that this release does not know it is open.
func (r *Record) Open() bool { return r != nil && r.State != Done && r.State != Cancelled }

// StateError reports a cutover in a state that this release does not know: a later one has written it.
type StateError struct {
	Link  string
	State State
}

// Error implements error.
func (e *StateError) Error() string {
	return fmt.Sprintf("the cutover of link %s is in the state %q, which this release does not know: go on with the release that has begun it", e.Link, e.State)
}

// Known returns a *StateError if this release does not know the state: it must not change such a record.
func (r *Record) Known() error {
	if !r.Open() || r.State == Running || r.State == Cancelling {
		return nil
	}
	return &StateError{Link: r.Link, State: r.State}
}

// Last returns the step that was begun last.
func (r *Record) Last() Taken {
	if len(r.Steps) == 0 {
		return Taken{Step: Check, Started: r.Started, By: r.By}
	}
	return r.Steps[len(r.Steps)-1]
}

// Began reports whether a step was begun, Has whether it has ended.
func (r *Record) Began(s Step) bool { return r.find(s) >= 0 }

// Has reports whether a step has ended.
func (r *Record) Has(s Step) bool {
	i := r.find(s)
	return i >= 0 && !r.Steps[i].Ended.IsZero()
}

func (r *Record) find(s Step) int {
	return slices.IndexFunc(r.Steps, func(t Taken) bool { return t.Step == s })
}

// Begin begins a step, or takes it up again: it is the last one then.
func (r *Record) Begin(s Step, by string, now time.Time) {
	r.Forget(s)
	r.Steps = append(r.Steps, Taken{Step: s, Started: now, By: by})
	if s == Commit { // nothing is in its way
		r.Failed = nil
	}
}

// End ends a step.
func (r *Record) End(s Step, outcome string, now time.Time) {
	if i := r.find(s); i >= 0 {
		r.Steps[i].Ended, r.Steps[i].Outcome = now, outcome
		if r.Failed != nil && (r.Failed.Lasting == "" || s == Undo) { // arm ends although the commit will meet it again
			r.Failed = nil
		}
	}
}

// Forget forgets that a step was begun: nothing of it was done.
func (r *Record) Forget(s Step) {
	r.Steps = slices.DeleteFunc(r.Steps, func(t Taken) bool { return t.Step == s })
}

// Blocks reports whether the source may be blocked by this cutover.
func (r *Record) Blocks() bool {
	return r.Open() && r.Began(Freeze) && !r.Found && !r.Has(Undo) && !r.Has(Thaw)
}

// Thawed says what of the source is as it was once this cutover is cancelled.
func (r *Record) Thawed() string {
	switch o := &r.Options; {
	case !r.Began(Freeze):
	case o.Freeze == Block && r.Found:
		return "writes to the source are blocked, as they were before"
	case o.Freeze == Command && o.ThawCommand == "":
		return "the source is not blocked, but no --thaw-command was given: let the applications write again"
	}
	return "the source takes writes as before"
}

// TargetBlocked warns of the target's write block while the step unblock has not ended.
const TargetBlocked = "Applications cannot write to the target yet."

// Doubt records that the outcome of the command that blocks writes is unknown, if it is.
func (r *Record) Doubt(now time.Time) {
	if r.Options.Freeze == Block && !r.Found && r.Began(Freeze) && !r.Has(Freeze) && !r.Began(Undo) {
		r.Late = now
	}
}

// MayStray reports whether a command of this cutover that blocks writes may have reached the source after the cutover was
// cancelled, from a process that was suspended meanwhile.
func (r *Record) MayStray() bool {
	return r != nil && r.State == Cancelled && r.Options.Freeze == Block && !r.Found && !r.Late.IsZero()
}

// unlimited is how long a command that blocks writes may take to be executed in records that have no
// limit: the server ends older transactions by itself, for which such a command waits.
const unlimited = time.Minute

// Settled returns from when on no command of this cutover can block writes to the source by itself.
func (r *Record) Settled() time.Time {
	switch {
	case r.Late.IsZero():
		return time.Time{}
	case r.BlockSeconds == 0:
		return r.Late.Add(unlimited)
	}
	return r.Late.Add(time.Duration(r.BlockSeconds * float64(time.Second)))
}

// Clone returns a copy.
func (r *Record) Clone() *Record {
	c := *r
	c.Steps, c.Options.Waived = slices.Clone(r.Steps), slices.Clone(r.Options.Waived)
	return &c
}

// String names the operator, when it was begun, and its step.
func (r *Record) String() string {
	last := r.Last()
	state := string(r.State) + ", "
	if r.State == Running { // whether a process works on it is not recorded
		state = ""
	}
	text := fmt.Sprintf("the cutover that %s began at %s is %sat step %s", r.By, when(r.Started), state, last.Step)
	if !last.Ended.IsZero() {
		return text + " (ended " + when(last.Ended) + " by " + last.By + ")"
	}
	return text + " (begun " + when(last.Started) + ", last by " + last.By + ")"
}

func when(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
