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
	// anyNormal is every collection that is not a system collection, and every
	// database, but for local and config.
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

// privilege is what may be done on a resource; nil actions means everything.
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

// The actions of the built-in roles, as the server defines them.
var (
	readActions = []string{
		"changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections", "listIndexes", "planCacheRead",
	}
	writeActions = []string{
		"convertToCapped", "createCollection", "createIndex", "dropCollection", "dropIndex", "emptycapped", "insert", "remove",
		"renameCollectionSameDB", "update",
	}
	dbAdminActions = []string{
		"bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped", "createCollection", "createIndex",
		"dbStats", "dropCollection", "dropDatabase", "dropIndex", "enableProfiler", "listCollections", "listIndexes",
		"planCacheIndexFilter", "planCacheRead", "planCacheWrite", "reIndex", "renameCollectionSameDB", "storageDetails", "validate",
	}
	userAdminActions = []string{
		"changeCustomData", "changePassword", "createRole", "createUser", "dropRole", "dropUser", "grantRole", "revokeRole",
		"setAuthenticationRestriction", "viewRole", "viewUser",
	}
	monitorActions = []string{
		"checkFreeMonitoringStatus", "connPoolStats", "getCmdLineOpts", "getDefaultRWConcern", "getLog", "getParameter",
		"getShardMap", "hostInfo", "inprog", "listDatabases", "listSessions", "listShards", "netstat", "replSetGetConfig",
		"replSetGetStatus", "serverStatus", "setFreeMonitoring", "shardingState", "top", "useUUID",
	}
	hostActions = []string{
		"applicationMessage", "connPoolSync", "dropConnections", "flushRouterConfig", "fsync", "invalidateUserCache",
		"killAnyCursor", "killAnySession", "killop", "logRotate", "oidReset", "resync", "rotateCertificates", "setParameter",
		"shutdown", "touch", "unlock",
	}
	managerActions = []string{
		"addShard", "appendOplogNote", "applicationMessage", "cleanupOrphaned", "flushRouterConfig", "getDefaultRWConcern",
		"listSessions", "listShards", "removeShard", "replSetConfigure", "replSetGetConfig", "replSetGetStatus",
		"replSetStateChange", "resync", "setDefaultRWConcern", "setFeatureCompatibilityVersion", "setFreeMonitoring",
	}
	systemCollections = []string{"system.users", "system.roles", "system.version", "system.new_users", "system.backup_users"}
)

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

func one(action ...string) []string { return action }

// databaseRoles are those that every database has.
func databaseRole(r Role) ([]privilege, bool) {
	whole := resource{kind: database, db: r.DB}
	inSystem := func(coll string) resource { return resource{kind: collection, db: r.DB, coll: coll} }
	read := []privilege{on(whole, readActions), on(inSystem("system.js"), readActions)}
	write := []privilege{on(whole, readActions, writeActions), on(inSystem("system.js"), readActions, writeActions)}
	admin := []privilege{
		on(whole, dbAdminActions), on(inSystem("system.profile"), readActions, one("convertToCapped", "createCollection", "dropCollection")),
	}
	users := []privilege{on(whole, userAdminActions)}
	switch r.Name {
	case "read":
		return read, true
	case "readWrite":
		return write, true
	case "dbAdmin":
		return admin, true
	case "userAdmin":
		return users, true
	case "dbOwner":
		return slices.Concat(write, admin, users), true
	}
	return nil, false
}

// builtin returns what a built-in role may do; false if there is no such role in
// its database.
func builtin(r Role) ([]privilege, bool) {
	if powers, ok := databaseRole(r); ok {
		return powers, true
	}
	if r.DB != "admin" {
		return nil, false
	}
	powers := adminRole(r.Name)
	return powers, powers != nil
}

// anyDatabase is a role's actions in every database but local and config.
func anyDatabase(extra []string, actions ...[]string) []privilege {
	return []privilege{
		on(resource{kind: anyNormal}, actions...), on(resource{kind: anyBuckets}, actions...),
		on(resource{kind: collection, coll: "system.js"}, actions...), on(resource{kind: cluster}, one("listDatabases"), extra),
	}
}

