package command

func replSpecs() []spec {
	return []spec{
		{name: "hello", secondary: anyMember, beforeAuth: true, run: runHello},
		{name: "isMaster", aliases: []string{"ismaster"}, secondary: anyMember, beforeAuth: true, run: runHello},
		{name: "_isSelf", secondary: anyMember, beforeAuth: true, run: runIsSelf},

		{
			name: "replSetGetStatus", adminOnly: true, secondary: anyMember, run: runReplSetGetStatus,
			check: needsCluster("replSetGetStatus"),
		},
		{
			name: "replSetGetConfig", adminOnly: true, secondary: anyMember, run: runReplSetGetConfig,
			check: needsCluster("replSetGetConfig"),
		},
		{name: "replSetInitiate", adminOnly: true, secondary: anyMember, run: runReplSetInitiate, check: needsCluster("replSetConfigure")},
		{name: "replSetReconfig", adminOnly: true, secondary: anyMember, run: runReplSetReconfig, check: needsCluster("replSetConfigure")},
		{name: "replSetStepDown", adminOnly: true, secondary: anyMember, run: runReplSetStepDown, check: needsCluster("replSetStateChange")},
		{name: "replSetStepUp", adminOnly: true, secondary: anyMember, run: runReplSetStepUp, check: needsCluster("replSetStateChange")},
		{name: "replSetFreeze", adminOnly: true, secondary: anyMember, run: runReplSetFreeze, check: needsCluster("replSetStateChange")},
		{name: "replSetSyncFrom", adminOnly: true, secondary: anyMember, run: runReplSetSyncFrom, check: needsCluster("replSetStateChange")},
		{
			name: "replSetAbortPrimaryCatchUp", adminOnly: true, secondary: anyMember, run: runAbortCatchUp,
			check: needsCluster("replSetStateChange"),
		},
		{name: "replSetMaintenance", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("replSetStateChange")},
		{name: "replSetResizeOplog", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("replSetResizeOplog")},

		{name: "replSetGetRBID", adminOnly: true, secondary: anyMember, run: runReplSetGetRBID, check: needsCluster("internal")},
		{name: "replSetHeartbeat", adminOnly: true, secondary: anyMember, run: runReplSetHeartbeat, check: needsCluster("internal")},
		{name: "replSetRequestVotes", adminOnly: true, secondary: anyMember, run: runReplSetRequestVotes, check: needsCluster("internal")},
		{name: "replSetUpdatePosition", adminOnly: true, secondary: anyMember, run: runReplSetUpdatePosition, check: needsCluster("internal")},
	}
}
