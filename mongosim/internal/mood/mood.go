package mood

import (
	"slices"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Kind is what happens at a place.
type Kind uint8

const (
	// Refuse answers with an error in place of the work. In a transaction that is
	// its end.
	Refuse Kind = iota + 1
	// Statement refuses the first statement of a write, within its reply.
	Statement
	// Unmet does the work and returns a write concern error.
	Unmet
	// Slow does the work and delays the write concern.
	Slow
	// Lose does the work and closes the connection in place of a reply.
	Lose
	// HangUp closes the connection in place of the work.
	HangUp
	// Drop closes each existing connection at its next command.
	Drop
	// Shut refuses, and closes the connection after that.
	Shut
	// Abort ends the open transaction before the command is parsed.
	Abort
	// Forget ends the cursor before the command is parsed.
	Forget
	// Kill ends the cursor while the command uses it.
	Kill
	// Short ends a batch early.
	Short
	// Early lets a wait for data end at once.
	Early
	// Elect makes the primary step down, so that another one is elected. The command
	// itself continues.
	Elect
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{
		"None", "Refuse", "Statement", "Unmet", "Slow", "Lose", "HangUp", "Drop", "Shut", "Abort", "Forget", "Kill", "Short", "Early", "Elect",
	}[k]
}

// gentle reports whether nothing fails.
func (k Kind) gentle() bool { return k == Slow || k == Short || k == Early }

// Mood is one such answer.
type Mood struct {
	// Name is its name in tests.
	Name string
	// Where describes the commands at which it may occur, Answer the client's view.
	Where, Answer string
	// Since is the server version, major and minor, that has it first; zero is 4.4.
	Since [2]int
	// OneIn is its rate: at one in OneIn places. A Standing mood occurs in one in
	// OneIn sets, at every place there.
	OneIn    int
	Standing bool
	// Most limits its occurrences in one set; 0 means no limit.
	Most int
	// Fact is the source of the fact.
	Fact string

	// Kind is the kind of fault; Code and Text are those of its error, if any.
	Kind Kind
	Code servererr.Code
	Text string

	at func(p *Place) bool
}

// Gentle reports whether the mood is not an error.
func (m *Mood) gentle() bool { return m.Kind.gentle() }

// Place is a command of a client, as far as moods care.
type Place struct {
	// Command is the command's name, not an alias, and Version the server's.
	Command string
	Version [2]int
	// Collection is the collection that a find or aggregate reads.
	Collection string
	// Local says that the database is one that is not replicated.
	Local bool
	// Primary says that the member accepts writes; Several that others could be
	// elected.
	Primary, Several bool
	// Writes says that the command takes a write concern, and Majority that it waits
	// for one beyond this member. Timed says that this wait has a limit.
	Writes, Majority, Timed bool
	// InTxn says that it is part of a transaction, Starts that it begins it, and Ends
	// that it commits or aborts it.
	InTxn, Starts, Ends bool
	// Session says that it comes with a logical session.
	Session bool
	// Snapshot and ReadMajority are the level of its read concern.
	Snapshot, ReadMajority bool
	// Reads says that it may go to a secondary.
	Reads bool
	// Limited says that it has a maxTimeMS.
	Limited bool
	// Batch says that it is answered with a batch of a cursor, and Moved that this is
	// a getMore that comes on another connection than the command before it.
	Batch, Moved bool
}

// statement reports whether a place is a statement of a transaction, not its
// end.
func (p *Place) statement() bool { return p.InTxn && !p.Ends }

func (p *Place) is(names ...string) bool {
	return slices.Contains(names, p.Command)
}
