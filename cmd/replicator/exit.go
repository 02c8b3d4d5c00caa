package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/preflight"
)

// The exit codes, as in docs/exit-codes.md. They are fixed. Those from 5 on are
// what package pipeline says of an error.
const (
	exitOK         = 0
	exitUnexpected = pipeline.ExitUnexpected
	exitUsage      = 2
	exitBadInput   = 3
	exitFailed     = 4
	exitConnect    = pipeline.ExitConnect
	exitCheck      = pipeline.ExitCheck
)

// output is where a command writes: results and complaints.
type output struct{ results, complaints io.Writer }

// complain writes a line. There is nowhere to say that it could not be written.
func (o output) complain(format string, args ...any) {
	_, _ = fmt.Fprintln(o.complaints, withoutPasswords(fmt.Sprintf(format, args...)))
}

// secrets are what must not be shown of a connection string, behind what comes
// before it.
var secrets = regexp.MustCompile(`(mongodb(?:\+srv)?://[^\s:/@"']*:)[^\s"']*@` +
	`|((?i:CertificateKeyFilePassword|CertificateKeyPassword|authMechanismProperties)=)[^\s&;"']*`)

// withoutPasswords hides the passwords of connection strings. No message of ours
// has one, but the library for command lines quotes arguments that it does not
// understand.
func withoutPasswords(text string) string {
	return secrets.ReplaceAllStringFunc(text, func(found string) string {
		if part := secrets.FindStringSubmatch(found); part[1] != "" {
			return part[1] + "***@"
		}
		return secrets.FindStringSubmatch(found)[2] + "***"
	})
}

// usageError is a command line that parses but cannot be meant.
type usageError struct{ error }

// failedError is a verification that failed.
type failedError struct{ error }

// stoppedError is work that was stopped before it was done.
type stoppedError struct{ error }

// listenError is an address that cannot be listened on.
type listenError struct{ error }

// connectError is a deployment that cannot even be looked up.
type connectError struct{ error }

// linkError is what a running link ended with.
type linkError struct{ error }

// loggedError is an error that was said already, to the log.
type loggedError struct{ error }

func (e usageError) Unwrap() error   { return e.error }
func (e failedError) Unwrap() error  { return e.error }
func (e stoppedError) Unwrap() error { return e.error }
func (e listenError) Unwrap() error  { return e.error }
func (e connectError) Unwrap() error { return e.error }
func (e linkError) Unwrap() error    { return e.error }
func (e loggedError) Unwrap() error  { return e.error }

// exitCode maps an error to what the program ends with.
func exitCode(err error) int {
	code, _ := explain(err)
	return code
}

// hintOf says what to do about an error.
func hintOf(err error) string {
	_, hint := explain(err)
	return hint
}

// explain maps an error to the exit code and to what an operator can do. What
// comes of a running link is for package pipeline to judge.
func explain(err error) (code int, hint string) {
	if is[*corpus.FileError](err) {
		return exitBadInput, "Get the recording anew, or name a folder of recordings: a folder per recording, with meta.json, oplog.bson and after/."
	}
	if e, ok := errors.AsType[*logFileError](err); ok && e.offset < 0 {
		return exitBadInput, "Name a file as mongodump writes it, documents one after the other; or read a server with --source."
	} else if ok {
		return exitBadInput, "Everything before that byte was read. Get the file anew: an oplog as mongodump writes it, documents one after the other."
	}
	if is[benchFileError](err) {
		return exitBadInput, "Name a file that replicator bench has written (--json)."
	}
	if is[benchInputError](err) {
		return exitBadInput, "Name a workload as replicator bench presets NAME prints it, or an oplog as mongodump writes it, documents one after the other."
	}
	if is[*bench.LeftError](err) {
		return exitUnexpected, "Drop what is left by hand: the message names the databases. The next run with --overwrite does so, too."
	}
	if is[*bench.ExistsError](err) {
		return exitCheck, "Nothing was written. Name another set, or allow to drop these databases with --overwrite."
	}
	if is[usageError](err) {
		return exitUsage, usageHint("replicator")
	}
	if is[failedError](err) {
		return exitFailed, "What was printed before says what differs; corpus --only NAME repeats one recording, demo --seed N one demo."
	}
	if is[worseError](err) {
		return exitFailed, "The lines that say worse name the figures. If that is meant, make the earlier results anew."
	}
	if is[stoppedError](err) {
		return exitUnexpected, "It was stopped before it was done; nothing is left behind."
	}
	if is[leftError](err) {
		return exitUnexpected, "The wish stays, and the link goes on with it; the same command again shows how far it is."
	}
	if is[resyncError](err) {
		return exitUnexpected, "The link goes on with the rest. Put right what the message says, then ask again."
	}
	if is[listenError](err) {
		return exitCheck, "Choose another --listen address: that one is taken, or is none of this machine. Nothing was written."
	}
	if e, ok := errors.AsType[*preflight.FailedError](err); ok {
		if e.Denied() {
			return exitConnect, "Each line that begins with FAIL names what is not allowed; docs/privileges.md lists what each side needs. Nothing was written."
		}
		return exitCheck, "Each line that begins with FAIL says what to do. Nothing was written."
	}
	if errors.Is(err, feedback.ErrNotOurs) {
		return exitUnexpected, "Remove it with rs.remove() if that is meant."
	}
	v := pipeline.Classify(err)
	if v.Code != exitUnexpected && v.Code != 0 {
		return v.Code, v.Hint
	}
	// Where a link is running these are tried again; elsewhere they end the work.
	if is[connectError](err) || is[*mdb.NoServerError](err) || is[*call.LostError](err) || errors.Is(err, context.DeadlineExceeded) {
		return exitConnect, "Check the addresses, that the servers run and can be reached from here, and TLS. How long is waited says --selection-timeout, or serverSelectionTimeoutMS in the connection string."
	}
	if is[linkError](err) {
		return exitUnexpected, v.Hint
	}
	return exitUnexpected, "If the message makes no sense, report it."
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
