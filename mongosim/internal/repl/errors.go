package repl

import (
	"errors"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Reasons for the data loop to stop a task. They are never returned from the
// package.
var (
	errRoleChanged   = errors.New("repl: the member's role changed")
	errSourceChanged = errors.New("repl: the configuration or the choice of source changed")
	errDiverged      = errors.New("repl: the source's oplog does not go on where this one ends")
	errTooStale      = errors.New("repl: the source no longer has what this member needs next")
	errBehind        = errors.New("repl: the source is not ahead")
)

func errShutdown() error {
	return servererr.New(servererr.ShutdownInProgress, "The server is in quiesce mode and will shut down")
}

func notPrimary(message string) error {
	return servererr.New(servererr.NotWritablePrimary, "%s", message)
}

func badValue(format string, args ...any) error {
	return servererr.New(servererr.BadValue, format, args...)
}

// badCommand is for a command of another member that lacks a field, or has one of
// the wrong type.
func badCommand(name string, err error) error {
	return servererr.New(servererr.BadValue, "%s: %v", name, err)
}

func inconsistentNames(ours, theirs string) error {
	return servererr.New(servererr.InconsistentReplicaSetNames, "Our set name of %s does not match name %s reported by remote node", ours, theirs)
}

func invalidConfig(format string, args ...any) error {
	return servererr.New(servererr.InvalidReplicaSetConfig, format, args...)
}

func incompatibleConfig(format string, args ...any) error {
	return servererr.New(servererr.NewReplicaSetConfigurationIncompatible, format, args...)
}

func notYetInitialized() error {
	return servererr.New(servererr.NotYetInitialized, "no replset config has been received")
}
