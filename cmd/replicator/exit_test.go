package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/mdb"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/preflight"
	"github.com/oplogrep/replicator/syncsource"
)

// Every error that can reach the shell has its code and, but for what nobody
// expected, a hint.
func TestErrorsAreExplained(t *testing.T) {
	some := errors.New("some")
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
		"usage":              {usageError{some}, 2},
		"workload's file":    {benchInputError{some}, 3},
		"results":            {benchFileError{some}, 3},
		"worse":              {worseError{some}, 4},
		"databases there":    {&bench.ExistsError{}, 9},
		"databases left":     {stoppedError{&bench.LeftError{Err: some}}, 1},
		"recording":          {&corpus.FileError{File: "f", Err: some}, 3},
		"file of entries":    {&logFileError{"f", 3, some}, 3},
		"file missing":       {&logFileError{"f", -1, fs.ErrNotExist}, 3},
		"verification":       {failedError{some}, 4},
		"stopped":            {stoppedError{some}, 1},
		"fenced":             {checkpoint.ErrFenced, 5},
		"other source":       {checkpoint.ErrOtherSource, 6},
		"stale":              {&syncsource.TooStaleError{}, 6},
		"other history":      {pipeline.ErrOtherHistory, 6},
		"diverged":           {&applier.DivergenceError{}, 7},
		"unique":             {&applier.UniqueError{}, 7},
		"login":              {&call.LostError{Err: &mdb.AuthError{Err: some}}, 8},
		"nobody there":       {&call.LostError{Err: &mdb.NoServerError{}}, 8},
		"connection broke":   {&call.LostError{Host: "a:1", Err: some}, 8},
		"too slow":           {context.DeadlineExceeded, 8},
		"not allowed":        {&servererr.Error{Code: servererr.Unauthorized}, 8},
		"privileges missing": {failed(true, true), 8},
		"checks failed":      {failed(true, false), 9},
		"address taken":      {listenError{some}, 9},
		"other settings":     {pipeline.ErrSettings, 9},
		"not drained":        {pipeline.ErrStopped, 10},
		"unknown entry":      {&oplog.EntryError{Err: oplog.ErrUnknownOp}, 11},
		"unexpected":         {some, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{tt.err, fmt.Errorf("on the way: %w", tt.err), loggedError{tt.err}} {
				if got := exitCode(err); got != tt.code {
					t.Errorf("%v: got %d, want %d", err, got, tt.code)
				}
				if hintOf(err) == "" {
					t.Errorf("%v: no hint", err)
				}
			}
		})
	}
}

// The codes are fixed, and scripts depend on them: this holds the numbers and
// the page that promises them.
func TestExitCodesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, meaning := range map[int]struct {
		got  int
		says string
	}{
		0:  {exitOK, "Done"},
		1:  {exitUnexpected, "An error that no other code stands for"},
		2:  {exitUsage, "The command line is wrong"},
		3:  {exitBadInput, "The input is bad"},
		4:  {exitFailed, "A verification failed"},
		5:  {pipeline.ExitFenced, "Another process has taken over"},
		6:  {pipeline.ExitResync, "The link cannot continue from its checkpoint"},
		7:  {pipeline.ExitDiverged, "The target differs from what the link wrote"},
		8:  {exitConnect, "A server cannot be reached"},
		9:  {exitCheck, "A startup check failed"},
		10: {pipeline.ExitNotDrained, "Stopped before everything"},
		11: {pipeline.ExitUnsupported, "The source's oplog has an entry"},
	} {
		if meaning.got != code {
			t.Errorf("%q is %d, and must stay %d", meaning.says, meaning.got, code)
		}
		if row := fmt.Sprintf("| %d | %s", code, meaning.says); !strings.Contains(string(page), row) {
			t.Errorf("the page has no row that begins with %q", row)
		}
	}
}
