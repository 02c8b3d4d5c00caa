package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// userKeeper is an Authorizer that keeps users itself. Its methods take the
// command's database and body, and refuse as the server does.
type userKeeper interface {
	// Mechanisms returns those that a user can log in with, none for no user.
	Mechanisms(user, db string) []string
	CreateUser(db string, cmd bson.Raw) error
	UpdateUser(db string, cmd bson.Raw) error
	DropUser(db string, cmd bson.Raw) error
	// DropAllUsers returns how many there were.
	DropAllUsers(db string) int
	GrantRoles(db string, cmd bson.Raw) error
	RevokeRoles(db string, cmd bson.Raw) error
	CreateRole(db string, cmd bson.Raw) error
	DropRole(db string, cmd bson.Raw) error
	// UsersInfo returns the array users of the reply.
	UsersInfo(db string, cmd bson.Raw) (bson.Raw, error)
}

// errNobody is what a login comes to where there are no users.
var errNobody = servererr.New(servererr.AuthenticationFailed, "Authentication failed.")

func runSASLStart(_ context.Context, r *request, out *reply) error {
	if r.srv.cfg.Auth == nil {
		return errNobody
	}
	return answerLogin(out, r.srv.cfg.Auth.Start, r)
}

func runSASLContinue(_ context.Context, r *request, out *reply) error {
	if r.srv.cfg.Auth == nil {
		return servererr.New(servererr.ProtocolError, "No SASL session state found")
	}
	return answerLogin(out, r.srv.cfg.Auth.Continue, r)
}

func answerLogin(out *reply, step func(*Conn, string, bson.Raw) (bson.Raw, error), r *request) error {
	answer, err := step(r.conn, r.db, r.cmd)
	if err != nil {
		return err
	}
	out.Buf = appendFields(out.Buf, answer)
	return nil
}

func runLogout(_ context.Context, r *request, _ *reply) error {
	if r.srv.cfg.Auth != nil {
		r.srv.cfg.Auth.Logout(r.conn, r.db)
	}
	return nil
}

func runConnectionStatus(_ context.Context, r *request, out *reply) error {
	privileges := false
	if e, ok := rawbson.Lookup(r.cmd, "showPrivileges"); ok {
		if err := argReader("connectionStatus").bool(&e, &privileges); err != nil {
			return err
		}
	}
	if r.srv.cfg.Auth != nil {
		out.Buf = bsoncore.AppendDocumentElement(out.Buf, "authInfo", r.srv.cfg.Auth.Status(r.conn, privileges))
		return nil
	}
	i, buf := bsoncore.AppendDocumentElementStart(out.Buf, "authInfo")
	buf = bsoncore.AppendArrayElement(buf, "authenticatedUsers", emptyArray)
	buf = bsoncore.AppendArrayElement(buf, "authenticatedUserRoles", emptyArray)
	if privileges {
		buf = bsoncore.AppendArrayElement(buf, "authenticatedUserPrivileges", emptyArray)
	}
	out.Buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return nil
}

// users returns who keeps the users. Without access control nobody does: users
// that could never log in would only pretend to be.
func (r *request) users() (userKeeper, error) {
	if keeper, ok := r.srv.cfg.Auth.(userKeeper); ok {
		return keeper, nil
	}
	return nil, servererr.New(servererr.NotImplemented, "%s without access control is not implemented here", r.spec.name)
}

// onUsers runs a command that changes users.
func (r *request) onUsers(change func(keeper userKeeper, db string, cmd bson.Raw) error) error {
	keeper, err := r.users()
	if err != nil {
		return err
	}
	return change(keeper, r.db, r.cmd)
}

func runCreateUser(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.CreateUser)
}

func runUpdateUser(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.UpdateUser)
}

func runDropUser(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.DropUser)
}

func runGrantRoles(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.GrantRoles)
}

func runRevokeRoles(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.RevokeRoles)
}

func runCreateRole(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.CreateRole)
}

func runDropRole(_ context.Context, r *request, _ *reply) error {
	return r.onUsers(userKeeper.DropRole)
}

func runDropAllUsers(_ context.Context, r *request, out *reply) error {
	keeper, err := r.users()
	if err != nil {
		return err
	}
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "n", int32(keeper.DropAllUsers(r.db)))
	return nil
}

func runUsersInfo(_ context.Context, r *request, out *reply) error {
	users := bson.Raw(emptyArray)
	if keeper, ok := r.srv.cfg.Auth.(userKeeper); ok {
		found, err := keeper.UsersInfo(r.db, r.cmd)
		if err != nil {
			return err
		}
		users = found
	}
	out.Buf = bsoncore.AppendArrayElement(out.Buf, "users", bsoncore.Array(users))
	return nil
}
