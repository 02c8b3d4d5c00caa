package command

func cursorSpecs() []spec {
	return []spec{
		{
			name: "getMore", run: runGetMore, fields: moreFields, secondary: anyMember, inTxn: true, ownMaxTime: true,
		},
		{
			name: "killCursors", run: runKillCursors, fields: []string{"cursors"}, secondary: anyMember, inTxn: true,
		},
	}
}
