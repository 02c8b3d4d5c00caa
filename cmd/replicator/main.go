package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/alecthomas/kong"
)

// cli is the command line.
type cli struct {
	Run      runCommand      `cmd:"" help:"Mirror a replica set into another one: the target follows the source's oplog."`
	Resync   resyncCommand   `cmd:"" help:"Copy one collection of a link again, while the rest of it goes on."`
	Throttle throttleCommand `cmd:"" help:"Change how fast a link copies, while it does, or show what is wished."`
	Links    linksCommand    `cmd:"" help:"List the links of a target, with how far they are."`
	Oplog    oplogCommand    `cmd:"" help:"Print or follow an oplog, of a server or in a BSON file."`
	Member   memberCommand   `cmd:"" help:"Give the mirror a place in the source's configuration, so that write concerns can wait for it."`
	Corpus   corpusCommand   `cmd:"" help:"Apply recorded oplogs, send recorded commands to an embedded set, mirror them from set to set, and compare with what the server did: three lines per recording."`
	Demo     demoCommand     `cmd:"" help:"Mirror one embedded replica set into another one, under load and through failovers, and compare them."`
	Bench    benchCommand    `cmd:"" help:"Measure: throughput, latency, memory, beside what is possible at all."`
	Version  versionCommand  `cmd:"" help:"Print the version."`
}

func main() {
	ends, release := awaitSignals()
	code := execute(ends, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	release()
	os.Exit(code)
}

// execute runs one command line and returns its exit code.
func execute(e ends, args, environ []string, stdout, stderr io.Writer) (code int) {
	// Kong ends the program after printing the help; here it ends execute.
	type exit int
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exit)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	out := output{stdout, stderr}
	known := newSettings(environ)
	parser, err := kong.New(&cli{},
		kong.Name("replicator"),
		kong.Description("Mirrors MongoDB replica sets by following their oplog. Exit codes are in docs/exit-codes.md."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.BindTo(e.soft, (*context.Context)(nil)),
		kong.Bind(out, known, e, commandLine(args)),
		kong.Resolvers(known),
		numbers(),
		kong.ExplicitGroups(groups),
	)
	if err != nil {
		out.complain("replicator: set up the command line: %v", err)
		return exitUnexpected
	}
	command, err := parser.Parse(args)
	if err != nil {
		name := "replicator"
		if e, ok := errors.AsType[*kong.ParseError](err); ok && e.Context != nil && e.Context.Selected() != nil {
			name += " " + e.Context.Selected().Path()
		}
		out.complain("%s: %v\n%s", name, err, usageHint(name))
		return exitUsage
	}
	if err := command.Run(); err != nil {
		if _, logged := errors.AsType[loggedError](err); !logged {
			name := "replicator " + command.Selected().Path()
			hint := hintOf(err)
			if is[usageError](err) {
				hint = usageHint(name)
			}
			out.complain("%s: %v", name, err)
			if hint != "" {
				out.complain("%s", hint)
			}
		}
		return exitCode(err)
	}
	return exitOK
}

func usageHint(command string) string { return "Run " + command + " --help for how to use it." }
