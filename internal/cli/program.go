package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// Program is a command line with its commands.
type Program struct {
	// Name is the program's name in messages; Description is the first line of its
	// help.
	Name, Description string
	// Commands is a pointer to a struct with a field for each command, as package
	// kong has it. The Run method of a command may take a context.Context that ends
	// with the first signal, an Ends, an Output, and what Options bind.
	Commands any
	// Options are further ones of the parser, for this command line.
	Options []kong.Option
	// Explain returns the exit code of an error and a hint for the operator. Nil
	// means Explain of this package.
	Explain func(error) (code int, hint string)
}

// Main runs the command line of this process until a signal or ctx ends it, and ends
// the process with its exit code.
//
// A panic ends it by SIGABRT. Go's own way is code 2, which supervisors take for a wrong command
// line and do not restart.
func (p Program) Main(ctx context.Context) {
	debug.SetTraceback("crash")
	e, release := awaitSignals(ctx)
	code := p.Run(e, os.Args[1:], os.Stdout, os.Stderr)
	release()
	os.Exit(code)
}

// helpPrinted ends Run where kong would end the process: after it printed a help.
type helpPrinted int

// Run runs one command line and returns its exit code.
func (p Program) Run(e Ends, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if r := recover(); r != nil {
			printed, ok := r.(helpPrinted)
			if !ok {
				panic(r)
			}
			code = int(printed)
		}
	}()
	out := Output{Results: stdout, Complaints: stderr}
	parser, err := kong.New(p.Commands, append([]kong.Option{
		kong.Name(p.Name),
		kong.Description(p.Description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(helpPrinted(code)) }),
		kong.BindTo(e.Soft, (*context.Context)(nil)),
		kong.Bind(out, e),
		Numbers(),
	}, p.Options...)...)
	if err != nil {
		out.Complain("%s: set up the command line: %v", p.Name, err)
		return ExitUnexpected
	}
	command, err := parser.Parse(args)
	if err != nil {
		name := p.Name
		if e, ok := errors.AsType[*kong.ParseError](err); ok && e.Context != nil && e.Context.Selected() != nil {
			name += " " + e.Context.Selected().Path()
		}
		out.Complain("%s: %v\n%s", name, err, usageHint(name))
		return ExitUsage
	}
	if err := command.Run(); err != nil {
		return p.end(out, p.Name+" "+command.Selected().Path(), err)
	}
	return ExitOK
}

// end prints the error of a command, unless it was logged, and returns the exit
// code.
func (p Program) end(out Output, command string, err error) int {
	explain := p.Explain
	if explain == nil {
		explain = Explain
	}
	code, hint := explain(err)
	if is[loggedError](err) {
		return code
	}
	if code == ExitUsage {
		hint = usageHint(command)
	}
	out.Complain("%s: %v", command, err)
	if hint != "" {
		out.Complain("%s", hint)
	}
	return code
}

func usageHint(command string) string { return "Run " + command + " --help for how to use it." }
