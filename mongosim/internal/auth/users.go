package auth

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// CreateUser is createUser: {createUser, pwd, roles, mechanisms}.
func (m *Manager) CreateUser(db string, cmd bson.Raw) error {
	args, err := parseUser(db, cmd)
	if err != nil {
		return err
	}
	name := userName{args.Name, db}
	switch {
	case args.Name == "":
		return servererr.New(servererr.BadValue, "Username cannot be empty")
	case name == system:
		return servererr.New(servererr.BadValue, "Cannot create user with the same name as the internal user")
	case !args.hasPassword:
		return servererr.New(servererr.BadValue, "Must provide a 'pwd' field for all user documents, except those with '$external' as the user's source db")
	case args.Password == "":
		return servererr.New(50687, "User passwords must not be empty")
	case !args.hasRoles:
		return servererr.New(servererr.BadValue, "\"createUser\" command requires a \"roles\" array")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users[name] != nil {
		return servererr.New(51003, "User \"%s\" already exists", name)
	}
	made, err := m.newUser(args.User, args.mechanisms)
	if err != nil {
		return refused(err)
	}
	m.users[name] = made
	return nil
}

// GrantRoles is grantRolesToUser: {grantRolesToUser, roles}.
func (m *Manager) GrantRoles(db string, cmd bson.Raw) error {
	args, err := parseUser(db, cmd)
	if err != nil {
		return err
	}
	name := userName{args.Name, db}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.users[name]
	if old == nil || name == system {
		return noSuchUser(name)
	}
	changed := *old
	if err := m.setRoles(&changed, slices.Concat(old.roles, args.Roles)); err != nil {
		return refused(err)
	}
	m.users[name] = &changed
	return nil
}

// DropUser is dropUser.
func (m *Manager) DropUser(db string, cmd bson.Raw) error {
	args, err := parseUser(db, cmd)
	if err != nil {
		return err
	}
	name := userName{args.Name, db}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.users[name] == nil || name == system {
		return noSuchUser(name)
	}
	delete(m.users, name)
	return nil
}

// UsersInfo is usersInfo: the array of users that the command asks for, each
// {_id, userId, user, db, roles, mechanisms}, in order of _id.
func (m *Manager) UsersInfo(db string, cmd bson.Raw) (bson.Raw, error) {
	it := rawbson.NewIter(cmd)
	it.Next()
	what := it.Elem
	for it.Next() {
		switch it.Name() {
		case "showCredentials", "showPrivileges", "filter":
			if given, isBool := it.Bool(); given || !isBool {
				return nil, servererr.New(servererr.NotImplemented, "usersInfo with %s is not implemented here", it.Name())
			}
		}
	}
	wanted, err := wantedUsers(db, &what)
	if err != nil {
		return nil, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var found []*user
	for name, u := range m.users {
		if name != system && wanted(name) {
			found = append(found, u)
		}
	}
	slices.SortFunc(found, func(a, b *user) int { return cmp.Or(strings.Compare(a.db, b.db), strings.Compare(a.name, b.name)) })
	i, array := bsoncore.AppendDocumentStart(nil)
	for n, u := range found {
		array = bsoncore.AppendDocumentElement(array, index(n), u.document())
	}
	array, _ = bsoncore.AppendDocumentEnd(array, i)
	return array, nil
}

// wantedUsers reads the first argument of usersInfo: 1, a name, or {user, db}.
func wantedUsers(db string, e *rawbson.Elem) (func(userName) bool, error) {
	if n, ok := e.Int64(); ok && n == 1 {
		return func(name userName) bool { return name.db == db }, nil
	}
	doc, _ := e.Document()
	if _, all := rawbson.Lookup(doc, "forAllDBs"); all || e.Type == bson.TypeArray {
		return nil, servererr.New(servererr.NotImplemented, "usersInfo of several users is not implemented here")
	}
	wanted, err := nameOf(db, "user", e)
	return func(name userName) bool { return name == wanted }, err
}

// nameOf reads "name" or {what: "name", db: "db"}.
func nameOf(db, what string, e *rawbson.Elem) (userName, error) {
	if text, ok := e.Text(); ok {
		return userName{strings.Clone(text), db}, nil
	}
	doc, isDoc := e.Document()
	name, _ := rawbson.Lookup(doc, what)
	in, _ := rawbson.Lookup(doc, "db")
	text, ok := name.Text()
	inText, okDB := in.Text()
	if !isDoc || !ok || !okDB {
		return userName{}, servererr.New(servererr.BadValue, "Names must be either strings or objects with the fields %s and db", what)
	}
	return userName{strings.Clone(text), strings.Clone(inText)}, nil
}

func (u *user) document() []byte {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendStringElement(doc, "_id", u.db+"."+u.name)
	doc = bsoncore.AppendBinaryElement(doc, "userId", bson.TypeBinaryUUID, u.id[:])
	doc = bsoncore.AppendStringElement(doc, "user", u.name)
	doc = bsoncore.AppendStringElement(doc, "db", u.db)
	doc = u.appendRoles(doc, "roles")
	j, doc := bsoncore.AppendArrayElementStart(doc, "mechanisms")
	for n, name := range u.mechanisms() {
		doc = bsoncore.AppendStringElement(doc, index(n), name)
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, j)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

func (u *user) appendRoles(doc []byte, field string) []byte {
	i, doc := bsoncore.AppendArrayElementStart(doc, field)
	for n, r := range u.roles {
		doc = bsoncore.AppendDocumentElement(doc, index(n), pair("role", r.Name, r.DB))
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, i)
	return doc
}

// userArgs are the arguments of the commands about one user.
type userArgs struct {
	User
	hasPassword, hasRoles bool
	mechanisms            []string
}

func parseUser(db string, cmd bson.Raw) (userArgs, error) {
	args := userArgs{User: User{DB: db}}
	it := rawbson.NewIter(cmd)
	it.Next()
	name, ok := it.Text()
	if !ok {
		return args, servererr.New(servererr.TypeMismatch, "\"%s\" had the wrong type. Expected string", it.Name())
	}
	args.Name = strings.Clone(name)
	for it.Next() {
		var err error
		switch it.Name() {
		case "pwd":
			var text string
			text, args.hasPassword = it.Text()
			args.Password = strings.Clone(text)
			if !args.hasPassword {
				err = servererr.New(servererr.TypeMismatch, "\"pwd\" had the wrong type. Expected string")
			}
		case "roles":
			args.hasRoles = true
			err = args.parseRoles(&it.Elem)
		case "mechanisms":
			err = args.parseMechanisms(&it.Elem)
		case "customData", "authenticationRestrictions":
			if !emptyValue(&it.Elem) {
				err = servererr.New(servererr.NotImplemented, "%s of users is not implemented here", it.Name())
			}
		case "digestPassword":
			if b, ok := it.Bool(); ok && !b {
				err = servererr.New(servererr.BadValue, "Use of SCRAM-SHA-256 requires undigested passwords")
			}
		}
		if err != nil {
			return args, err
		}
	}
	return args, nil
}

// emptyValue reports whether a document or array has nothing in it.
func emptyValue(e *rawbson.Elem) bool {
	return (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) && len(e.Value) == rawbson.MinSize
}

func (a *userArgs) parseRoles(e *rawbson.Elem) error {
	array, ok := e.Array()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "\"roles\" had the wrong type. Expected array")
	}
	it := rawbson.NewIter(array)
	for it.Next() {
		name, err := nameOf(a.DB, "role", &it.Elem)
		if err != nil {
			return err
		}
		a.Roles = append(a.Roles, Role{Name: name.name, DB: name.db})
	}
	return nil
}

func (a *userArgs) parseMechanisms(e *rawbson.Elem) error {
	array, _ := e.Array()
	it := rawbson.NewIter(array)
	for it.Next() {
		name, _ := it.Text()
		if _, ok := mechanisms[name]; !ok {
			return servererr.New(servererr.BadValue, "Unknown auth mechanism '%s'", name)
		}
		a.mechanisms = append(a.mechanisms, strings.Clone(name))
	}
	if len(a.mechanisms) == 0 {
		return servererr.New(servererr.BadValue, "mechanisms field must not be empty")
	}
	return nil
}

// refused converts an error to the server's form.
func refused(err error) error {
	if _, ok := errors.AsType[*servererr.Error](err); ok {
		return err
	}
	return servererr.New(servererr.BadValue, "%s", err)
}
