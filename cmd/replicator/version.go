package main

import (
	"fmt"
	"runtime/debug"
)

type versionCommand struct{}

// Run prints the module's version, the revision that it was built from, and the
// Go version.
func (versionCommand) Run(out output) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		_, err := fmt.Fprintln(out.results, "replicator, built without version information")
		return err
	}
	revision := "unknown revision"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	_, err := fmt.Fprintf(out.results, "replicator %s (%s) %s\n", info.Main.Version, revision, info.GoVersion)
	return err
}

// version is the module's version.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
