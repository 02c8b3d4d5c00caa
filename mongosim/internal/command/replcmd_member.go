package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// What members ask each other. The answers are the node's.

func runReplSetGetRBID(_ context.Context, r *request, out *reply) error {
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "rbid", int32(r.srv.cfg.Node.View().RBID))
	return nil
}

// runReplSetHeartbeat answers a heartbeat: the only reply with ok in front.
func runReplSetHeartbeat(_ context.Context, r *request, out *reply) error {
	answer, err := r.srv.cfg.Node.Heartbeat(r.cmd)
	if err != nil {
		return err
	}
	out.Buf = bsoncore.AppendDoubleElement(out.Buf, "ok", 1)
	out.hasOK = true
	out.Buf = appendFields(out.Buf, answer)
	return nil
}

func runReplSetRequestVotes(_ context.Context, r *request, out *reply) error {
	answer, err := r.srv.cfg.Node.RequestVotes(r.cmd)
	if err != nil {
		return err
	}
	out.Buf = appendFields(out.Buf, answer)
	return nil
}

func runReplSetUpdatePosition(_ context.Context, r *request, _ *reply) error {
	return r.srv.cfg.Node.UpdatePosition(r.cmd)
}
