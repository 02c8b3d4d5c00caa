package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
)

type memberCommand struct {
	Add    memberAddCommand    `cmd:"" help:"Add a member that represents the mirror: hidden, without vote, priority and indexes."`
	Remove memberRemoveCommand `cmd:"" help:"Remove a member that represents the mirror, and the write concerns that only it could satisfy."`
}

// memberFlags are the flags of both commands.
type memberFlags struct {
	sourceFlags
	Host  string `placeholder:"NAME:PORT" help:"The member's address. Nothing has to listen there."`
	Apply bool   `help:"Reconfigure the set. Otherwise the new configuration is only printed."`
}

type memberAddCommand struct {
	memberFlags
	Tag  string `placeholder:"K=V" help:"The member's tag. Default: mirror=HOST. With mirror=LINK, run finds the member by itself."`
	Mode string `default:"mirror" help:"Name of the write concern that waits for the mirror."`
	ID   int    `name:"id" default:"-1" placeholder:"N" help:"The member's _id. Default: a free one."`
}

type memberRemoveCommand struct {
	memberFlags
}

// Run adds a member to the source's configuration, or prints the change that it
// would make.
func (c *memberAddCommand) Run(ctx context.Context, out cli.Output) error {
	add := feedback.NewMember{ID: c.ID, Host: c.Host, Mode: c.Mode}
	if c.Tag != "" {
		var ok bool
		if add.Tag, add.Value, ok = strings.Cut(c.Tag, "="); !ok || add.Tag == "" || add.Value == "" {
			return cli.Usage(fmt.Errorf("--tag: %q is not of the form NAME=VALUE", c.Tag))
		}
	}
	return c.change(ctx, out, func(config bson.Raw) (bson.Raw, string, error) {
		next, id, err := feedback.AddMember(config, add)
		if err != nil {
			err = cli.Usage(fmt.Errorf("%w. Nothing was changed. If it is the mirror's member already, it need not be added: replicator run --feedback=member --feedback-member=ID "+
				"reports as it, and replicator member remove removes it. rs.conf() on the source shows all members", err))
		}
		return next, fmt.Sprintf("Member %d, %s, is added: a write with w: %q waits for it from now on.\n"+
			"Its link: replicator run --feedback=member --feedback-member=%d", id, c.Host, c.Mode, id), err
	})
}

// Run removes the member with the address, or prints the change that it would
// make.
func (c *memberRemoveCommand) Run(ctx context.Context, out cli.Output) error {
	return c.change(ctx, out, func(config bson.Raw) (bson.Raw, string, error) {
		var hosts []string
		for _, m := range configMembers(config) {
			host, _ := m.Lookup("host").StringValueOK()
			hosts = append(hosts, host)
			if id, ok := m.Lookup("_id").AsInt64OK(); ok && host == c.Host {
				next, err := feedback.RemoveMember(config, int(id))
				return next, fmt.Sprintf("Member %d, %s, is removed.", id, c.Host), err
			}
		}
		return nil, "", cli.Usage(fmt.Errorf("--host: the set has no member %s; it has %s", c.Host, strings.Join(hosts, ", ")))
	})
}

// change reads the configuration, and prints the changed one or installs it.
func (c *memberFlags) change(ctx context.Context, out cli.Output, to func(bson.Raw) (config bson.Raw, done string, err error)) error {
	options, err := c.parse()
	if c.Host == "" {
		err = errors.Join(err, errors.New("--host is missing: the member's address"))
	} else if bad := checkAddress("--host", c.Host); bad != nil {
		err = errors.Join(err, bad)
	}
	if err != nil {
		return cli.Usage(err)
	}
	set, err := driver.Open(ctx, options)
	if err != nil {
		return cli.Connect(fmt.Errorf("connect to the source: %w", err))
	}
	defer set.Close()
	config, err := feedback.ReadConfig(ctx, set)
	if err != nil {
		return cli.Stopped(ctx, err)
	}
	next, done, err := to(config)
	if err != nil {
		return err
	}
	if !c.Apply {
		text, err := bson.MarshalExtJSONIndent(next, false, false, "", "  ")
		if err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		if _, err := fmt.Fprintf(out.Results, "%s\n", text); err != nil {
			return fmt.Errorf("print the configuration: %w", err)
		}
		out.Complain("Nothing was changed. Add --apply, or pass this document to rs.reconfig().")
		return nil
	}
	if err := feedback.Reconfigure(ctx, set, next); err != nil {
		return cli.Stopped(ctx, err)
	}
	_, err = fmt.Fprintln(out.Results, done)
	return err
}