// adminRole returns what a role of the database admin may do, nil if there is none.
func adminRole(name string) []privilege {
	everywhere, server := resource{kind: anyNormal}, resource{kind: cluster}
	switch name {
	case "readAnyDatabase":
		return anyDatabase(nil, readActions)
	case "readWriteAnyDatabase":
		return anyDatabase(nil, readActions, writeActions)
	case "dbAdminAnyDatabase":
		return append(anyDatabase(one("applyOps"), dbAdminActions),
			on(resource{kind: collection, coll: "system.profile"}, readActions))
	case "userAdminAnyDatabase":
		powers := []privilege{
			on(everywhere, userAdminActions),
			on(server, one("authSchemaUpgrade", "invalidateUserCache", "listDatabases", "viewUser")),
		}
		for _, coll := range systemCollections {
			powers = append(powers, on(resource{collection, "admin", coll}, readActions))
		}
		return powers
	case "clusterMonitor":
		return clusterMonitor()
	case "hostManager":
		return []privilege{on(server, hostActions), on(everywhere, one("killCursors", "killAnyCursor"))}
	case "clusterManager":
		return clusterManager()
	case "clusterAdmin":
		return slices.Concat(adminRole("clusterMonitor"), adminRole("hostManager"), adminRole("clusterManager"),
			[]privilege{on(everywhere, one("dropDatabase"))})
	case "backup":
		return backup()
	case "restore":
		return restore()
	case "root":
		return slices.Concat(adminRole("readWriteAnyDatabase"), adminRole("dbAdminAnyDatabase"), adminRole("userAdminAnyDatabase"),
			adminRole("clusterAdmin"), adminRole("restore"), []privilege{on(everywhere, one("validate"))})
	case "__system":
		return []privilege{{on: resource{kind: anything}}}
	}
	return nil
}

func clusterMonitor() []privilege {
	look := one("collStats", "dbStats", "getDatabaseVersion", "getShardVersion", "indexStats")
	return []privilege{
		on(resource{kind: cluster}, monitorActions),
		on(resource{kind: anyNormal}, look),
		on(resource{kind: database, db: "config"}, look, readActions),
		on(resource{kind: database, db: "local"}, look, readActions),
		on(resource{collection, "local", "system.replset"}, one("find", "collStats", "dbHash", "dbStats", "killCursors", "listIndexes")),
		on(resource{kind: collection, coll: "system.js"}, readActions),
		on(resource{kind: collection, coll: "system.profile"}, one("find")),
	}
}

func clusterManager() []privilege {
	return []privilege{
		on(resource{kind: cluster}, managerActions),
		on(resource{kind: anyNormal}, one("clearJumboFlag", "enableSharding", "moveChunk", "refineCollectionShardKey",
			"reshardCollection", "splitChunk", "splitVector")),
		on(resource{kind: database, db: "config"}, readActions, writeActions),
		on(resource{kind: database, db: "local"}, one("find", "insert", "remove", "update", "listCollections", "listIndexes")),
		on(resource{collection, "local", "system.replset"}, readActions),
	}
}

func backup() []privilege {
	look := one("find", "listCollections", "listIndexes", "collStats")
	powers := []privilege{
		on(resource{kind: cluster}, one("appendOplogNote", "getParameter", "listDatabases", "serverStatus", "useUUID")),
		on(resource{kind: anyNormal}, look),
		on(resource{kind: anyBuckets}, look),
		on(resource{kind: database, db: "config"}, look),
		on(resource{kind: database, db: "local"}, look),
		on(resource{collection, "config", "settings"}, one("find", "insert", "update")),
		on(resource{kind: collection, coll: "system.js"}, look),
		on(resource{kind: collection, coll: "system.views"}, look),
		on(resource{kind: collection, coll: "system.profile"}, look),
		on(resource{collection, "local", "system.replset"}, look),
	}
	for _, coll := range systemCollections {
		powers = append(powers, on(resource{collection, "admin", coll}, one("find", "collStats", "listIndexes")))
	}
	return powers
}

func restore() []privilege {
	write := one("bypassDocumentValidation", "collMod", "convertToCapped", "createCollection", "createIndex", "dropCollection", "insert")
	powers := []privilege{
		on(resource{kind: anything}, one("listCollections")),
		on(resource{kind: cluster}, one("forceUUID", "getParameter", "useUUID")),
		on(resource{kind: anyNormal}, write, userAdminActions),
		on(resource{kind: anyBuckets}, write),
		on(resource{kind: database, db: "config"}, write),
		on(resource{kind: database, db: "local"}, write),
		on(resource{kind: collection, coll: "system.js"}, write),
	}
	for _, coll := range systemCollections {
		powers = append(powers, on(resource{collection, "admin", coll}, readActions, writeActions))
	}
	return powers
}
