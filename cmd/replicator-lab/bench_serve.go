package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	benchends "github.com/oplogrep/replicator/bench/ends" // ends starts the ends of commands
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/oplog"
)

// benchServe is an end of a measurement in a process of its own.
type benchServe struct {
	What string `required:"" help:"What to be, as JSON."`
}

// Run starts the end, prints its address, and waits until its parent closes the
// pipe or dies.
func (c *benchServe) Run(ctx context.Context, out cli.Output) error {
	var what benchends.What
	if err := json.Unmarshal([]byte(c.What), &what); err != nil {
		return cli.Usage(fmt.Errorf("--what: %w", err))
	}
	var end *benchends.End
	var last oplog.OpTime
	var err error
	if what.Kind == benchends.Acknowledging {
		var null *benchends.Null
		if null, err = benchends.StartNull(ctx, what.Seed, what.Calibrated); err == nil {
			end = null.End
		}
	} else {
		end, last, err = benchends.Start(ctx, nil, what)
	}
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	defer end.Close()
	text, err := json.Marshal(benchends.Served{URI: end.URI, Last: last})
	if err != nil {
		return fmt.Errorf("say where the end is: %w", err)
	}
	if _, err := fmt.Fprintf(out.Results, "%s\n", text); err != nil {
		return fmt.Errorf("say where the end is: %w", err)
	}
	// Not ctx: a signal from a terminal reaches the parent too, which may have to
	// clean up here.
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// stopTime is how long an end may take to stop.
const stopTime = 10 * time.Second

// serveElsewhere starts an end in a process of its own, which ends with this one.
func serveElsewhere(ctx context.Context, what benchends.What) (benchends.Served, error) {
	fault := func(err error) (benchends.Served, error) {
		return benchends.Served{}, fmt.Errorf("start the %s end in a process of its own: %w", what.Kind, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fault(err)
	}
	text, err := json.Marshal(what)
	if err != nil {
		return fault(err)
	}
	// Not ended by ctx once it has started: its users must end first.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, "bench", "serve", "--what", string(text))
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return fault(err)
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		return fault(err)
	}
	if err := cmd.Start(); err != nil {
		return fault(err)
	}
	kill := func() { _ = cmd.Process.Kill() } // it has ended if that is an error
	stop := func() {
		_ = in.Close()
		late := time.AfterFunc(stopTime, kill)
		_ = cmd.Wait() // it has printed its errors
		late.Stop()
	}
	starting := context.AfterFunc(ctx, kill)
	line, err := bufio.NewReader(answer).ReadString('\n')
	starting()
	if err != nil {
		stop()
		if ctx.Err() != nil {
			return fault(context.Cause(ctx))
		}
		return fault(errors.New(strings.TrimSpace(complaints.String())))
	}
	var served benchends.Served
	if err := json.Unmarshal([]byte(line), &served); err != nil {
		stop()
		return fault(fmt.Errorf("read %q: %w", line, err))
	}
	served.Stop = stop
	return served, nil
}
