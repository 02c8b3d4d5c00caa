package read

import "github.com/oplogrep/replicator/mongosim/internal/command/dispatch"

func listSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{
			Name: "listDatabases", Run: runListDatabases, Fields: listDatabasesFields, Secondary: dispatch.OptIn, AdminOnly: true,
			Check: mayListDatabases,
		},
		{
			Name: "listCollections", Run: runListCollections, Fields: listCollectionsFields, Secondary: dispatch.OptIn,
			Check: mayListCollections,
		},
		{
			Name: "listIndexes", Run: runListIndexes, Fields: listIndexesFields, Secondary: dispatch.OptIn,
			Check: dispatch.MayOn("listIndexes"),
		},
		{
			Name: "collStats", Aliases: []string{"collstats"}, Run: runCollStats,
			Fields: []string{"scale", "verbose", "waitForLock", "numericOnly"}, Secondary: dispatch.OptIn, Check: dispatch.MayOn("collStats"),
		},
		{
			Name: "dbStats", Aliases: []string{"dbstats"}, Run: runDBStats,
			Fields: []string{"scale", "freeStorage"}, Secondary: dispatch.OptIn, Check: dispatch.NeedsDB("dbStats"),
		},
		{Name: "dbHash", Aliases: []string{"dbhash"}, Run: runDBHash, Secondary: dispatch.AnyMember, Check: dispatch.NeedsDB("dbHash")},
		{Name: "validate", Run: refuseRead, Secondary: dispatch.AnyMember, Check: dispatch.MayOn("validate")},
		{Name: "top", Run: refuseRead, Secondary: dispatch.AnyMember, AdminOnly: true},
	}
}
