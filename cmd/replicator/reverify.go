package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/request"
)

// reverifyCommand has the process that runs a link compare it again.
type reverifyCommand struct {
	askFlags
	Namespace []string `sep:"none" settings:"no" placeholder:"DB.COLLECTION" help:"A collection, under its name on the source. Default: everything."`
}

// Run asks for it, and waits until the process has taken it up.
func (c *reverifyCommand) Run(ctx context.Context, out cli.Output) error {
	var faults []error
	for _, ns := range c.Namespace {
		if db, coll, _ := strings.Cut(ns, "."); db == "" || coll == "" {
			faults = append(faults, fmt.Errorf("--namespace: %q is not of the form DB.COLLECTION", ns))
		}
	}
	args, err := json.Marshal(request.AgainArgs{Namespaces: c.Namespace})
	store, _, release, err := c.openGoing(ctx, append(faults, err)...)
	if err != nil {
		return err
	}
	defer release()
	return c.ask(ctx, out, store, request.Verify, args)
}
