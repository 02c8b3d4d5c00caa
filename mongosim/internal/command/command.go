package command

import (
	"github.com/oplogrep/replicator/mongosim/internal/command/admin"
	"github.com/oplogrep/replicator/mongosim/internal/command/ddl"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/command/write"
)

// New makes a server that answers all commands: see [dispatch.New].
func New(cfg dispatch.Config) (*dispatch.Server, error) {
	return dispatch.New(cfg, read.Specs(), write.Specs(), ddl.Specs(), admin.Specs())
}
