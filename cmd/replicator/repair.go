package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify/standing"
)

// repairCommand rewrites documents of a link's target from its source.
type repairCommand struct {
	linkFlags
	From         string   `placeholder:"FILE" settings:"no" help:"Repair what replicator verify --json has found; - reads it from standard input."`
	FromVerified bool     `name:"from-verified" settings:"no" help:"Repair the known differences of the link, from --verify=continuous or replicator verify --link."`
	Namespace    string   `placeholder:"DB.COLLECTION" settings:"no" help:"The collection, under its name on the source. Alone: copy it again, as replicator resync does."`
	ID           []string `name:"id" sep:"none" placeholder:"EXTJSON" settings:"no" help:"Repair the document with this _id, in extended JSON: 17, '\"a\"', '{\"$oid\": …}'. Again for each further one."`
	FromID       string   `name:"from-id" placeholder:"EXTJSON" settings:"no" help:"Repair a range of documents, from this _id on."`
	ToID         string   `name:"to-id" placeholder:"EXTJSON" settings:"no" help:"The last _id of the range."`
	Apply        bool     `settings:"no" help:"Do it. Without it, it is shown what would be done."`
	Why          string   `placeholder:"TEXT" settings:"no" help:"The reason, kept with the requests."`
}

// repairPoll is how often the state of requests is read.
const repairPoll = 500 * time.Millisecond

// Run shows what would be repaired, or asks for it and waits for the result.
func (c *repairCommand) Run(ctx context.Context, out cli.Output) error {
	work, err := c.plan()
	if err != nil {
		return err
	}
	store, _, release, err := c.openGoing(ctx)
	if err != nil {
		return err
	}
	defer release()
	if c.FromVerified {
		st, err := standing.Read(ctx, store.Target(), c.MetadataDB, c.Link)
		if err != nil {
			return err //nolint:wrapcheck // it names the document
		}
		work = verifiedRepairs(&st)
	}
	requests, err := work.requests()
	if err != nil {
		return cli.Usage(err)
	}
	if err := work.print(out, c); err != nil {
		return err
	}
	switch {
	case !c.Apply && len(requests) == 0 && work.whole == "":
		return nil // there is nothing that --apply would do
	case !c.Apply:
		_, err := fmt.Fprintln(out.Results, "Nothing was done. --apply does it.")
		if err != nil {
			return fmt.Errorf("print what would be done: %w", err)
		}
		return nil
	case work.whole != "":
		again := resyncCommand{linkFlags: c.linkFlags, Namespace: work.whole}
		return again.Run(ctx, out)
	}
	w := repairWatch{board: request.New(store), link: c.Link, why: c.Why, out: out, idle: newIdleNote(store, out)}
	return w.run(ctx, requests, len(work.others) > 0 || work.unlisted > 0)
}

// plan reads the documents to repair.
func (c *repairCommand) plan() (*repairWork, error) {
	byID, byRange := len(c.ID) > 0, c.FromID != "" || c.ToID != ""
	switch {
	case c.From != "" && (c.Namespace != "" || byID || byRange):
		return nil, cli.Usage(errors.New("--from has the namespaces and _ids: leave the other flags out"))
	case c.FromVerified && (c.From != "" || c.Namespace != "" || byID || byRange):
		return nil, cli.Usage(errors.New("--from-verified has the namespaces and _ids: leave the other flags out"))
	case c.FromVerified:
		return &repairWork{}, nil // it is in the metadata
	case c.From != "":
		return readRepairs(c.From)
	case c.Namespace == "":
		return nil, cli.Usage(errors.New("give --from with the output of replicator verify --json, --from-verified, or --namespace"))
	case byID && byRange:
		return nil, cli.Usage(errors.New("give either --id, or --from-id and --to-id"))
	case byRange && (c.FromID == "" || c.ToID == ""):
		return nil, cli.Usage(errors.New("a range has --from-id and --to-id"))
	}
	if err := checkResync(c.Namespace); err != nil {
		return nil, cli.Usage(err)
	}
	if !byID && !byRange {
		return &repairWork{whole: c.Namespace}, nil
	}
	n := namespaceWork{source: c.Namespace}
	texts := c.ID
	if byRange {
		texts = []string{c.FromID, c.ToID}
	}
	for _, text := range texts {
		id, err := parseID(text)
		if err != nil {
			return nil, cli.Usage(err)
		}
		n.ids = append(n.ids, id)
	}
	n.isRange = byRange
	return &repairWork{list: []*namespaceWork{&n}}, nil
}

// parseID reads an _id in extended JSON, as a document {_id: …}.
func parseID(text string) ([]byte, error) {
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(`{"_id":`+text+`}`), false, &doc); err != nil {
		return nil, fmt.Errorf("%q is not an _id in extended JSON (a text needs quotes: '\"a\"'): %w", text, err)
	}
	if _, err := request.ReadID(doc); err != nil {
		return nil, fmt.Errorf("%q is not an _id: %w", text, err)
	}
	return doc, nil
}

