package admin

import (
	"slices"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func adminSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{Name: "ping", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runPing},
		{Name: "buildInfo", Aliases: []string{"buildinfo"}, Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runBuildInfo},
		{Name: "whatsmyuri", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runWhatsMyURI},
		{Name: "listCommands", Secondary: dispatch.AnyMember, BeforeAuth: true, Run: runMissing},
		{Name: "hostInfo", Secondary: dispatch.AnyMember, Run: runHostInfo, Check: dispatch.NeedsCluster("hostInfo")},
		{Name: "getCmdLineOpts", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runGetCmdLineOpts, Check: dispatch.NeedsCluster("getCmdLineOpts")},
		{Name: "getLog", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runGetLog, Check: dispatch.NeedsCluster("getLog")},
		{Name: "serverStatus", Secondary: dispatch.AnyMember, Run: runServerStatus, Check: dispatch.NeedsCluster("serverStatus")},
		{Name: "getParameter", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runGetParameter, Check: dispatch.NeedsCluster("getParameter")},
		{Name: "setParameter", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runSetParameter, Check: dispatch.NeedsCluster("setParameter")},
		{
			Name: "setFeatureCompatibilityVersion", AdminOnly: true, Writes: true, Run: runSetFCV,
			Check: dispatch.NeedsCluster("setFeatureCompatibilityVersion"),
		},
		{
			Name: "getDefaultRWConcern", AdminOnly: true, Secondary: dispatch.AnyMember, Fields: []string{"inMemory"},
			Run: runGetDefaultRWConcern, Check: dispatch.NeedsCluster("getDefaultRWConcern"),
		},
		{
			Name: "getFreeMonitoringStatus", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runGetFreeMonitoringStatus,
			Check: dispatch.NeedsCluster("checkFreeMonitoringStatus"),
		},
		{Name: "currentOp", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runCurrentOp, Check: dispatch.NeedsCluster("inprog")},
		{Name: "profile", Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsDB("enableProfiler")},
		{
			Name: "appendOplogNote", AdminOnly: true, Writes: true, Run: runAppendOplogNote,
			Check: dispatch.NeedsCluster("appendOplogNote"),
		},
		{
			Name: "setUserWriteBlockMode", AdminOnly: true, Writes: true, Run: runSetUserWriteBlockMode,
			Check: dispatch.NeedsCluster("setUserWriteBlockMode"),
		},
		{Name: "applyOps", Writes: true, Run: runApplyOps, Check: dispatch.NeedsCluster("applyOps")},
		{Name: "shutdown", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runShutdown, Check: dispatch.NeedsCluster("shutdown")},

		{Name: "killOp", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("killop")},
		{Name: "fsync", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("fsync")},
		{Name: "fsyncUnlock", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("unlock")},
		{Name: "logRotate", AdminOnly: true, Secondary: dispatch.AnyMember, Run: runMissing, Check: dispatch.NeedsCluster("logRotate")},
		{Name: "setDefaultRWConcern", AdminOnly: true, Run: runMissing, Check: dispatch.NeedsCluster("setDefaultRWConcern")},
	}
}

// Specs returns the commands of this package.
func Specs() []dispatch.Spec { return slices.Concat(adminSpecs(), replSpecs(), authSpecs()) }
