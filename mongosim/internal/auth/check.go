package auth

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

// Check returns Unauthorized unless a user of the connection may do the action on
// the resource: a collection, with coll "" a database, with db "" the cluster. The
// empty action only requires a login.
func (m *Manager) Check(c *dispatch.Conn, action, db, coll string, cmd bson.Raw) error {
	users := m.loggedIn(c)
	if len(users) == 0 {
		name := ""
		if it := rawbson.NewIter(cmd); it.Next() {
			name = it.Name()
		}
		return servererr.New(servererr.Unauthorized, "command %s requires authentication", name)
	}
	if action == "" {
		return nil
	}
	wanted := reach(db, coll)
	for _, u := range users {
		for i := range u.powers {
			if u.powers[i].allows(action, wanted) {
				return nil
			}
		}
	}
	e, _ := rawbson.Lookup(cmd, "$db")
	name, _ := e.Text()
	return servererr.New(servererr.Unauthorized, "not authorized on %s to execute command %s", name, bsontext.Document(masked(cmd)))
}

// masked replaces passwords, as the server does before it prints a command.
func masked(cmd bson.Raw) bson.Raw {
	if _, ok := rawbson.Lookup(cmd, "pwd"); !ok {
		return cmd
	}
	i, doc := bsoncore.AppendDocumentStart(nil)
	it := rawbson.NewIter(cmd)
	for it.Next() {
		if it.Is("pwd") {
			doc = bsoncore.AppendStringElement(doc, "pwd", "xxx")
			continue
		}
		doc = append(bsoncore.AppendHeader(doc, bsoncore.Type(it.Type), it.Name()), it.Value...)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// reach lists the resources whose privileges cover a target. Privileges on any database do not
// cover local and config, and privileges on a whole database do not cover collections that are not
// normal: system collections, and local.replset.* (authorization_session_impl.cpp,
// NamespaceString::isNormalCollection).
func reach(db, coll string) []resource {
	list := []resource{{kind: anything}}
	open := db != "local" && db != "config"
	switch {
	case db == "":
		return append(list, resource{kind: cluster})
	case coll == "":
		if open {
			list = append(list, resource{kind: anyNormal})
		}
		return append(list, resource{kind: database, db: db})
	case strings.HasPrefix(coll, "system.buckets."):
		list = append(list, resource{kind: anyBuckets})
	case !strings.HasPrefix(coll, "system.") && (db != "local" || !strings.HasPrefix(coll, "replset.")):
		if open {
			list = append(list, resource{kind: anyNormal})
		}
		list = append(list, resource{kind: database, db: db})
	}
	return append(list, resource{kind: collection, coll: coll}, resource{kind: collection, db: db, coll: coll})
}
