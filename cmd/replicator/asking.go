package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
)

// askFlags are those of commands that ask something of the process that runs a link.
type askFlags struct {
	linkFlags
	Why    string        `placeholder:"TEXT" settings:"no" help:"The reason, kept with the request."`
	NoWait bool          `settings:"no" help:"Do not wait for the outcome."`
	Within time.Duration `default:"30s" settings:"no" help:"How long to wait. The request stays."`
}

// pauseCommand pauses a link.
type pauseCommand struct{ askFlags }

// Run asks for it, and waits until nothing is in flight any more.
func (c *pauseCommand) Run(ctx context.Context, out cli.Output) error {
	return c.askAlone(ctx, out, request.Pause)
}

// resumeCommand ends a pause.
type resumeCommand struct{ askFlags }

// Run asks for it.
func (c *resumeCommand) Run(ctx context.Context, out cli.Output) error {
	return c.askAlone(ctx, out, request.Resume)
}

// askAlone makes a request without arguments.
func (f *askFlags) askAlone(ctx context.Context, out cli.Output, kind request.Kind) error {
	store, _, release, err := f.openGoing(ctx)
	if err != nil {
		return err
	}
	defer release()
	return f.ask(ctx, out, store, kind, nil)
}

// board is where requests are made: *request.Store.
type board interface {
	// Ask makes one.
	Ask(ctx context.Context, a request.Ask) (request.Record, error)
	// Get reads one. It is idempotent.
	Get(ctx context.Context, id string) (request.Record, error)
}

// askPoll is how often the state of a request is read.
const askPoll = 500 * time.Millisecond

// ask makes a request, and prints its outcome.
func (f *askFlags) ask(ctx context.Context, out cli.Output, store *checkpoint.Store, kind request.Kind, args json.RawMessage) error {
	requests := request.New(store)
	r, err := requests.Ask(ctx, request.Ask{Kind: kind, By: operator(), Why: f.Why, Args: args})
	switch {
	case errors.Is(err, request.ErrInvalid):
		return cli.Usage(err)
	case err != nil:
		return cli.Stopped(ctx, err)
	}
	if f.NoWait {
		return f.say(out, &r, "asked for. A process that runs the link acts on it within seconds, otherwise the next one that does")
	}
	return f.await(ctx, out, requests, newIdleNote(store, out), r)
}

// await waits until a request is closed.
func (f *askFlags) await(ctx context.Context, out cli.Output, requests board, idle idleNote, r request.Record) error {
	limited, cancel := context.WithTimeout(ctx, f.Within)
	defer cancel()
	tick := time.NewTicker(askPoll)
	defer tick.Stop()
	shown := ""
	for {
		now, err := requests.Get(limited, r.ID)
		switch {
		case limited.Err() != nil:
		case err != nil && !failure.Transient(err):
			return cli.Stopped(ctx, err)
		case err == nil && !now.Open():
			return f.closed(out, &now)
		case err == nil:
			if now.Outcome == "" {
				idle.look(limited)
			}
			if r = now; now.Outcome != shown {
				shown = now.Outcome
				if err := f.say(out, &now, now.Outcome); err != nil {
					return err
				}
			}
		}
		select {
		case <-tick.C:
		case <-limited.Done():
			return f.left(ctx, &r)
		}
	}
}

// left is the error of a request that is still open.
func (f *askFlags) left(ctx context.Context, r *request.Record) error {
	why := fmt.Errorf("%s of link %s: waited %s, and it is %s", r.Kind, f.Link, f.Within, printable.Text(cmp.Or(r.Outcome, "not begun: no process runs the link, or an earlier release does")))
	if ctx.Err() != nil {
		why = fmt.Errorf("%s of link %s: stopped waiting for it", r.Kind, f.Link)
	}
	return &cli.Error{Err: why, Code: cli.ExitUnexpected, Hint: "The request stays: a process that runs the link acts on it. replicator events --link " + f.Link + " shows its outcome."}
}

// closed prints the outcome of a request, or returns it as an error.
func (f *askFlags) closed(out cli.Output, r *request.Record) error {
	switch r.State {
	case request.Done:
		return f.say(out, r, r.Outcome)
	case request.Refused:
		return cli.Usage(fmt.Errorf("%s of link %s: refused: %s", r.Kind, f.Link, printable.Text(r.Outcome)))
	}
	return &cli.Error{
		Err: fmt.Errorf("%s of link %s: %s: %s", r.Kind, f.Link, printable.Text(r.State), printable.Text(r.Outcome)), Code: cli.ExitUnexpected,
		Hint: "Fix what the message names, then ask again.",
	}
}

func (f *askFlags) say(out cli.Output, r *request.Record, what string) error {
	if _, err := fmt.Fprintf(out.Results, "%s: %s: %s.\n", f.Link, r.Kind, printable.Text(what)); err != nil {
		return fmt.Errorf("print what became of it: %w", err)
	}
	return nil
}

// operator is the user that runs this command: user@host, as far as that is known.
func operator() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
