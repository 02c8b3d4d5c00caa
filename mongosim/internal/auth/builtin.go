package auth

// row is a line of a built-in role: actions, their resource, and the first major
// server version that has it.
type row struct {
	on      resource
	actions [][]string
	since   int
}

// own stands for the database of the role.
const own = "$own"

// timeseriesSince is the first major version with buckets, and with a resource for
// all of them.
const timeseriesSince = 5

// What rows are about.
var (
	everything = resource{kind: anything}
	normal     = resource{kind: anyNormal}
	buckets    = resource{kind: anyBuckets}
	server     = resource{kind: cluster}
)

func in(db string) resource            { return resource{kind: database, db: db} }
func called(coll string) resource      { return resource{kind: collection, coll: coll} }
func exactly(db, coll string) resource { return resource{collection, db, coll} }
func may(action ...string) [][]string  { return [][]string{action} }

// The actions that several roles share.
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
	profileActions   = []string{"convertToCapped", "createCollection", "dropCollection"}
	userAdminActions = []string{
		"changeCustomData", "changePassword", "createRole", "createUser", "dropRole", "dropUser", "grantRole", "revokeRole",
		"setAuthenticationRestriction", "viewRole", "viewUser",
	}
	lookActions    = []string{"collStats", "dbStats", "getDatabaseVersion", "getShardVersion", "indexStats"}
	shardActions   = []string{"clearJumboFlag", "enableSharding", "moveChunk", "refineCollectionShardKey", "reshardCollection", "splitChunk", "splitVector"}
	restoreActions = []string{"bypassDocumentValidation", "collMod", "convertToCapped", "createCollection", "createIndex", "dropCollection", "insert"}
	read           = [][]string{readActions}
	readAndWrite   = [][]string{readActions, writeActions}
	administer     = [][]string{dbAdminActions}
	change         = may("insert", "update", "remove")
	put            = [][]string{restoreActions}
)

// anyDB are the roles that every database has; all others are of the database admin.
var anyDB = map[string]bool{"read": true, "readWrite": true, "dbAdmin": true, "userAdmin": true, "dbOwner": true}

// inherits says which roles a role has in it.
var inherits = map[string][]Role{
	"dbOwner":              {{"readWrite", ""}, {"dbAdmin", ""}, {"userAdmin", ""}},
	"readWriteAnyDatabase": {{"readAnyDatabase", ""}},
	"clusterMonitor":       {{"read", "config"}, {"read", "local"}},
	"clusterManager":       {{"read", "config"}},
	"clusterAdmin":         {{"clusterMonitor", ""}, {"hostManager", ""}, {"clusterManager", ""}},
	"backup":               {{"__queryableBackup", ""}},
	"root": {
		{"clusterAdmin", ""}, {"userAdminAnyDatabase", ""}, {"dbAdminAnyDatabase", ""}, {"readWriteAnyDatabase", ""}, {"backup", ""}, {"restore", ""},
	},
}

