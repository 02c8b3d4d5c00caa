package admin

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// Commands between members. The node answers them.

func runReplSetGetRBID(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "rbid", int32(r.Server.Config.Node.View().RBID))
	return nil
}

// runReplSetHeartbeat answers a heartbeat: the only reply with ok in front.
func runReplSetHeartbeat(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	answer, err := r.Server.Config.Node.Heartbeat(r.Cmd)
	if err != nil {
		return err
	}
	out.Buf = bsoncore.AppendDoubleElement(out.Buf, "ok", 1)
	out.HasOK = true
	out.Buf = dispatch.AppendFields(out.Buf, answer)
	return nil
}

func runReplSetRequestVotes(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	answer, err := r.Server.Config.Node.RequestVotes(r.Cmd)
	if err != nil {
		return err
	}
	out.Buf = dispatch.AppendFields(out.Buf, answer)
	return nil
}

func runReplSetUpdatePosition(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return r.Server.Config.Node.UpdatePosition(r.Cmd)
}
