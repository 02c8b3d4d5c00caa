package oplog

import "strconv"

// Kind is the kind of an operation. The zero value is not a kind.
type Kind uint8

// The known kinds of operation. Any other is an error: the server has more in
// development (global indexes, containers), and skipping one would lose data.
const (
	KindInsert Kind = iota + 1
	KindUpdate
	KindDelete
	KindCommand
	KindNoop
)

// String returns the kind's name.
func (k Kind) String() string {
	switch k {
	case KindInsert:
		return "insert"
	case KindUpdate:
		return "update"
	case KindDelete:
		return "delete"
	case KindCommand:
		return "command"
	case KindNoop:
		return "noop"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// IsCRUD reports whether the operation writes a document.
func (k Kind) IsCRUD() bool { return k == KindInsert || k == KindUpdate || k == KindDelete }

func kindOf(op string) (Kind, bool) {
	switch op {
	case "i":
		return KindInsert, true
	case "u":
		return KindUpdate, true
	case "d":
		return KindDelete, true
	case "c":
		return KindCommand, true
	case "n":
		return KindNoop, true
	}
	return 0, false
}

// Command is the command of an operation. The zero value means that the operation
// is not a command.
type Command uint8

// The commands that occur in an oplog of MongoDB 4.4 to 8.0. Any other command is
// an error. convertToCapped and a rename between databases are not among them: the
// server logs the operations that they consist of.
const (
	CommandCreate Command = iota + 1
	CommandCreateIndexes
	CommandStartIndexBuild
	CommandCommitIndexBuild
	CommandAbortIndexBuild
	CommandDropIndexes
	CommandCollMod
	CommandDrop
	CommandDropDatabase
	CommandRenameCollection
	CommandEmptyCapped
	CommandApplyOps
	CommandCommitTransaction
	CommandAbortTransaction
	CommandDBCheck
	CommandImportCollection
)

var commandNames = [...]string{
	CommandCreate:            "create",
	CommandCreateIndexes:     "createIndexes",
	CommandStartIndexBuild:   "startIndexBuild",
	CommandCommitIndexBuild:  "commitIndexBuild",
	CommandAbortIndexBuild:   "abortIndexBuild",
	CommandDropIndexes:       "dropIndexes",
	CommandCollMod:           "collMod",
	CommandDrop:              "drop",
	CommandDropDatabase:      "dropDatabase",
	CommandRenameCollection:  "renameCollection",
	CommandEmptyCapped:       "emptycapped",
	CommandApplyOps:          "applyOps",
	CommandCommitTransaction: "commitTransaction",
	CommandAbortTransaction:  "abortTransaction",
	CommandDBCheck:           "dbCheck",
	CommandImportCollection:  "importCollection",
}

// String returns the command's name as in the log, and "" for none.
func (c Command) String() string {
	if int(c) < len(commandNames) {
		return commandNames[c]
	}
	return "Command(" + strconv.Itoa(int(c)) + ")"
}

// commandOf returns the command for the first field name of its o.
func commandOf(name string) (Command, bool) {
	if name == "deleteIndexes" { // the name of dropIndexes before 3.0, still accepted
		return CommandDropIndexes, true
	}
	for c, n := range commandNames {
		if n != "" && n == name {
			return Command(c), true
		}
	}
	return 0, false
}
