package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/standing"
)

// resumed returns the record of the cutover to go on with, nil if there is none, and an error if the way back that it
// was begun with cannot be any more: versions may have changed since.
func (c *cutoverCommand) resumed(ctx context.Context, source *driver.Set, store *checkpoint.Store, state *checkpoint.State) (*record.Record, error) {
	r, err := (&record.Store{Target: store.Target(), DB: c.MetadataDB}).Get(ctx, c.Link)
	if err != nil || !r.Open() {
		return nil, err
	}
	if r.State != record.Running || r.Options.Reverse == record.NoReverse || state.Over != nil {
		return r, nil
	}
	back, err := cutover.Reversible(ctx, source, store.Target(), state, c.MetadataDB)
	if err != nil {
		return nil, err
	}
	if back.Standing != status.Met {
		return nil, &cli.Error{
			Err:  fmt.Errorf("cutover of link %s: %s is not met any more: %s", c.Link, back.Name, printable.Text(back.Value)),
			Code: cli.ExitFailed, Hint: "Nothing was done. It was begun with a way back: replicator cutover --cancel --link " + c.Link + " … cancels it; begin it again with --reverse=none, or once there can be one. " + back.Next,
		}
	}
	return r, nil
}

// verify compares the collections not verified as of --require-verified, with writes to the source stopped. It continues
// a round that was begun, and begins another one if that round is too old.
func (c *cutoverCommand) verify(ctx context.Context, out cli.Output, source *driver.Set, store *checkpoint.Store, state *checkpoint.State) (string, error) {
	for _, resume := range []bool{true, false} {
		outcome, err := c.isVerified(ctx, store)
		if err == nil {
			return outcome, nil
		}
		out.Complain("%s: verify: comparing both sides: %v.", c.Link, err)
		if err := c.compare(ctx, source, store, state, resume); err != nil {
			return "", err
		}
	}
	return c.isVerified(ctx, store)
}

// isVerified says as of when everything was compared and is equal, or why that is not known.
func (c *cutoverCommand) isVerified(ctx context.Context, store *checkpoint.Store) (string, error) {
	st, err := standing.Read(ctx, store.Target(), c.MetadataDB, c.Link)
	switch {
	case err != nil:
		return "", err
	case st.Differences > 0:
		return "", fmt.Errorf("%w: %d differences are known", errDiffer, st.Differences)
	case st.AsOf == nil:
		return "", unverified(cmp.Or(st.Why, "not everything is compared"))
	case time.Since(st.AsOf.Wall()) > c.RequireVerified:
		return "", unverified(fmt.Sprintf("verified as of %s UTC, longer ago than %s", st.AsOf.Wall().Format(time.DateTime), c.RequireVerified))
	}
	return fmt.Sprintf("%d collections were compared, as of %s UTC or later: equal", st.Verified, st.AsOf.Wall().Format(time.DateTime)), nil
}

// unverified says why it is not known whether both sides are equal: to resume the cutover compares again.
type unverified string

func (u unverified) Error() string { return string(u) }

var errDiffer = errors.New("the target is not what the source is")

// compare compares the link at its cuts, and stores the result.
func (c *cutoverCommand) compare(ctx context.Context, source *driver.Set, store *checkpoint.Store, state *checkpoint.State, resume bool) error {
	if state.Filters == nil {
		return errors.New("what the link mirrors is not recorded in its document: start it once with this release")
	}
	names, err := scope.New(cutover.ScopeOf(state.Filters, c.MetadataDB))
	if err != nil {
		return err
	}
	target := store.Target()
	pacer, err := pace.New(pace.Config{Source: source, Target: target})
	if err != nil {
		return err
	}
	r := verifyReport{out: io.Discard}
	v, err := verify.New(verify.Config{
		Source: source, Target: target, Scope: names, Pacer: pacer, Found: r.found,
		Cuts:     &verify.LinkCuts{Links: store, By: operator()},
		Progress: &verify.Progress{Target: target, DB: c.MetadataDB, Link: c.Link, Resume: resume},
		Deferred: func(ctx context.Context) (verify.Overlay, error) {
			specs, err := ddl.ReadDeferred(ctx, mongo.Reads(target), c.MetadataDB, c.Link)
			return specs.Overlay, err
		},
	})
	if err != nil {
		return err
	}
	summary, err := paced(ctx, pacer, v)
	switch {
	case err != nil:
		return err
	case !summary.Equal():
		return fmt.Errorf("%w: replicator verify --link %s shows the differences", errDiffer, c.Link)
	}
	return nil
}
