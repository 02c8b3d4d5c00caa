package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

// Every error that can reach the shell has its code and a hint.
func TestErrorsAreExplained(t *testing.T) {
	some := errors.New("some")
	done, stop := context.WithCancelCause(t.Context())
	stop(nil)
	for name, tt := range map[string]struct {
		err  error
		code int
	}{
		"usage":                          {cli.Usage(some), 2},
		"workload's file":                {benchInputError(some), 3},
		"results":                        {benchFileError(some), 3},
		"recording":                      {&corpus.FileError{File: "f", Err: some}, 3},
		"a recording and a verification": {errors.Join(failedError(some), &corpus.FileError{File: "f", Err: some}), 3},
		"worse":                          {worseError(some), 4},
		"verification":                   {failedError(some), 4},
		"nobody there":                   {&driver.NoServerError{}, 8},
		"databases there":                {&bench.ExistsError{}, 9},
		"databases left":                 {cli.Stopped(done, &bench.LeftError{Err: some}), 1},
		"stopped":                        {cli.Stopped(done, some), 1},
		"unexpected":                     {some, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, err := range []error{tt.err, fmt.Errorf("on the way: %w", tt.err)} {
				if code, hint := explain(err); code != tt.code || hint == "" {
					t.Errorf("%v: got %d and the hint %q, want %d", err, code, hint, tt.code)
				}
			}
		})
	}
}
