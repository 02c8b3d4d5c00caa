package command

func listSpecs() []spec {
	return []spec{
		{
			name: "listDatabases", run: runListDatabases, fields: listDatabasesFields, secondary: optIn, adminOnly: true,
			check: mayListDatabases,
		},
		{
			name: "listCollections", run: runListCollections, fields: listCollectionsFields, secondary: optIn,
			check: mayListCollections,
		},
		{
			name: "listIndexes", run: runListIndexes, fields: listIndexesFields, secondary: optIn,
			check: mayOn("listIndexes"),
		},
		{
			name: "collStats", aliases: []string{"collstats"}, run: runCollStats,
			fields: []string{"scale", "verbose", "waitForLock", "numericOnly"}, secondary: optIn, check: mayOn("collStats"),
		},
		{
			name: "dbStats", aliases: []string{"dbstats"}, run: runDBStats,
			fields: []string{"scale", "freeStorage"}, secondary: optIn, check: needsDB("dbStats"),
		},
		{name: "dataSize", aliases: []string{"datasize"}, run: runDataSize, secondary: optIn, check: needsDB("find")},
		{name: "dbHash", aliases: []string{"dbhash"}, run: runDBHash, secondary: anyMember, check: needsDB("dbHash")},
		{name: "validate", run: runValidate, secondary: anyMember, check: mayOn("validate")},
		{name: "top", run: refuseRead, secondary: anyMember, adminOnly: true},
	}
}
