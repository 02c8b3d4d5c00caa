package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/syncsource"
)

// Every error that can reach the shell has its code and, but for what nobody
// expected, a hint.
func TestErrorsAreExplained(t *testing.T) {
	some := errors.New("some")
	done, stop := context.WithCancelCause(t.Context())
	stop(nil)
	failed := func(denied ...bool) error {
		e := &preflight.FailedError{}
		for _, d := range denied {
			e.Findings = append(e.Findings, preflight.Finding{Level: preflight.Fail, Check: "x", Denied: d})
		}
		return e
	}
	for name, tt := range map[string]struct {
		err  error
		code int
	}{
		"usage":              {cli.Usage(some), 2},
		"file of entries":    {&logFileError{"f", 3, some}, 3},
		"file missing":       {&logFileError{"f", -1, fs.ErrNotExist}, 3},
		"stopped":            {cli.Stopped(done, some), 1},
		"fenced":             {lease.ErrFenced, 5},
		"other source":       {checkpoint.ErrOtherSource, 6},
		"stale":              {&syncsource.TooStaleError{}, 6},
		"other history":      {fetcher.ErrOtherHistory, 6},
		"diverged":           {&applier.DivergenceError{}, 7},
		"unique":             {&applier.UniqueError{}, 7},
		"login":              {&mongo.LostError{Err: &driver.AuthError{Err: some}}, 8},
		"nobody there":       {&mongo.LostError{Err: &driver.NoServerError{}}, 8},
		"no reply":           {&mongo.SilentError{Read: true}, 8},
		"connection broke":   {&mongo.LostError{Host: "a:1", Err: some}, 8},
		"too slow":           {context.DeadlineExceeded, 8},
		"not allowed":        {&servererr.Error{Code: servererr.Unauthorized}, 8},
		"privileges missing": {failed(true, true), 8},
		"checks failed":      {failed(true, false), 9},
		"address taken":      {listenError(some), 9},
		"other settings":     {checkpoint.ErrSettings, 9},
		"not drained":        {failure.ErrStopped, 10},
		"unknown entry":      {&oplog.EntryError{Err: oplog.ErrUnknownOp}, 11},
		"unexpected":         {some, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{tt.err, fmt.Errorf("on the way: %w", tt.err), cli.Logged(tt.err)} {
				code, hint := explain(err)
				if code != tt.code {
					t.Errorf("%v: got %d, want %d", err, code, tt.code)
				}
				if hint == "" {
					t.Errorf("%v: no hint", err)
				}
			}
		})
	}
}

// TestBlockedIsTold: a command whose write a write block of the server has refused says how to go on.
func TestBlockedIsTold(t *testing.T) {
	t.Parallel()
	blocked := &servererr.Error{Code: servererr.UserWritesBlocked, Message: "User writes blocked"}
	for _, err := range []error{blocked, linkError{fmt.Errorf("cutover of link dr: %w", blocked)}} {
		if code, hint := explain(err); code != cli.ExitUnexpected || !strings.Contains(hint, "setUserWriteBlockMode: 1, global: false") {
			t.Errorf("%v: %d %s", err, code, hint)
		}
	}
}

// TestStoppedChecking: a check that is told to end has not stopped before everything was applied, as it applies nothing; a link has.
func TestStoppedChecking(t *testing.T) {
	t.Parallel()
	done, stop := context.WithCancelCause(t.Context())
	stop(nil)
	for check, want := range map[bool]int{true: cli.ExitUnexpected, false: failure.ExitNotDrained} {
		c := &runCommand{Check: check}
		err := c.stoppedChecking(done)
		if code, _ := explain(err); code != want || strings.Contains(err.Error(), "applied") == check || !strings.Contains(err.Error(), "during the startup checks") {
			t.Errorf("--check %t: code %d, %v", check, code, err)
		}
		var said bytes.Buffer
		c.waits(t.Context(), &voice{out: cli.Output{Results: new(bytes.Buffer), Complaints: &said}}, "target")
		if said.String() != "still checking the target\n" {
			t.Errorf("--check %t: %q", check, said.String())
		}
	}
}

// TestCheckOfTargetThatIsAway: while the target does not answer, the operator is told that it is waited for, long before that is given up.
func TestCheckOfTargetThatIsAway(t *testing.T) {
	t.Parallel()
	source := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: oneRun})
	code, stdout, stderr := invoke(t, nil, "run", "--check", "--link=l", "--selection-timeout=8s", "--source="+source.URI(), "--target=mongodb://127.0.0.1:1/?replicaSet=dr0")
	if code != cli.ExitConnect || strings.Count(stderr, "still checking the target\n") != 1 {
		t.Errorf("code %d, %s%s", code, stdout, stderr)
	}
}
