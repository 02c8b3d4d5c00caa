package command

func adminSpecs() []spec {
	return []spec{
		{name: "ping", secondary: anyMember, beforeAuth: true, run: runPing},
		{name: "buildInfo", aliases: []string{"buildinfo"}, secondary: anyMember, beforeAuth: true, run: runBuildInfo},
		{name: "whatsmyuri", secondary: anyMember, beforeAuth: true, run: runWhatsMyURI},
		{name: "listCommands", secondary: anyMember, beforeAuth: true, run: runListCommands},
		{name: "features", secondary: anyMember, beforeAuth: true, run: runFeatures},
		{name: "hostInfo", secondary: anyMember, run: runHostInfo, check: needsCluster("hostInfo")},
		{name: "getCmdLineOpts", adminOnly: true, secondary: anyMember, run: runGetCmdLineOpts, check: needsCluster("getCmdLineOpts")},
		{name: "getLog", adminOnly: true, secondary: anyMember, run: runGetLog, check: needsCluster("getLog")},
		{name: "serverStatus", secondary: anyMember, run: runServerStatus, check: needsCluster("serverStatus")},
		{name: "getParameter", adminOnly: true, secondary: anyMember, run: runGetParameter, check: needsCluster("getParameter")},
		{name: "setParameter", adminOnly: true, secondary: anyMember, run: runSetParameter, check: needsCluster("setParameter")},
		{
			name: "setFeatureCompatibilityVersion", adminOnly: true, writes: true, run: runSetFCV,
			check: needsCluster("setFeatureCompatibilityVersion"),
		},
		{
			name: "getDefaultRWConcern", adminOnly: true, secondary: anyMember, fields: []string{"inMemory"},
			run: runGetDefaultRWConcern, check: needsCluster("getDefaultRWConcern"),
		},
		{
			name: "getFreeMonitoringStatus", adminOnly: true, secondary: anyMember, run: runGetFreeMonitoringStatus,
			check: needsCluster("checkFreeMonitoringStatus"),
		},
		{name: "currentOp", adminOnly: true, secondary: anyMember, run: runCurrentOp, check: needsCluster("inprog")},
		{name: "profile", secondary: anyMember, run: runProfile, check: needsDB("enableProfiler")},
		{
			name: "appendOplogNote", adminOnly: true, writes: true, run: runAppendOplogNote,
			check: needsCluster("appendOplogNote"),
		},
		{name: "applyOps", writes: true, run: runApplyOps, check: needsCluster("applyOps")},
		{name: "shutdown", adminOnly: true, secondary: anyMember, run: runShutdown, check: needsCluster("shutdown")},

		{name: "killOp", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("killop")},
		{name: "fsync", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("fsync")},
		{name: "fsyncUnlock", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("unlock")},
		{name: "logRotate", adminOnly: true, secondary: anyMember, run: runMissing, check: needsCluster("logRotate")},
		{name: "setDefaultRWConcern", adminOnly: true, run: runMissing, check: needsCluster("setDefaultRWConcern")},
	}
}

// needsCluster asks for an action on the whole set.
func needsCluster(action string) func(*request) error {
	return func(r *request) error { return r.allowed(action, "", "") }
}
