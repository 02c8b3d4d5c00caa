package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/pipeline/failure"
)

const seePrivileges = "docs/privileges.md lists what each side needs."

// grants are the privileges of the user that is logged in.
type grants struct {
	// open: access control is disabled.
	open bool
	user string
	list []grant
}

type grant struct {
	any, cluster, buckets, named bool
	db, collection               string
	actions                      map[string]bool
}

// allows reports whether an action is granted. A server's internal user is granted
// anyAction.
func (p *grant) allows(action string) bool { return p.actions[action] || p.actions["anyAction"] }

// anyDB stands for databases that the settings do not name.
const anyDB = ""

// may reports whether an action is allowed on all ordinary collections of a
// database.
func (g *grants) may(db, action string) bool {
	return g.open || slices.ContainsFunc(g.list, func(p grant) bool {
		return p.allows(action) && (p.any || p.named && p.collection == "" && (p.db == "" || p.db == db))
	})
}

// mayOn reports whether an action is allowed on one collection. A privilege on a
// database, or on all, does not include its system collections.
func (g *grants) mayOn(db, collection, action string) bool {
	if g.open || !strings.HasPrefix(collection, "system.") && g.may(db, action) {
		return true
	}
	return slices.ContainsFunc(g.list, func(p grant) bool {
		return p.allows(action) && (p.any || p.named && p.collection == collection && (p.db == "" || p.db == db))
	})
}

// mayCluster reports whether an action on the cluster is allowed.
func (g *grants) mayCluster(action string) bool {
	return g.open || slices.ContainsFunc(g.list, func(p grant) bool { return p.allows(action) && (p.any || p.cluster) })
}

// mayBuckets reports whether an action on buckets of time-series collections is
// allowed.
func (g *grants) mayBuckets(action string) bool {
	return g.open || slices.ContainsFunc(g.list, func(p grant) bool { return p.allows(action) && (p.any || p.buckets) })
}

func readGrants(ctx context.Context, s *server) (*grants, error) {
	reply, err := ask(ctx, s.caller, "admin", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if err != nil {
		return nil, err
	}
	info, _ := reply.Lookup("authInfo").DocumentOK()
	g := &grants{open: true}
	for _, u := range documents(info, "authenticatedUsers") {
		g.open = false
		user, _ := u.Lookup("user").StringValueOK()
		db, _ := u.Lookup("db").StringValueOK()
		g.user = db + "." + user
	}
	for _, p := range documents(info, "authenticatedUserPrivileges") {
		on, _ := p.Lookup("resource").DocumentOK()
		one := grant{actions: map[string]bool{}}
		one.any, _ = on.Lookup("anyResource").BooleanOK()
		one.cluster, _ = on.Lookup("cluster").BooleanOK()
		_, err := on.LookupErr("system_buckets")
		one.buckets = err == nil
		one.db, _ = on.Lookup("db").StringValueOK()
		one.collection, one.named = on.Lookup("collection").StringValueOK()
		actions, _ := p.Lookup("actions").ArrayOK()
		values, _ := actions.Values()
		for _, v := range values {
			if action, ok := v.StringValueOK(); ok {
				one.actions[action] = true
			}
		}
		g.list = append(g.list, one)
	}
	return g, nil
}

func documents(doc bson.Raw, field string) []bson.Raw {
	a, ok := doc.Lookup(field).ArrayOK()
	if !ok {
		return nil
	}
	values, _ := a.Values()
	var all []bson.Raw
	for _, v := range values {
		if d, ok := v.DocumentOK(); ok {
			all = append(all, d)
		}
	}
	return all
}

// oplogDB is the database of the oplog, and firstEntry reads the time of an entry of it.
const oplogDB = "local"

var firstEntry = bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1}, {Key: "projection", Value: bson.D{{Key: "ts", Value: 1}}}}

// sourcePrivileges tries the reads on the source, and looks up the privileges for
// writes.
func (c *checker) sourcePrivileges(ctx context.Context, s *server) error {
	c.report.MayReport = true
	// A link that starts now looks for open transactions.
	begins := c.copying() || !c.report.Found && c.cfg.StartAt.T == 0
	checks := []struct {
		what, db string
		cmd      bson.D
		needed   bool
		without  string
	}{
		{oplogDB + ".oplog.rs", oplogDB, firstEntry, true, ""},
		{
			"config.transactions", "config",
			bson.D{{Key: "find", Value: "transactions"}, {Key: "limit", Value: 1}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}}},
			begins, "reading begins with an entry that is given, so nothing of it is needed",
		},
		{"replSetGetConfig", "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}, false, "hidden members, tags, votes and delays are not known"},
		{"replSetGetStatus", "admin", bson.D{{Key: "replSetGetStatus", Value: 1}}, false, "less can be shown of the members"},
	}
	for _, check := range checks {
		name := "source privilege to read " + check.what
		if strings.HasPrefix(check.what, "replSet") {
			name = "source privilege " + check.what
		}
		reply, err := ask(ctx, s.caller, check.db, check.cmd)
		if err != nil {
			e, ok := refusal(err)
			switch {
			case !ok, check.needed && failure.Transient(err):
				return err
			case check.needed && isDenied(err):
				c.denied(Fail, name, "Grant the role clusterMonitor, or find on it.", "%s", told(e))
			case check.needed:
				c.fail(name, "", "%s", told(e))
			default:
				c.denied(Warn, name, "Grant the role clusterMonitor.", "none: %s", check.without)
			}
			continue
		}
		c.ok(name, "granted")
		if check.what == "replSetGetConfig" {
			c.report.SourceConfig, _ = reply.Lookup("config").DocumentOK()
		}
	}
	g := s.grants
	if g == nil {
		return nil
	}
	c.report.MayReport = g.mayCluster("internal")
	switch c.cfg.Feedback {
	case feedback.None:
	case feedback.Member:
		if !c.report.MayReport {
			c.denied(Fail, "source privilege to report as a member", "Grant internal on the cluster with a custom role, or use another --feedback.",
				"user %s has no privilege internal on the cluster", g.user)
			return nil
		}
		c.ok("source privilege to report as a member", "granted")
	case feedback.Document:
		if missing := missing(g, c.cfg.MetaDB, "positions", "insert", "update"); missing != "" {
			c.denied(Fail, "source privilege to write positions", "Grant readWrite on the database "+c.cfg.MetaDB+" of the source.",
				"user %s may not %s", g.user, missing)
			return nil
		}
		c.ok("source privilege to write positions", "granted")
	}
	return nil
}

