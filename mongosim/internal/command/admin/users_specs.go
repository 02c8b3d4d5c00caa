package admin

import (
	"crypto/sha256"
	"strings"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func authSpecs() []dispatch.Spec {
	userFields := []string{"pwd", "roles", "mechanisms", "customData", "authenticationRestrictions", "digestPassword"}
	return []dispatch.Spec{
		{Name: "saslStart", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runSASLStart},
		{Name: "saslContinue", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runSASLContinue},
		{Name: "logout", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runLogout},
		{
			Name: "connectionStatus", Fields: []string{"showPrivileges"}, Secondary: dispatch.AnyMember, BeforeAuth: true,
			Run: runConnectionStatus,
		},

		{Name: "createUser", Fields: userFields, Writes: true, Run: runCreateUser, Check: needsRoles("createUser", "grantRole")},
		{Name: "dropUser", Fields: []string{}, Writes: true, Run: runDropUser, Check: dispatch.NeedsDB("dropUser")},
		{Name: "grantRolesToUser", Fields: []string{"roles"}, Writes: true, Run: runGrantRoles, Check: needsRoles("grantRole", "grantRole")},
		{
			Name: "createRole", Fields: []string{"privileges", "roles", "authenticationRestrictions"}, Writes: true, Run: runCreateRole,
			Check: needsRoles("createRole", "grantRole"),
		},
		{
			Name: "usersInfo", Fields: []string{
				"showCredentials", "showPrivileges", "showCustomData", "showAuthenticationRestrictions", "filter",
			},
			Secondary: dispatch.AnyMember, Run: runUsersInfo, Check: mayViewUsers,
		},
	}
}

// needsRoles asks for an action on the command's database, and for another one on
// the database of every role that it names: users can only grant roles that they
// may grant.
func needsRoles(action, perRole string) func(*dispatch.Request) error {
	return func(r *dispatch.Request) error {
		if err := r.Allowed(action, r.DB, ""); err != nil {
			return err
		}
		e, _ := rawbson.Lookup(r.Cmd, "roles")
		array, _ := e.Array()
		it := rawbson.NewIter(array)
		for it.Next() {
			db := r.DB
			if doc, ok := it.Document(); ok {
				in, _ := rawbson.Lookup(doc, "db")
				text, _ := in.Text()
				db = strings.Clone(text)
			}
			if err := r.Allowed(perRole, db, ""); err != nil {
				return err
			}
		}
		return nil
	}
}

// mayViewUsers asks for viewUser where the users are that the command is about: "name",
// {user, db}, or all users of its database. Users may view themselves.
func mayViewUsers(r *dispatch.Request) error {
	e := dispatch.FirstElem(r.Cmd)
	name, isName := e.Text()
	db := r.DB
	if doc, ok := e.Document(); ok {
		user, _ := rawbson.Lookup(doc, "user")
		in, _ := rawbson.Lookup(doc, "db")
		name, isName = user.Text()
		if text, ok := in.Text(); ok {
			db = strings.Clone(text)
		}
	}
	if isName && r.Server.Config.Auth != nil && r.UserID() == sha256.Sum256([]byte(name+"@"+db)) {
		return nil
	}
	return r.Allowed("viewUser", db, "")
}
