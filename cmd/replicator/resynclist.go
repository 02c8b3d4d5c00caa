package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/request"
)

// resyncLine is one request in JSON.
type resyncLine struct {
	Namespace string    `json:"namespace"`
	State     string    `json:"state"`
	Requested time.Time `json:"requested"`
	// Why is the progress, what the request waits for, or why it failed.
	Why string `json:"why,omitempty"`
}

// list lists the requests of a link.
func (c *resyncCommand) list(ctx context.Context, out cli.Output) error {
	var misplaced error
	if c.Namespace != "" || c.NoWait {
		misplaced = errors.New("--list requests nothing: it goes without --namespace and --no-wait")
	}
	store, _, release, err := c.openLink(ctx, misplaced)
	if err != nil {
		return err
	}
	defer release()
	requests, err := request.New(store).Read(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	records, err := request.New(store).List(ctx)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	requests.Resync = withAsked(requests.Resync, records)
	if len(requests.Resync) == 0 && !c.JSON {
		out.Complain("No collection of link %s has been requested to be copied again.", c.Link)
		return nil
	}
	if slices.ContainsFunc(requests.Resync, func(r request.Resync) bool { return r.Open() }) && isIdle(ctx, store) {
		out.Complain("No process runs link %s: what is not done yet goes on once replicator run does.", c.Link)
	}
	return printResyncs(out.Results, requests.Resync, c.JSON)
}

// withAsked adds the requests that no process has begun to carry out.
func withAsked(list []request.Resync, records []request.Record) []request.Resync {
	for i := range records {
		r := &records[i]
		if r.Kind != request.Again || r.State != request.Asked {
			continue
		}
		args, err := r.Again()
		if err != nil {
			continue // it will be refused
		}
		for _, ns := range args.All() {
			at := slices.IndexFunc(list, func(l request.Resync) bool { return l.NS == ns })
			switch now := (request.Resync{NS: ns, Asked: r.At, State: request.Asked}); {
			case at < 0:
				list = append(list, now)
			case !list[at].Open():
				list[at] = now
			}
		}
	}
	slices.SortFunc(list, request.Resync.Compare)
	return list
}

func printResyncs(to io.Writer, list []request.Resync, asJSON bool) error {
	lines, w := json.NewEncoder(to), tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	if !asJSON {
		_, _ = fmt.Fprintln(w, "COLLECTION\tSTATE\tREQUESTED\tWHY") // Flush returns the error
	}
	var err error
	for _, r := range list {
		if asJSON {
			err = errors.Join(err, lines.Encode(resyncLine{string(r.NS), r.State, r.Asked.UTC(), r.Why}))
			continue
		}
		why := r.Why
		if why == "" {
			why = "-"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable.Text(string(r.NS)), printable.Text(r.State), timeOf(&r.Asked), printable.Text(why))
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("print the requests: %w", err)
	}
	return nil
}
