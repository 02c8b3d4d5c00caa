package cli

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// VersionCommand is the command that prints the version.
type VersionCommand struct{}

// Run prints the module's version, the revision that it was built from, and the
// Go version.
func (VersionCommand) Run(command *kong.Context, out Output) error {
	name := command.Model.Name
	info, ok := debug.ReadBuildInfo()
	if !ok {
		_, err := fmt.Fprintf(out.Results, "%s, built without version information\n", name)
		return err
	}
	var revision string
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	_, err := fmt.Fprintf(out.Results, "%s %s (%s) %s\n", name, info.Main.Version, cmp.Or(revision, "unknown revision"), info.GoVersion)
	return err
}

// Version returns the module's version.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
