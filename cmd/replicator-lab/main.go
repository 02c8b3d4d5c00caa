package main

import (
	"context"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
)

// commands are those of the command line.
type commands struct {
	Demo    demoCommand        `cmd:"" help:"Mirror one embedded replica set into another one, under load and through failovers, and compare them."`
	Corpus  corpusCommand      `cmd:"" help:"Apply recorded oplogs, send recorded commands to an embedded set, mirror them from set to set, and compare with what the server did: three lines per recording."`
	Bench   benchCommand       `cmd:"" help:"Measure throughput, latency and memory, next to the limits of driver and server."`
	Serve   serveCommand       `cmd:"" help:"Be an embedded replica set on ports, for tests in any language: prints its connection string, serves until a signal."`
	Version cli.VersionCommand `cmd:"" help:"Print the version."`
}

func main() { program(os.Args[1:]).Main(context.Background()) }

// program is replicator-lab, to be run with the arguments.
func program(args []string) cli.Program {
	return cli.Program{
		Name:        "replicator-lab",
		Description: "Shows, proves and measures replicator on embedded replica sets, and serves such sets. Exit codes are in docs/exit-codes.md.",
		Commands:    &commands{},
		Options:     []kong.Option{kong.Bind(commandLine(args)), kong.Vars{"dialects": strings.Join(mongosim.Dialects(), ", ")}},
		Explain:     explain,
	}
}
