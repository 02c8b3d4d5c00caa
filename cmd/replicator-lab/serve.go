package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
)

// mostMembers is how many members a set may have, and voters how many may vote.
const (
	mostMembers = 50
	voters      = 7
)

type serveCommand struct {
	Members int      `default:"3" help:"Number of members, 1 to 50. From the eighth on they have no vote."`
	Dialect string   `default:"5.0" help:"Server version whose replies and oplog are given: ${dialects}."`
	Port    int      `default:"27017" help:"Port of the first member; the others have the ports after it. 0: ports that the system chooses."`
	Bind    string   `default:"127.0.0.1" help:"IP address to listen on. 0.0.0.0 and :: are all of them, and need --host."`
	Host    string   `placeholder:"NAME" help:"Host by which clients connect to the members, as in the set's configuration. Default: that of --bind."`
	Replset string   `default:"rs0" help:"Name of the set."`
	Oplog   cli.Size `name:"oplog-size" default:"256MiB" help:"Size of each member's oplog."`
	Seed    int64    `placeholder:"N" help:"Seed of all that is random: UUIDs, identifiers, election timeouts. Default: the port, so that two sets are not one; with --port=0 by chance."`
	Verbose bool     `help:"Write what the members do to standard error."`

	Username     string `placeholder:"NAME" help:"Switch access control on, with this user, who has the role root. Needs --password-file."`
	PasswordFile string `placeholder:"FILE" help:"File with that user's password."`
}

// Help is what serve --help says before the flags.
func (*serveCommand) Help() string {
	return "The first line of standard output is the connection string, written once the set has a primary. " +
		"It serves until SIGINT or SIGTERM, and ends with 0 then. All data are in memory and end with it. " +
		"What it answers and what not is in docs/embedded-set.md."
}

// Run serves an embedded set on ports until ctx is done.
func (c *serveCommand) Run(ctx context.Context, out cli.Output) error {
	opts, err := c.options(out)
	if err != nil {
		return err
	}
	set, err := mongosim.Start(ctx, opts)
	if err != nil {
		err = fmt.Errorf("start the set: %w", err)
		if is[*mongosim.PortError](err) {
			return portError(err)
		}
		return cli.Stopped(ctx, err)
	}
	defer set.Close()
	if _, err := fmt.Fprintln(out.Results, set.URI()); err != nil {
		return fmt.Errorf("print the connection string: %w", err)
	}
	out.Complain("An embedded replica set of %d members, dialect %s, for tests: its data are in memory. It serves until SIGINT or SIGTERM.", c.Members, c.Dialect)
	if c.Username != "" {
		out.Complain("Log in as %s, with the password of %s; authSource is admin.", c.Username, c.PasswordFile)
	}
	<-ctx.Done()
	return nil
}

// options checks the flags. The error has all faults.
func (c *serveCommand) options(out cli.Output) (mongosim.Options, error) {
	opts := mongosim.Options{
		Dialect: c.Dialect, SetName: c.Replset, Address: c.Bind, Hostname: c.Host, Port: c.Port,
		OplogBytes: int64(c.Oplog), Seed: c.seed(),
	}
	user, err := c.user()
	if err = errors.Join(c.check(), err); err != nil {
		return opts, cli.Usage(err)
	}
	opts.Users = user
	for i := range c.Members {
		opts.MemberOptions = append(opts.MemberOptions, mongosim.MemberOptions{NonVoting: i >= voters, NoPriority: i >= voters})
	}
	if c.Verbose {
		opts.Log = slog.New(slog.NewTextHandler(out.Complaints, nil))
	}
	if err := opts.Validate(); err != nil { // such as the set's name
		return opts, cli.Usage(err)
	}
	return opts, nil
}

// seed returns the seed of the set. Sets with the same seed have the same identifiers: a link takes them for one.
func (c *serveCommand) seed() int64 {
	switch {
	case c.Seed != 0:
		return c.Seed
	case c.Port == 0:
		return rand.Int64()
	}
	return int64(c.Port)
}

// check returns the faults of the flags by themselves.
func (c *serveCommand) check() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Members < 1 || c.Members > mostMembers {
		fault("--members=%d: want 1 to %d", c.Members, mostMembers)
	}
	if all := mongosim.Dialects(); !slices.Contains(all, c.Dialect) {
		fault("--dialect=%s: there are %s", c.Dialect, strings.Join(all, ", "))
	}
	if last := c.Port + c.Members - 1; c.Port < 0 || c.Port > 0 && last > math.MaxUint16 {
		fault("--port=%d: the ports of %d members, up to %d, are not from 1 to %d", c.Port, c.Members, last, math.MaxUint16)
	}
	if ip, err := netip.ParseAddr(c.Bind); err != nil {
		fault("--bind=%s: not an IP address", c.Bind)
	} else if ip.IsUnspecified() && c.Host == "" {
		fault("--bind=%s: no client can connect to that: say with --host by which name they reach this machine", c.Bind)
	}
	if c.Oplog < 1 {
		fault("--oplog-size=%s: want more than 0", c.Oplog)
	}
	return errors.Join(faults...)
}

// user returns the user of the flags, none without access control.
func (c *serveCommand) user() ([]mongosim.User, error) {
	switch {
	case c.Username == "" && c.PasswordFile == "":
		return nil, nil
	case c.Username == "" || c.PasswordFile == "":
		return nil, errors.New("--username and --password-file: give both, or none of them")
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("--password-file: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return nil, fmt.Errorf("--password-file: %s is empty", c.PasswordFile)
	}
	root := mongosim.Role{Name: "root", DB: "admin"}
	return []mongosim.User{{Name: c.Username, Password: password, Roles: []mongosim.Role{root}}}, nil
}
