package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestHelpHasDefaults: the help of each command shows the default of each flag: in place of a placeholder, or in words.
func TestHelpHasDefaults(t *testing.T) {
	t.Parallel()
	parser := must.Get(kong.New(&commands{}, kong.ExplicitGroups(groups), cli.Numbers(), kong.Resolvers(newSettings(nil)), kong.Bind(newSettings(nil))))(t)
	none := []string{"", "0", "-1", "false"} // these are as if there were none
	var look func(n *kong.Node)
	look = func(n *kong.Node) {
		for _, f := range n.Flags {
			inWords := strings.Contains(f.Help, "Default:") && strings.Contains(f.Help, f.Default)
			if f.PlaceHolder != "" && !slices.Contains(none, f.Default) && !inWords {
				t.Errorf("%s: --%s=%s does not say that its default is %s", n.FullPath(), f.Name, f.PlaceHolder, f.Default)
			}
		}
		for _, child := range n.Children {
			look(child)
		}
	}
	look(parser.Model.Node)
}
