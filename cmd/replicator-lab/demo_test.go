package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
)

func TestDemo(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"demo", "--seconds=1", "--seed=5", "--documents=2000"}, &stdout, &stderr)
	if code != cli.ExitOK || stderr.Len() > 0 || !strings.Contains(stdout.String(), "\nOK         equal: ") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout.String(), stderr.String())
	}
}

func TestDemoEnds(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"demo", "--seconds=0"}, &stdout, &stderr); code != cli.ExitUsage || !strings.Contains(stderr.String(), "--seconds=0") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	stderr.Reset()
	if code := run(ctx, []string{"demo"}, &stdout, &stderr); code != cli.ExitUnexpected || !strings.Contains(stderr.String(), "nothing of it remains") {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}
