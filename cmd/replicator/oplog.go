package main

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/oplog"
)

type oplogCommand struct {
	File string `arg:"" optional:"" help:"A file of entries, as written by mongodump. Default: read the source."`

	sourceFlags
	Host   string   `placeholder:"HOST:PORT" help:"Read this member. Default: the primary."`
	Follow bool     `short:"f" help:"Continue with new entries. Without --since, begin with the newest."`
	JSON   bool     `name:"json" help:"Print whole entries, one line of canonical extended JSON each. Otherwise long ones are truncated."`
	Ns     []string `sep:"none" placeholder:"PATTERN" help:"Only these namespaces: shop, shop.orders, shop.log*, /regexp/."`
	Op     []string `placeholder:"i,u,d,c,n" help:"Only these kinds: inserts, updates, deletes, commands, no-ops."`
	Since  moment   `placeholder:"T" help:"Not before T: unix seconds, SECONDS,INCREMENT or RFC 3339."`
	Until  moment   `placeholder:"T" help:"Not after T."`
	Limit  int      `placeholder:"N" help:"Stop after N entries."`
}

// errEnough ends reading: all matching entries are printed.
var errEnough = errors.New("enough")

// Run prints entries until there are no more or ctx is done.
func (c *oplogCommand) Run(ctx context.Context, out cli.Output) error {
	want, err := c.check()
	if err != nil {
		return cli.Usage(err)
	}
	p := &printer{w: out.Results, json: c.JSON, want: want}
	n := 0
	each := func(raw bson.Raw) error {
		printed, err := p.print(raw)
		if err != nil {
			return err
		}
		if printed {
			n++
		}
		if c.Limit > 0 && n >= c.Limit {
			return errEnough
		}
		return nil
	}
	if c.File != "" {
		err = readLogFile(ctx, c.File, each)
	} else {
		err = c.readSource(ctx, out, each)
	}
	switch {
	case errors.Is(err, errEnough):
		return nil
	case ctx.Err() != nil && c.Follow:
		return nil // that is how following ends
	default:
		return cli.Stopped(ctx, err)
	}
}

// check reads the flags that choose entries.
func (c *oplogCommand) check() (*chooser, error) {
	var faults []error
	want := &chooser{since: c.Since.at, kinds: map[oplog.Kind]bool{}}
	if c.Until.given() {
		want.until = c.Until.last()
	}
	if c.Since.now || c.Until.now {
		faults = append(faults, errors.New("--since and --until: now is not possible here; --follow alone starts with the newest entry"))
	}
	for _, op := range c.Op {
		kind, ok := kinds[op]
		if !ok {
			faults = append(faults, fmt.Errorf("--op: %q is not one of i, u, d, c, n", op))
		}
		want.kinds[kind] = true
	}
	for _, text := range c.Ns {
		if err := onePattern("ns", text); err != nil {
			faults = append(faults, err)
		}
		p, err := parsePattern(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("--ns: %w", err))
			continue
		}
		want.names = append(want.names, p)
	}
	if c.Limit < 0 {
		faults = append(faults, fmt.Errorf("--limit: %d is negative", c.Limit))
	}
	switch {
	case c.File != "" && c.Follow:
		faults = append(faults, errors.New("--follow: a file has an end"))
	case c.File == "" && c.Source == "":
		faults = append(faults, errors.New("give a file, or --source"))
	}
	return want, errors.Join(faults...)
}
