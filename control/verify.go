package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Verification compares the link with its source continuously: *continuous.Rounds. It is safe for
// concurrent use.
type Verification interface {
	// Ask has collections compared again, all if none is named, as soon as possible. Once it has
	// returned, those named do not count as verified, even if the process dies. Asking again changes
	// nothing until they have been compared.
	Ask(ctx context.Context, sourceNS []oplog.Namespace, why string) error
}

const (
	// markWithin is how long a request to compare again may keep the others waiting. After markFor in which
	// it could not be stored it fails.
	markWithin = 3 * time.Second
	markFor    = time.Minute
)

// verify has collections compared again. A process that takes the link over does so too, if the
// request is still open.
func (c *Controller) verify(ctx context.Context, r *request.Record) error {
	all, err := r.Verify()
	if err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	if c.cfg.Verification == nil {
		return c.answer(ctx, r, request.Refused, "the process that runs the link does not compare it: start it with --verify=continuous, or run replicator verify")
	}
	limited, cancel := context.WithTimeout(ctx, markWithin)
	defer cancel()
	if err := c.cfg.Verification.Ask(limited, all, "compared again for "+r.By); err != nil {
		return fmt.Errorf("act on a request to compare again: %w", err)
	}
	what := "everything"
	if len(all) > 0 {
		names := make([]string, len(all))
		for i, ns := range all {
			names[i] = string(ns)
		}
		what = strings.Join(names, ", ")
	}
	return c.answer(ctx, r, request.Done, what+` is compared next, after the round that runs, if one does; "verified as of" in the status says when that is done`)
}
