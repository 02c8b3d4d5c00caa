package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// targetFlags say where the metadata of links is; run has the same flags.
type targetFlags struct {
	Target           string        `placeholder:"URI" help:"The target: connection string of a replica set."`
	TargetLogin      loginFlags    `embed:"" prefix:"target-"`
	MetadataDB       string        `name:"metadata-db" default:"replicator" help:"Database of the target for the links' metadata."`
	SelectionTimeout time.Duration `default:"30s" help:"How long to wait for a suitable server."`
}

// linkFlags say which link is meant.
type linkFlags struct {
	targetFlags
	Link string `placeholder:"NAME" help:"Name of the link."`
}

// open checks the flags and connects. Faults of flags are returned as one
// usageError.
func (f *targetFlags) open(ctx context.Context, more ...error) (*driver.Set, error) {
	options, err := parseDeployment("target", f.TargetLogin.config(f.Target, f.SelectionTimeout))
	if f.SelectionTimeout < time.Millisecond {
		err = errors.Join(err, fmt.Errorf("--selection-timeout: %s is less than %s", f.SelectionTimeout, time.Millisecond))
	}
	if err = errors.Join(append([]error{err}, more...)...); err != nil {
		return nil, cli.Usage(err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return nil, cli.Connect(fmt.Errorf("connect to the target: %w", err))
	}
	return set, nil
}

// openLink is open, then finds the link.
func (f *linkFlags) openLink(ctx context.Context, more ...error) (store *checkpoint.Store, state checkpoint.State, release func(), err error) {
	if f.Link == "" {
		more = append(more, errors.New("--link is missing: the name of a link; replicator links lists them"))
	} else if !checkpoint.ValidLink(f.Link) {
		more = append(more, fmt.Errorf("--link: %q: a name has letters, digits, dots, _ and -, 64 at most", f.Link))
	}
	set, err := f.open(ctx, more...)
	if err != nil {
		return nil, checkpoint.State{}, nil, err
	}
	store, state, err = f.find(ctx, set)
	if err != nil {
		set.Close()
		return nil, checkpoint.State{}, nil, cli.Stopped(ctx, err)
	}
	return store, state, set.Close, nil
}

// openGoing is openLink for a command that asks the link for something: one that has ended does nothing any more.
func (f *linkFlags) openGoing(ctx context.Context, more ...error) (*checkpoint.Store, checkpoint.State, func(), error) {
	store, state, release, err := f.openLink(ctx, more...)
	if err == nil {
		if err = f.goesOn(&state); err != nil {
			release()
		}
	}
	return store, state, release, err
}

// goesOn returns an error if the link has ended.
func (f *linkFlags) goesOn(state *checkpoint.State) error {
	if state.Over == nil {
		return nil
	}
	return &cli.Error{
		Err: &checkpoint.OverError{Link: f.Link, Over: *state.Over}, Code: exitResync,
		Hint: "A link that has ended does nothing any more, and nothing was asked of it. To compare both sides as they are now: replicator verify, without --link.",
	}
}

func (f *linkFlags) find(ctx context.Context, set *driver.Set) (*checkpoint.Store, checkpoint.State, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: set, DB: f.MetadataDB, Link: f.Link})
	if err != nil {
		return nil, checkpoint.State{}, cli.Usage(err)
	}
	state, found, err := loaded(ctx, store)
	if err != nil || found {
		return store, state, err
	}
	links, err := listed(ctx, set, f.MetadataDB)
	if err != nil {
		return nil, checkpoint.State{}, err
	}
	names := make([]string, len(links))
	for i := range links {
		names[i] = links[i].Link
	}
	there := "has none"
	if len(names) > 0 {
		there = "has " + strings.Join(names, ", ")
	}
	return nil, checkpoint.State{}, cli.Usage(fmt.Errorf("--link: there is no link %s in %s of the target, which %s", f.Link, f.MetadataDB, there))
}

// patiently does what may be repeated, such as a read of the metadata, again after a transient error, as in a failover of the
// target, for half a minute; unless no server could be selected: the driver has waited for one already.
func patiently(ctx context.Context, do func() error) error {
	return mongo.Retry{Again: failure.Passing}.Last(ctx, do)
}

// loaded returns the state of a link, and whether it exists.
func loaded(ctx context.Context, store *checkpoint.Store) (st checkpoint.State, found bool, err error) {
	err = patiently(ctx, func() error {
		st, found, err = store.Find(ctx)
		return err
	})
	return st, found, err
}

// listed returns the links of a target.
func listed(ctx context.Context, target mongo.Caller, db string) (links []checkpoint.Listed, err error) {
	err = patiently(ctx, func() error {
		links, err = checkpoint.List(ctx, target, db)
		return err
	})
	return links, err
}
