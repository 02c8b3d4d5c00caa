package read

import "github.com/oplogrep/replicator/mongosim/internal/command/dispatch"

func cursorSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{
			Name: "getMore", Run: runGetMore, Fields: moreFields, Secondary: dispatch.AnyMember, InTxn: true, OwnMaxTime: true,
		},
		{
			Name: "killCursors", Run: runKillCursors, Fields: []string{"cursors"}, Secondary: dispatch.AnyMember, InTxn: true,
		},
	}
}
