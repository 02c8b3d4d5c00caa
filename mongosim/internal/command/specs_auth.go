package command

import (
	"crypto/sha256"
	"strings"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func authSpecs() []spec {
	userFields := []string{"pwd", "roles", "mechanisms", "customData", "authenticationRestrictions", "digestPassword"}
	return []spec{
		{name: "saslStart", secondary: anyMember, beforeAuth: true, run: runSASLStart},
		{name: "saslContinue", secondary: anyMember, beforeAuth: true, run: runSASLContinue},
		{name: "logout", secondary: anyMember, beforeAuth: true, run: runLogout},
		{
			name: "connectionStatus", fields: []string{"showPrivileges"}, secondary: anyMember, beforeAuth: true,
			run: runConnectionStatus,
		},

		{name: "createUser", fields: userFields, writes: true, run: runCreateUser, check: needsRoles("createUser", "grantRole")},
		{name: "updateUser", fields: userFields, writes: true, run: runUpdateUser, check: needsRoles("changePassword", "grantRole")},
		{name: "dropUser", fields: []string{}, writes: true, run: runDropUser, check: needsDB("dropUser")},
		{name: "dropAllUsersFromDatabase", fields: []string{}, writes: true, run: runDropAllUsers, check: needsDB("dropUser")},
		{name: "grantRolesToUser", fields: []string{"roles"}, writes: true, run: runGrantRoles, check: needsRoles("grantRole", "grantRole")},
		{name: "revokeRolesFromUser", fields: []string{"roles"}, writes: true, run: runRevokeRoles, check: needsRoles("revokeRole", "revokeRole")},
		{
			name: "createRole", fields: []string{"privileges", "roles", "authenticationRestrictions"}, writes: true, run: runCreateRole,
			check: needsRoles("createRole", "grantRole"),
		},
		{name: "dropRole", fields: []string{}, writes: true, run: runDropRole, check: needsDB("dropRole")},
		{
			name: "usersInfo", fields: []string{
				"showCredentials", "showPrivileges", "showCustomData", "showAuthenticationRestrictions", "filter",
			},
			secondary: anyMember, run: runUsersInfo, check: mayViewUsers,
		},
	}
}

// needsRoles asks for an action on the command's database, and for another one on
// the database of every role that it names: nobody gives away what is not theirs
// to give.
func needsRoles(action, perRole string) func(*request) error {
	return func(r *request) error {
		if err := r.allowed(action, r.db, ""); err != nil {
			return err
		}
		e, _ := rawbson.Lookup(r.cmd, "roles")
		array, _ := e.Array()
		it := rawbson.NewIter(array)
		for it.Next() {
			db := r.db
			if doc, ok := it.Document(); ok {
				in, _ := rawbson.Lookup(doc, "db")
				text, _ := in.Text()
				db = strings.Clone(text)
			}
			if err := r.allowed(perRole, db, ""); err != nil {
				return err
			}
		}
		return nil
	}
}

// mayViewUsers asks for viewUser where the users are that the command is about;
// everybody may look at themselves.
func mayViewUsers(r *request) error {
	const view = "viewUser"
	first := firstElem(r.cmd)
	if array, ok := first.Array(); ok {
		if err := r.allowed("", "", ""); err != nil { // the array may be empty
			return err
		}
		it := rawbson.NewIter(array)
		for it.Next() {
			if err := r.mayViewUser(view, &it.Elem); err != nil {
				return err
			}
		}
		return nil
	}
	doc, _ := first.Document()
	if _, all := rawbson.Lookup(doc, "forAllDBs"); all {
		return r.allowed(view, "", "")
	}
	return r.mayViewUser(view, &first)
}

// mayViewUser is mayViewUsers for "name" or {user, db}; what is neither stands for
// all users of the command's database.
func (r *request) mayViewUser(action string, e *rawbson.Elem) error {
	name, isName := e.Text()
	db := r.db
	if doc, ok := e.Document(); ok {
		user, _ := rawbson.Lookup(doc, "user")
		in, _ := rawbson.Lookup(doc, "db")
		name, isName = user.Text()
		if text, ok := in.Text(); ok {
			db = strings.Clone(text)
		}
	}
	if isName && r.srv.cfg.Auth != nil && r.userID() == sha256.Sum256([]byte(name+"@"+db)) {
		return nil
	}
	return r.allowed(action, db, "")
}