// print shows the plan.
func (w *repairWork) print(out cli.Output, c *repairCommand) error {
	var text strings.Builder
	if w.whole != "" {
		fmt.Fprintf(&text, "%s: copied again as a whole (replicator resync)\n", printable.Text(w.whole))
	}
	if len(w.list) > 0 {
		rows := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(rows, "NAMESPACE\tDOCUMENTS\tREQUESTS") // into memory
		for _, n := range w.list {
			count := strconv.Itoa(len(n.ids))
			if n.isRange {
				count = "a range"
			}
			_, _ = fmt.Fprintf(rows, "%s\t%s\t%d\n", printable.Text(n.source), count, n.requests)
		}
		_ = rows.Flush()
	}
	for _, o := range w.others {
		fmt.Fprintf(&text, "not repaired: %s\n", printable.Text(o.text))
		fmt.Fprintf(&text, "  %s\n", printable.Text(o.remedy(c.Link)))
	}
	if w.stored && len(w.others) > 0 {
		fmt.Fprintf(&text, "These stay listed until their collections are compared again: replicator verify --link %s --source … --target …\n", c.Link)
	}
	if w.unlisted > 0 {
		fmt.Fprintf(&text, "not repaired: %d differences that are counted only\n", w.unlisted)
		fmt.Fprintf(&text, "  replicator verify --link %s --source … --target … --json names them, for --from\n", c.Link)
	}
	if text.Len() == 0 {
		text.WriteString("No differences are known.\n")
	}
	if _, err := fmt.Fprint(out.Results, text.String()); err != nil {
		return fmt.Errorf("print the repairs: %w", err)
	}
	return nil
}

// repairWatch asks for repairs, and waits for them.
type repairWatch struct {
	board     board
	link, why string
	out       cli.Output
	// idle tells that no process runs the link, while none has begun with a request.
	idle idleNote
	// shown has the outcome that was last printed of each request.
	shown map[string]string
	// failed counts requests that have failed, different those of them whose documents differ.
	failed, different int
}

// run asks for repairs, a few at a time, and waits for all of them.
func (w *repairWatch) run(ctx context.Context, all []request.RepairArgs, others bool) error {
	const most = 8 // at a time: others may ask for something, too
	var open []request.Record
	w.shown = map[string]string{}
	for len(all) > 0 || len(open) > 0 {
		for len(all) > 0 && len(open) < most {
			r, err := w.ask(ctx, &all[0])
			if err != nil {
				return w.stopped(ctx, err)
			}
			open, all = append(open, r), all[1:]
		}
		var err error
		if open, err = w.look(ctx, open); err != nil {
			return err
		}
		if len(open) == 0 {
			continue
		}
		if len(w.shown) == 0 {
			w.idle.look(ctx)
		}
		select {
		case <-time.After(repairPoll):
		case <-ctx.Done():
			return w.stopped(ctx, context.Cause(ctx))
		}
	}
	return w.verdict(others)
}

// look looks at requests once, and returns those that are still open.
func (w *repairWatch) look(ctx context.Context, requests []request.Record) (open []request.Record, err error) {
	for _, r := range requests {
		now, err := w.board.Get(ctx, r.ID)
		switch {
		case err != nil && (ctx.Err() != nil || !failure.Transient(err)):
			return nil, w.stopped(ctx, err)
		case err != nil:
			now = r
		case !now.Open():
			if err := w.closed(&now); err != nil {
				return nil, err
			}
			continue
		case now.Outcome != w.shown[r.ID]:
			w.shown[r.ID] = now.Outcome
			w.out.Complain("%s: repair: %s.", w.link, printable.Text(now.Outcome))
		}
		open = append(open, now)
	}
	return open, nil
}

func (w *repairWatch) ask(ctx context.Context, args *request.RepairArgs) (request.Record, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return request.Record{}, fmt.Errorf("ask for a repair: %w", err)
	}
	r, err := w.board.Ask(ctx, request.Ask{Kind: request.Repair, By: operator(), Why: w.why, Args: text})
	if errors.Is(err, request.ErrInvalid) {
		return r, cli.Usage(err)
	}
	return r, err //nolint:wrapcheck // it names the request
}

// stopped is the error of a command that does not wait any longer.
func (w *repairWatch) stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return cli.Stopped(ctx, err)
	}
	return &cli.Error{
		Err: fmt.Errorf("repair of link %s: stopped waiting for it", w.link), Code: cli.ExitUnexpected,
		Hint: "The request stays: a process that runs the link acts on it. replicator events --link " + w.link + " shows its outcome. The same command again is safe.",
	}
}

// closed prints the outcome of a request.
func (w *repairWatch) closed(r *request.Record) error {
	text := r.Outcome
	if r.State != request.Done {
		w.failed++
		text = r.State + ": " + text
		if strings.HasPrefix(r.Outcome, request.StillDiffers) {
			w.different++
		}
	}
	if _, err := fmt.Fprintf(w.out.Results, "%s\n", printable.Text(text)); err != nil {
		return fmt.Errorf("print what became of it: %w", err)
	}
	return nil
}

// verdict returns the error that stands for the result.
func (w *repairWatch) verdict(others bool) error {
	switch {
	case w.different > 0:
		rest := "All others are repaired."
		if n := w.failed - w.different; n > 0 {
			rest = fmt.Sprintf("%d other requests were not carried out, or not verified. The same command again is safe.", n)
		} else if others {
			rest = "All other documents that can be are repaired."
		}
		return &cli.Error{Err: errors.New("some documents still differ"), Code: cli.ExitFailed, Hint: "The output says which, and why. " + rest}
	case w.failed > 0:
		return &cli.Error{Err: fmt.Errorf("%d requests were not carried out, or not verified", w.failed), Code: cli.ExitUnexpected, Hint: "The output says why. The same command again is safe."}
	case others:
		return &cli.Error{Err: errors.New("the report has differences that a repair of documents does not remove"), Code: cli.ExitFailed, Hint: "The output says which command does."}
	}
	return nil
}
