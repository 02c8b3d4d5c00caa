package auth

import (
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// kind is a kind of resource.
type kind uint8

const (
	anything kind = iota
	// anyNormal is every normal collection, and every database, but for those of
	// local and config and themselves.
	anyNormal
	anyBuckets
	cluster
	database
	// collection with an empty db is the name in any database.
	collection
)

type resource struct {
	kind     kind
	db, coll string
}

// privilege is a resource with the actions permitted on it; nil actions means
// everything.
type privilege struct {
	on      resource
	actions map[string]bool
}

func (p *privilege) allows(action string, wanted []resource) bool {
	return (p.actions == nil || p.actions[action]) && slices.Contains(wanted, p.on)
}

// document is {resource, actions} of connectionStatus and usersInfo.
func (p *privilege) document() []byte {
	var on []byte
	switch p.on.kind {
	case anything:
		on = bsoncore.AppendBooleanElement(nil, "anyResource", true)
	case cluster:
		on = bsoncore.AppendBooleanElement(nil, "cluster", true)
	case anyBuckets:
		on = bsoncore.AppendStringElement(bsoncore.AppendStringElement(nil, "db", ""), "system_buckets", "")
	default:
		on = bsoncore.AppendStringElement(bsoncore.AppendStringElement(nil, "db", p.on.db), "collection", p.on.coll)
	}
	names := slices.Sorted(maps.Keys(p.actions))
	if p.actions == nil {
		names = []string{"anyAction"}
	}
	doc := bsoncore.AppendDocumentElement(nil, "resource", bsoncore.BuildDocument(nil, on))
	i, doc := bsoncore.AppendArrayElementStart(doc, "actions")
	for n, name := range names {
		doc = bsoncore.AppendStringElement(doc, index(n), name)
	}
	doc, _ = bsoncore.AppendArrayEnd(doc, i)
	return bsoncore.BuildDocument(nil, doc)
}

// on makes a privilege.
func on(r resource, actions ...[]string) privilege {
	set := map[string]bool{}
	for _, list := range actions {
		for _, a := range list {
			set[a] = true
		}
	}
	return privilege{on: r, actions: set}
}

// builtin returns the privileges of a built-in role in a server's major version;
// false if there is no such role in its database.
func builtin(r Role, major int) ([]privilege, bool) {
	if inherited, ok := inherits[r.Name]; ok || rows[r.Name] != nil {
		if r.DB != "admin" && !anyDB[r.Name] {
			return nil, false
		}
		powers := rowsOf(r, major)
		for _, from := range inherited {
			if from.DB == "" {
				from.DB = r.DB
			}
			more, _ := builtin(from, major)
			powers = append(powers, more...)
		}
		return powers, true
	}
	if r.Name == "__system" && r.DB == "admin" {
		return []privilege{{on: resource{kind: anything}}}, true
	}
	return nil, false
}

// rowsOf returns the privileges that a role has by its own rows.
func rowsOf(r Role, major int) []privilege {
	powers := make([]privilege, 0, len(rows[r.Name]))
	for _, row := range rows[r.Name] {
		if major < row.since || row.on.kind == anyBuckets && major < timeseriesSince {
			continue
		}
		where := row.on
		if where.db == own {
			where.db = r.DB
		}
		powers = append(powers, on(where, row.actions...))
	}
	return powers
}
