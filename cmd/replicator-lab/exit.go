package main

import (
	"errors"

	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

// failedError marks that of a verification that failed.
func failedError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitFailed, Hint: "The output above says what differs; corpus --only NAME repeats one recording, demo --seed N one demo."}
}

// worseError marks that of a comparison that shows something worse.
func worseError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitFailed, Hint: "The lines that say worse name the figures. If that is intended, replace the earlier results."}
}

// benchFileError marks that of a file of results that cannot be used.
func benchFileError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitBadInput, Hint: "Name a file that replicator-lab bench has written (--json)."}
}

// benchInputError marks that of a workload's file, or of a recording, that cannot be
// used.
func benchInputError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitBadInput, Hint: "Name a workload as replicator-lab bench presets NAME prints it, or an oplog as mongodump writes it, documents one after the other."}
}

// portError marks that of a port that a server cannot have.
func portError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitCheck, Hint: "Choose another --port, or 0 for ports that the system chooses; --bind names an address of this machine."}
}

// explain maps an error to the exit code and a hint.
func explain(err error) (code int, hint string) {
	if is[*corpus.FileError](err) {
		return cli.ExitBadInput, "Get the recording again, or name a folder of recordings: a folder per recording, with meta.json, oplog.bson and after/."
	}
	if is[*bench.LeftError](err) {
		return cli.ExitUnexpected, "Drop the rest by hand: the message names the databases. The next run with --overwrite drops them too."
	}
	if is[*bench.ExistsError](err) {
		return cli.ExitCheck, "Nothing was written. Name another set, or let these databases be dropped with --overwrite."
	}
	return cli.Explain(err)
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