// rows are the built-in roles, as builtin_roles.cpp (servers up to 6.0) and
// builtin_roles.yml (since) define them, as far as a replicator and its operators
// need them. Only __system has the rest: to read local.replset.initialSyncId, to
// write admin.system.roles.
var rows = map[string][]row{
	"read":      {{on: in(own), actions: read}, {on: exactly(own, "system.js"), actions: read}},
	"readWrite": {{on: in(own), actions: readAndWrite}, {on: exactly(own, "system.js"), actions: readAndWrite}},
	"userAdmin": {{on: in(own), actions: [][]string{userAdminActions}}},
	"dbAdmin":   {{on: in(own), actions: administer}, {on: exactly(own, "system.profile"), actions: [][]string{readActions, profileActions}}},
	"readAnyDatabase": {
		{on: server, actions: may("listDatabases")},
		{on: normal, actions: read},
		{on: buckets, actions: read},
		{on: called("system.js"), actions: read},
	},
	"readWriteAnyDatabase": {
		{on: normal, actions: readAndWrite}, {on: buckets, actions: readAndWrite}, {on: called("system.js"), actions: readAndWrite},
	},
	"dbAdminAnyDatabase": {
		{on: server, actions: may("applyOps", "listDatabases")},
		{on: normal, actions: administer},
		{on: buckets, actions: administer},
		{on: called("system.profile"), actions: [][]string{readActions, profileActions}},
	},
	"userAdminAnyDatabase": {
		{on: server, actions: may("authSchemaUpgrade", "invalidateUserCache", "listDatabases", "viewUser")},
		{on: normal, actions: [][]string{userAdminActions, {"listCachedAndActiveUsers"}}},
		{on: in("local"), actions: [][]string{userAdminActions}},
		{on: in("config"), actions: [][]string{userAdminActions}},
		{on: exactly("admin", "system.users"), actions: [][]string{readActions, {"createIndex", "dropIndex"}}},
		{on: exactly("admin", "system.roles"), actions: [][]string{readActions, {"createIndex", "dropIndex"}}},
		{on: called("system.users"), actions: read},
		{on: exactly("admin", "system.version"), actions: read},
		{on: exactly("admin", "system.backup_users"), actions: read},
	},
	"clusterMonitor": {
		{on: server, actions: may(
			"checkFreeMonitoringStatus", "connPoolStats", "getCmdLineOpts", "getDefaultRWConcern", "getLog", "getParameter",
			"getShardMap", "hostInfo", "inprog", "listDatabases", "listSessions", "listShards", "netstat", "replSetGetConfig",
			"replSetGetStatus", "serverStatus", "shardingState", "top", "useUUID",
		)},
		{on: normal, actions: [][]string{lookActions}},
		{on: in("config"), actions: [][]string{lookActions}},
		{on: in("local"), actions: [][]string{lookActions}},
		{on: exactly("local", "system.replset"), actions: may("find")},
		{on: exactly("local", "replset.election"), actions: may("find")},
		{on: exactly("local", "replset.minvalid"), actions: may("find")},
		{on: called("system.profile"), actions: may("find")},
	},
	"hostManager": {
		{on: server, actions: may(
			"applicationMessage", "connPoolSync", "dropConnections", "flushRouterConfig", "fsync", "invalidateUserCache",
			"killAnyCursor", "killAnySession", "killop", "logRotate", "replSetResizeOplog", "resync", "rotateCertificates",
			"setParameter", "shutdown", "touch", "unlock",
		)},
		{on: normal, actions: may("killCursors")},
	},
	"clusterManager": {
		{on: server, actions: may(
			"addShard", "appendOplogNote", "applicationMessage", "cleanupOrphaned", "flushRouterConfig", "getDefaultRWConcern",
			"listSessions", "listShards", "removeShard", "replSetConfigure", "replSetGetConfig", "replSetGetStatus",
			"replSetStateChange", "resync", "setDefaultRWConcern", "setFeatureCompatibilityVersion", "setFreeMonitoring",
		)},
		{on: normal, actions: [][]string{shardActions}},
		{on: buckets, actions: [][]string{shardActions}},
		{on: in("config"), actions: [][]string{shardActions}},
		{on: in("local"), actions: [][]string{shardActions}},
		{on: in("config"), actions: change},
		{on: in("local"), actions: change},
		{on: exactly("local", "system.replset"), actions: read},
		{on: exactly("local", "replset.election"), actions: change},
		{on: exactly("local", "replset.minvalid"), actions: change},
	},
	"clusterAdmin": {
		{on: normal, actions: may("dropDatabase")}, {on: everything, actions: may("exportCollection", "importCollection")},
	},
	"__queryableBackup": {
		{on: server, actions: may("getParameter", "listDatabases", "useUUID")},
		{on: everything, actions: may("collStats", "listCollections", "listIndexes")},
		{on: normal, actions: may("find")},
		{on: buckets, actions: may("find")},
		{on: in("config"), actions: may("find")},
		{on: in("local"), actions: may("find")},
		{on: exactly("local", "replset.election"), actions: may("find")},
		{on: exactly("local", "replset.minvalid"), actions: may("find")},
		{on: called("system.js"), actions: may("find")},
		{on: called("system.users"), actions: may("find")},
		{on: called("system.profile"), actions: may("find")},
		{on: exactly("admin", "system.backup_users"), actions: may("find")},
		{on: exactly("admin", "system.roles"), actions: may("find")},
		{on: exactly("admin", "system.version"), actions: may("find")},
		{on: exactly("config", "settings"), actions: may("find")},
	},
	"backup": {
		{on: server, actions: may("appendOplogNote", "serverStatus")},
		{on: server, actions: may("setUserWriteBlockMode"), since: 6},
		{on: exactly("config", "settings"), actions: may("insert", "update")},
	},
	"restore": {
		{on: server, actions: may("forceUUID", "getParameter", "useUUID")},
		{on: server, actions: may("bypassWriteBlockingMode", "setUserWriteBlockMode"), since: 6},
		{on: server, actions: may("applyOps"), since: 7},
		{on: everything, actions: may("listCollections")},
		{on: normal, actions: [][]string{restoreActions, userAdminActions}},
		{on: buckets, actions: put},
		{on: called("system.js"), actions: put},
		{on: in("config"), actions: put},
		{on: in("local"), actions: put},
		{on: exactly("local", "system.replset"), actions: put},
		{on: exactly("local", "replset.election"), actions: put},
		{on: exactly("local", "replset.minvalid"), actions: put},
		{on: exactly("admin", "tempusers"), actions: may("find")},
		{on: exactly("admin", "temproles"), actions: may("find")},
		{on: exactly("admin", "system.backup_users"), actions: put},
		{on: exactly("admin", "system.version"), actions: [][]string{restoreActions, {"find"}}},
		{on: called("system.users"), actions: [][]string{restoreActions, {"find", "update", "remove"}}},
		{on: exactly("admin", "system.roles"), actions: may("createIndex")},
	},
	"root": {{on: everything, actions: may("validate")}},
}
