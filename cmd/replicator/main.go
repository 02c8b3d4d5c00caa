package main

import (
	"context"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/oplogrep/replicator/internal/cli"
)

// commands are those of the command line.
type commands struct {
	Run      runCommand         `cmd:"" help:"Mirror a replica set into another one by applying the source's oplog."`
	Status   statusCommand      `cmd:"" help:"Show the verdict of each link in one sentence, from the process that runs it or from its metadata."`
	Agent    agentCommand       `cmd:"" help:"Run many links in one process, and share them with other processes."`
	Resync   resyncCommand      `cmd:"" help:"Copy one collection of a link again, while the rest continues."`
	Throttle throttleCommand    `cmd:"" help:"Limit how fast a link copies and applies, or show the limits."`
	Pause    pauseCommand       `cmd:"" help:"Pause a link: nothing is copied or applied until it is resumed. The source's oplog is still read."`
	Resume   resumeCommand      `cmd:"" help:"Resume a link that is paused."`
	Events   eventsCommand      `cmd:"" help:"Print the requests of operators to a link with their outcomes, and the changes of its leader."`
	Cut      cutCommand         `cmd:"" help:"Print the newest consistent cut of a link: a cluster time of the target at which it equals the source as of an entry."`
	Cutover  cutoverCommand     `cmd:"" help:"Move applications from the source of a link to its target: check, stop writes, drain, restore deferred options, end the link. It can be resumed, and cancelled until the link has ended."`
	Promote  promoteCommand     `cmd:"" help:"The source is gone: apply what the relay log has, end the link, and say up to where the target has the source."`
	Rewind   rewindCommand      `cmd:"" help:"The source of a promoted link is back: list the writes that only it has, as JSON documents."`
	Verify   verifyCommand      `cmd:"" help:"Compare source and target: collections, options, indexes, and every document byte for byte."`
	Reverify reverifyCommand    `cmd:"" help:"Ask the process that runs a link with --verify=continuous to compare collections, or everything, again now."`
	Repair   repairCommand      `cmd:"" help:"Rewrite documents of the target of a link that runs, from its source: those that verify has found, or others."`
	Guard    guardCommand       `cmd:"" help:"Print the namespaces of the target with foreign writes: those that the link has not made."`
	Links    linksCommand       `cmd:"" help:"List the links of a target, with their positions."`
	Lease    leaseCommand       `cmd:"" help:"Show the leases and locks in a target, release one, or run a command with one."`
	Oplog    oplogCommand       `cmd:"" help:"Print or follow an oplog, of a server or from a BSON file."`
	Member   memberCommand      `cmd:"" help:"Add or remove the mirror as a member of the source's configuration, so that write concerns can wait for it."`
	Version  cli.VersionCommand `cmd:"" help:"Print the version."`
}

func main() { program(os.Environ()).Main(context.Background()) }

// program is replicator, with settings of an environment.
func program(environ []string) cli.Program {
	known := newSettings(environ)
	return cli.Program{
		Name:        "replicator",
		Description: "Mirrors MongoDB replica sets by following their oplog. Exit codes are in docs/exit-codes.md.",
		Commands:    &commands{},
		Options:     []kong.Option{kong.Bind(known), kong.Resolvers(known), kong.ExplicitGroups(groups)},
		Explain:     explain,
	}
}

// execute runs one command line and returns its exit code.
func execute(e cli.Ends, args, environ []string, stdout, stderr io.Writer) int {
	return program(environ).Run(e, args, stdout, stderr)
}
