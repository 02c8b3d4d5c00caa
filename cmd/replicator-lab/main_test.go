package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
)

const recordings = "../../testdata/corpus"

// asProgram makes the test binary the program itself.
const asProgram = "REPLICATOR_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// run runs one command line, until ctx is done, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program(args).Run(cli.Ends{Soft: ctx, Hard: context.WithoutCancel(ctx)}, args, stdout, stderr)
}

// invoke runs one command line to its end.
func invoke(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = run(t.Context(), args, &out, &complaints)
	return code, out.String(), complaints.String()
}
