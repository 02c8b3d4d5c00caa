package auth

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// role is one that createRole made. It is replaced, never changed.
type role struct {
	privileges []privilege
	inherits   []Role
}

// powers returns the privileges of a role, false if there is no such role. Callers
// hold mu or have the Manager for themselves.
func (m *Manager) powers(r Role) ([]privilege, bool) {
	made := m.roles[r]
	if made == nil {
		return builtin(r, m.major)
	}
	powers := made.privileges
	for _, from := range made.inherits {
		more, ok := m.powers(from)
		if !ok {
			return nil, false
		}
		powers = append(slices.Clip(powers), more...)
	}
	return powers, true
}

// CreateRole is createRole: {createRole, privileges, roles}.
func (m *Manager) CreateRole(db string, cmd bson.Raw) error {
	args := userArgs{User: User{DB: db}}
	made := &role{}
	it := rawbson.NewIter(cmd)
	it.Next()
	name, ok := it.Text()
	if !ok || name == "" {
		return servererr.New(servererr.BadValue, "Role name must be non-empty")
	}
	hasPrivileges, hasRoles := false, false
	for it.Next() {
		var err error
		switch it.Name() {
		case "privileges":
			hasPrivileges = true
			made.privileges, err = parsePrivileges(&it.Elem)
		case "roles":
			hasRoles = true
			err = args.parseRoles(&it.Elem)
		case "authenticationRestrictions":
			if !emptyValue(&it.Elem) {
				err = servererr.New(servererr.NotImplemented, "authenticationRestrictions of roles is not implemented here")
			}
		}
		if err != nil {
			return err
		}
	}
	if !hasPrivileges || !hasRoles {
		return servererr.New(servererr.BadValue, "\"createRole\" command requires \"privileges\" and \"roles\" arrays")
	}
	made.inherits = args.Roles
	r := Role{Name: strings.Clone(name), DB: db}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.powers(r); there {
		return servererr.New(51002, "Role \"%s@%s\" already exists", r.Name, r.DB)
	}
	for _, from := range made.inherits {
		if _, there := m.powers(from); !there {
			return noSuchRole(from)
		}
	}
	// A role of another database than admin is about its own database only.
	for _, p := range made.privileges {
		if db != "admin" && (p.on.db != db || p.on.kind == cluster || p.on.kind == anything) {
			return servererr.New(servererr.BadValue, "Roles on the '%s' database cannot be granted privileges that target other databases or the cluster", db)
		}
	}
	m.roles[r] = made
	return nil
}

// parsePrivileges reads [{resource, actions}].
func parsePrivileges(e *rawbson.Elem) ([]privilege, error) {
	array, ok := e.Array()
	if !ok {
		return nil, servererr.New(servererr.TypeMismatch, "\"privileges\" had the wrong type. Expected array")
	}
	var list []privilege
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, _ := it.Document()
		on, _ := rawbson.Lookup(doc, "resource")
		what, ok := on.Document()
		if !ok {
			return nil, servererr.New(servererr.FailedToParse, "missing resource field")
		}
		where, err := parseResource(what)
		if err != nil {
			return nil, err
		}
		p := privilege{on: where, actions: map[string]bool{}}
		field, _ := rawbson.Lookup(doc, "actions")
		actions, _ := field.Array()
		for names := rawbson.NewIter(actions); names.Next(); {
			action, _ := names.Text()
			p.actions[strings.Clone(action)] = true
		}
		if len(p.actions) == 0 {
			return nil, servererr.New(servererr.FailedToParse, "missing actions field")
		}
		list = append(list, p)
	}
	return list, nil
}

// parseResource reads what a privilege is about.
func parseResource(doc bson.Raw) (resource, error) {
	text := func(name string) (string, bool) {
		e, _ := rawbson.Lookup(doc, name)
		text, ok := e.Text()
		return strings.Clone(text), ok
	}
	if e, ok := rawbson.Lookup(doc, "cluster"); ok && e.Truth() {
		return resource{kind: cluster}, nil
	}
	if e, ok := rawbson.Lookup(doc, "anyResource"); ok && e.Truth() {
		return resource{kind: anything}, nil
	}
	db, hasDB := text("db")
	if name, ok := text("system_buckets"); ok {
		if db != "" || name != "" {
			return resource{}, servererr.New(servererr.NotImplemented, "the buckets of one database or series as a resource are not implemented here")
		}
		return resource{kind: anyBuckets}, nil
	}
	coll, hasColl := text("collection")
	switch {
	case !hasDB || !hasColl:
		return resource{}, servererr.New(servererr.FailedToParse, "resource must have either db/collection, cluster, or anyResource")
	case db == "" && coll == "":
		return resource{kind: anyNormal}, nil
	case coll == "":
		return resource{kind: database, db: db}, nil
	default:
		return resource{kind: collection, db: db, coll: coll}, nil
	}
}
