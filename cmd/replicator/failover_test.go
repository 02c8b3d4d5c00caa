package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestToolsInFailover: a failover of the target does not end a command of an operator.
func TestToolsInFailover(t *testing.T) {
	c := startCutoverLink(t)
	asked := func(set *mongosim.Set) string { return set.URI() + "&appName=tool" }
	target, file := "--target="+asked(c.target), filepath.Join(t.TempDir(), "links.yaml")
	links := fmt.Sprintf("defaults:\n  source: %s\n  target: %s\n  spool-dir: %s\nlinks:\n  test:\n    include: [test]\n", asked(c.source), asked(c.target), filepath.Dir(file))
	must.Succeed(t, os.WriteFile(file, []byte(links), 0o600))
	for _, tool := range [][]string{
		{"links"},
		{"status", "--link=test"},
		{"pause", "--link=test"},
		{"resume", "--link=test"},
		{"throttle", "--link=test"},
		{"events", "--link=test"},
		{"guard", "--link=test"},
		{"resync", "--link=test", "--list"},
		{"cut", "--link=test", "--wait"},
		{"agent", "status"},
		{"agent", "drain", "m"},
		{"agent", "undrain", "m"},
		{"lease", "list"},
		{"lease", "show", "link/test"},
		{"cutover", "--status", "--link=test", "--source=" + asked(c.source)},
		{"cutover", "--drain", "--writes-stopped", "--link=test", "--source=" + asked(c.source)},
	} {
		for name, what := range map[string]bson.E{
			"the primary has stepped down": {Key: "errorCode", Value: 10107},
			"the connection ends":          {Key: "closeConnection", Value: true},
		} {
			t.Run(strings.Join(tool[:min(2, len(tool))], " ")+", "+name, func(t *testing.T) {
				fail := func(mode any, data ...bson.E) {
					must.Succeed(t, c.target.Primary().FailCommand(t.Context(), must.Get(bson.Marshal(bson.D{{Key: "mode", Value: mode}, {Key: "data", Value: data}}))(t)))
				}
				fail(bson.D{{Key: "times", Value: 2}}, what, bson.E{Key: "failCommands", Value: bson.A{"find", "update", "delete", "findAndModify"}}, bson.E{Key: "appName", Value: "tool"})
				defer fail("off")
				to := target
				if tool[0] == "agent" {
					to = "--links=" + file
				}
				said(t, cli.ExitOK, "", nil, append(tool, to)...)
			})
		}
	}
}
