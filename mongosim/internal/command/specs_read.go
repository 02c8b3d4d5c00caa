package command

func readSpecs() []spec {
	return []spec{
		{
			name: "find", run: runFind, structName: "FindCommandRequest", fields: findFields, secondary: optIn,
			inTxn: true, concern: true, snapshot: true, check: mayOn("find"),
		},
		{
			name: "aggregate", run: runAggregate, fields: aggregateFields, secondary: optIn,
			inTxn: true, concern: true, snapshot: true, check: mayOn("find"),
		},
		{
			name: "count", run: runCount, fields: countFields, secondary: optIn, concern: true, check: mayOn("find"),
		},
		{
			name: "distinct", run: runDistinct, fields: distinctFields, secondary: optIn,
			inTxn: true, concern: true, snapshot: true, check: mayOn("find"),
		},
		{name: "explain", run: refuseRead, secondary: optIn, check: needsDB("find")},
		{name: "mapReduce", aliases: []string{"mapreduce"}, run: refuseRead, secondary: optIn, check: mayOn("find")},
	}
}