// missing lists the actions that are not allowed on a collection.
func missing(g *grants, db, collection string, actions ...string) string {
	var none []string
	for _, a := range actions {
		if !g.mayOn(db, collection, a) {
			none = append(none, a)
		}
	}
	return strings.Join(none, ", ")
}

// The actions of a link on the target.
var (
	writes = []string{
		"find", "insert", "update", "remove", "bypassDocumentValidation", "createCollection", "dropCollection",
		"renameCollectionSameDB", "createIndex", "dropIndex", "collMod", "listCollections", "listIndexes",
	}
	keeps = []string{"find", "insert", "update", "remove", "createCollection"}
)

func (c *checker) targetPrivileges(_ context.Context, s *server) error {
	const check = "target privileges"
	g := s.grants
	if g == nil || g.open {
		return nil
	}
	type need struct {
		db, name string
		actions  []string
	}
	needs := []need{{c.cfg.MetaDB, c.cfg.MetaDB, keeps}}
	if dbs, ok := c.targetDBs(); ok {
		for _, db := range dbs {
			needs = append(needs, need{db, db, writes})
		}
	} else {
		needs = append(needs, need{anyDB, "any database", writes})
	}
	good := !c.cfg.UsersAndRoles || c.writesUsers(check, g)
	for _, n := range needs {
		var none []string
		for _, a := range n.actions {
			if !g.may(n.db, a) {
				none = append(none, a)
			}
		}
		if len(none) > 0 {
			good = false
			c.denied(Fail, check, "Grant readWriteAnyDatabase and dbAdminAnyDatabase, or both roles on that database. "+seePrivileges,
				"user %s may not %s on %s", g.user, strings.Join(none, ", "), n.name)
		}
	}
	if good {
		c.ok(check, "user %s may write and run DDL", g.user)
	}
	var none []string
	for _, a := range []string{"insert", "update", "remove"} {
		if !g.mayBuckets(a) {
			none = append(none, a)
		}
	}
	// Servers before 5.0 have no time series.
	if len(none) > 0 && !s.version.before(version{5, 0}) {
		c.denied(Warn, "target privileges for time series", "Grant readWriteAnyDatabase if the source has time-series collections: without it the first write to one ends the link.",
			"user %s may not %s on system.buckets", g.user, strings.Join(none, ", "))
	}
	return nil
}

// watchable tries the read of the target's oplog by which foreign writes are found.
func (c *checker) watchable(ctx context.Context, s *server) error {
	const check = "target privilege to watch for foreign writes"
	if g := s.grants; g == nil || g.open || c.cfg.Guard != guard.Alarm && c.cfg.Guard != guard.Stop {
		return nil
	}
	_, err := ask(ctx, s.caller, oplogDB, firstEntry)
	switch _, refused := refusal(err); {
	case err == nil:
		c.ok(check, "granted")
	case isDenied(err) && c.cfg.Guard == guard.Stop:
		c.denied(Fail, check, "Grant the role clusterMonitor, or find on local.oplog.rs; or choose another --guard.",
			"user %s may not read local.oplog.rs, as --guard=stop needs", s.grants.user)
	case isDenied(err):
		c.denied(Warn, check, "Grant the role clusterMonitor, or find on local.oplog.rs; or give --guard=off.",
			"user %s may not read local.oplog.rs: writes of others to the target are not noticed", s.grants.user)
	case !refused || failure.Transient(err):
		return err
	}
	return nil
}

// usersRole is the command that creates a role that may write users and roles. Of the
// built-in roles, only __system may, not even root: restore does not cover
// system.roles.
const usersRole = `db.getSiblingDB("admin").createRole({role: "replicatorUsersAndRoles", roles: [], privileges: [` +
	`{resource: {db: "admin", collection: "system.users"}, actions: [` + usersActions + `]}, ` +
	`{resource: {db: "admin", collection: "system.roles"}, actions: [` + usersActions + `]}]})`

const usersActions = `"find", "insert", "update", "remove", "bypassDocumentValidation", "createCollection", "createIndex", "dropIndex", "collMod", "listIndexes"`

// writesUsers checks whether users and roles may be written.
func (c *checker) writesUsers(check string, g *grants) bool {
	good := true
	for _, collection := range []string{"system.users", "system.roles"} {
		var actions []string
		for a := range strings.SplitSeq(usersActions, ", ") {
			actions = append(actions, strings.Trim(a, `"`))
		}
		if none := missing(g, "admin", collection, actions...); none != "" {
			good = false
			c.denied(Fail, check, "Create a role with "+usersRole+" and grant it: no built-in role is enough, not even root.",
				"user %s may not %s on admin.%s, as --users-and-roles needs", g.user, none, collection)
		}
	}
	return good
}

// some lists the first few of many names.
func some(names []string) string {
	const few = 10
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
