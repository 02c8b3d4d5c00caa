package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// suspending is the output of a process that is suspended when it has written a text, while something else happens.
type suspending struct {
	text      bytes.Buffer
	at        string
	meanwhile func()
}

func (s *suspending) Write(p []byte) (int, error) {
	n, err := s.text.Write(p)
	if s.at != "" && strings.Contains(s.text.String(), s.at) {
		s.at = ""
		s.meanwhile()
	}
	return n, err
}

// TestRunLate: a process is suspended during its startup checks, which have found that the link is new and the target empty. Another one
// creates the link and runs it, the link is removed, and applications write to the target: the process leaves that as it is.
func TestRunLate(t *testing.T) {
	for _, at := range []string{"OK   link: ", "OK   target data: "} {
		t.Run(at, func(t *testing.T) {
			source, target := twoSets(t)
			fill(t, source, "shop", "a", 3)
			args, _ := copies(t, source, target)
			out := &suspending{at: at, meanwhile: func() {
				other := must.Get(checkpoint.New(checkpoint.Config{Target: client.Open(t, driver.Config{URI: target.URI()}), Link: "test"}))(t)
				begin := oplog.NewOpTime(100, 1, 1)
				must.Succeed(t, other.Create(t.Context(), checkpoint.State{Writers: 1, Applied: begin, AppliedWall: 100_000, FetchFrom: begin, Source: checkpoint.Source{SetName: "src"}}))
				must.Get(other.Acquire(t.Context(), 0))(t)
				must.Succeed(t, other.Remove(t.Context()))
				insert(t, target, "shop", "a", bson.D{{Key: "_id", Value: 1}, {Key: "application", Value: true}})
			}}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			code := execute(cli.Ends{Soft: ctx, Hard: ctx}, append([]string{"run", "--log-format=text", "--drop-existing", "--listen="}, args...), nil, io.Discard, out)
			if out.at != "" || code != cli.ExitCheck || !strings.Contains(out.text.String(), "the link was removed: another process has had it in term 1") {
				t.Errorf("code %d\n%s", code, &out.text)
			}
			if n := countDocs(t, target, "shop", "a"); n != 1 {
				t.Errorf("the target has %d documents", n)
			}
		})
	}
}

// TestRunLateOfLink: the same where the startup checks have found the link of another process, and left what the target has to that.
func TestRunLateOfLink(t *testing.T) {
	source, target := twoSets(t)
	fill(t, source, "shop", "a", 3)
	args, _ := copies(t, source, target)
	run := append([]string{"run", "--log-format=text", "--drop-existing", "--listen="}, args...)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	soft, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	first := &suspending{at: "the target is consistent", meanwhile: func() { drain(nil) }}
	if code := execute(cli.Ends{Soft: soft, Hard: ctx}, run, nil, io.Discard, first); first.at != "" || code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &first.text)
	}
	out := &suspending{at: "OK   target data: as the link left them", meanwhile: func() {
		link := must.Get(checkpoint.New(checkpoint.Config{Target: client.Open(t, driver.Config{URI: target.URI()}), Link: "test"}))(t)
		must.Succeed(t, link.Remove(t.Context()))
		insert(t, target, "shop", "a", bson.D{{Key: "_id", Value: "application"}})
	}}
	code := execute(cli.Ends{Soft: ctx, Hard: ctx}, run, nil, io.Discard, out)
	if out.at != "" || code != cli.ExitCheck || !strings.Contains(out.text.String(), "the link was removed: ") {
		t.Errorf("code %d\n%s", code, &out.text)
	}
	if n := countDocs(t, target, "shop", "a"); n != 4 {
		t.Errorf("the target has %d documents", n)
	}
}
