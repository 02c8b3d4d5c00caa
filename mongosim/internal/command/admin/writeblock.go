package admin

import (
	"context"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// runSetUserWriteBlockMode blocks the writes of users, or allows them again.
func runSetUserWriteBlockMode(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	if !r.Server.HasWriteBlock() {
		return servererr.New(servererr.CommandNotFound, "no such command: '%s'", r.Name)
	}
	block, err := dispatch.WriteBlockArg(r.Cmd)
	if err != nil {
		return err
	}
	return r.SetWriteBlock(ctx, out, block)
}
