package admin

import "github.com/oplogrep/replicator/mongosim/internal/command/dispatch"

func replSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{Name: "hello", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runHello},
		{Name: "isMaster", Aliases: []string{"ismaster"}, Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runHello},

		{
			Name: "replSetGetStatus", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetGetStatus,
			Check: dispatch.NeedsCluster("replSetGetStatus"),
		},
		{
			Name: "replSetGetConfig", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetGetConfig,
			Check: dispatch.NeedsCluster("replSetGetConfig"),
		},
		{Name: "replSetInitiate", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetInitiate, Check: dispatch.NeedsCluster("replSetConfigure")},
		{Name: "replSetReconfig", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetReconfig, Check: dispatch.NeedsCluster("replSetConfigure")},
		{Name: "replSetStepDown", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetStepDown, Check: dispatch.NeedsCluster("replSetStateChange")},
		{Name: "replSetStepUp", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetStepUp, Check: dispatch.NeedsCluster("replSetStateChange")},
		{Name: "replSetFreeze", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetFreeze, Check: dispatch.NeedsCluster("replSetStateChange")},
		{Name: "replSetSyncFrom", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("replSetStateChange")},
		{
			Name: "replSetAbortPrimaryCatchUp", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing,
			Check: dispatch.NeedsCluster("replSetStateChange"),
		},
		{Name: "replSetMaintenance", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("replSetStateChange")},
		{Name: "replSetResizeOplog", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("replSetResizeOplog")},

		{Name: "replSetGetRBID", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetGetRBID, Check: dispatch.NeedsCluster("internal")},
		{Name: "replSetHeartbeat", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetHeartbeat, Check: dispatch.NeedsCluster("internal")},
		{Name: "replSetRequestVotes", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetRequestVotes, Check: dispatch.NeedsCluster("internal")},
		{Name: "replSetUpdatePosition", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runReplSetUpdatePosition, Check: dispatch.NeedsCluster("internal")},
	}
}
