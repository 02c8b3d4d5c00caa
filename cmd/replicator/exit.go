package main

import (
	"errors"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/preflight"
)

// linkError is the error that ended a running link.
type linkError struct{ error }

func (e linkError) Unwrap() error { return e.error }

// listenError marks that of an address that cannot be listened on.
func listenError(err error) error {
	return &cli.Error{Err: err, Code: cli.ExitCheck, Hint: "Choose another --listen address: that one is in use, or is not an address of this machine. Nothing was written."}
}

// explain maps an error to the exit code and to what an operator can do. Errors
// of a running link are classified by package pipeline.
func explain(err error) (code int, hint string) {
	if e, ok := errors.AsType[*logFileError](err); ok && e.offset < 0 {
		return cli.ExitBadInput, "Name a file as mongodump writes it, documents one after the other; or read a server with --source."
	} else if ok {
		return cli.ExitBadInput, "Everything before that byte was read. Get the file again: an oplog as mongodump writes it, documents one after the other."
	}
	if is[*cli.Error](err) {
		return cli.Explain(err)
	}
	if e, ok := errors.AsType[*preflight.FailedError](err); ok {
		if e.Denied() {
			return cli.ExitConnect, "Each check whose result is FAIL says which login or privilege is missing; docs/privileges.md lists what each side needs. Nothing was written."
		}
		return cli.ExitCheck, "Each check whose result is FAIL says what to do. Nothing was written."
	}
	if e, ok := errors.AsType[*checkpoint.SettingsError](err); ok {
		return cli.ExitCheck, "Use the settings that the link was created with: " + settingsOf(e)
	}
	if errors.Is(err, feedback.ErrNotOurs) {
		return cli.ExitUnexpected, "If you want to remove it, use rs.remove()."
	}
	code, hint = cli.Explain(err)
	if code == cli.ExitUnexpected && is[linkError](err) {
		hint = failure.Classify(err).Hint
	}
	if code == cli.ExitUnexpected && servererr.IsWriteBlock(err) {
		hint = "Writes of users are blocked there. Unless a cutover has blocked them (replicator cutover --status), lift that: db.adminCommand({setUserWriteBlockMode: 1, global: false}) on its primary; or use a user with the role restore, who may write nevertheless."
	}
	return code, hint
}

// settingsOf returns the settings that a link was created with, as flags.
func settingsOf(e *checkpoint.SettingsError) string {
	lists := "the same filters and renames"
	if e.Filters != nil {
		lists = preflight.Flags(e.Filters)
	}
	if e.Unique != "" {
		lists += ", and --unique-indexes=" + e.Unique
	}
	return lists + "."
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
