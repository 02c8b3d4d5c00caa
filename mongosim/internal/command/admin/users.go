package admin

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// userKeeper is an Authorizer that keeps users itself. Its methods take the
// command's database and body, and refuse as the server does.
type userKeeper interface {
	// Mechanisms returns those that a user can log in with, none for no user.
	Mechanisms(user, db string) []string
	CreateUser(db string, cmd bson.Raw) error
	DropUser(db string, cmd bson.Raw) error
	GrantRoles(db string, cmd bson.Raw) error
	CreateRole(db string, cmd bson.Raw) error
	// UsersInfo returns the array users of the reply.
	UsersInfo(db string, cmd bson.Raw) (bson.Raw, error)
}

// errNobody is the error of a login without access control.
var errNobody = servererr.New(servererr.AuthenticationFailed, "Authentication failed.")

func runSASLStart(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	if r.Server.Config.Auth == nil {
		return errNobody
	}
	return answerLogin(out, r.Server.Config.Auth.Start, r)
}

func runSASLContinue(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	if r.Server.Config.Auth == nil {
		return servererr.New(servererr.ProtocolError, "No SASL session state found")
	}
	return answerLogin(out, r.Server.Config.Auth.Continue, r)
}

func answerLogin(out *dispatch.Reply, step func(*dispatch.Conn, string, bson.Raw) (bson.Raw, error), r *dispatch.Request) error {
	answer, err := step(r.Conn, r.DB, r.Cmd)
	if err != nil {
		return err
	}
	out.Buf = dispatch.AppendFields(out.Buf, answer)
	return nil
}

func runLogout(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	if r.Server.Config.Auth != nil {
		r.Server.Config.Auth.Logout(r.Conn, r.DB)
	}
	return nil
}

func runConnectionStatus(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	privileges := false
	if e, ok := rawbson.Lookup(r.Cmd, "showPrivileges"); ok {
		if err := dispatch.ArgReader("connectionStatus").Bool(&e, &privileges); err != nil {
			return err
		}
	}
	if r.Server.Config.Auth != nil {
		out.Buf = bsoncore.AppendDocumentElement(out.Buf, "authInfo", r.Server.Config.Auth.Status(r.Conn, privileges))
		return nil
	}
	i, buf := bsoncore.AppendDocumentElementStart(out.Buf, "authInfo")
	buf = bsoncore.AppendArrayElement(buf, "authenticatedUsers", dispatch.EmptyArray)
	buf = bsoncore.AppendArrayElement(buf, "authenticatedUserRoles", dispatch.EmptyArray)
	if privileges {
		buf = bsoncore.AppendArrayElement(buf, "authenticatedUserPrivileges", dispatch.EmptyArray)
	}
	out.Buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return nil
}

// users returns the keeper of users. Without access control there is none: users
// that could never log in would be misleading.
func users(r *dispatch.Request) (userKeeper, error) {
	if keeper, ok := r.Server.Config.Auth.(userKeeper); ok {
		return keeper, nil
	}
	return nil, servererr.New(servererr.NotImplemented, "%s without access control is not implemented here", r.Spec.Name)
}

// onUsers runs a command that changes users.
func onUsers(r *dispatch.Request, change func(keeper userKeeper, db string, cmd bson.Raw) error) error {
	keeper, err := users(r)
	if err != nil {
		return err
	}
	return change(keeper, r.DB, r.Cmd)
}

func runCreateUser(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return onUsers(r, userKeeper.CreateUser)
}

func runDropUser(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return onUsers(r, userKeeper.DropUser)
}

func runGrantRoles(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return onUsers(r, userKeeper.GrantRoles)
}

func runCreateRole(_ context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	return onUsers(r, userKeeper.CreateRole)
}

func runUsersInfo(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	users := bson.Raw(dispatch.EmptyArray)
	if keeper, ok := r.Server.Config.Auth.(userKeeper); ok {
		found, err := keeper.UsersInfo(r.DB, r.Cmd)
		if err != nil {
			return err
		}
		users = found
	}
	out.Buf = bsoncore.AppendArrayElement(out.Buf, "users", bsoncore.Array(users))
	return nil
}
