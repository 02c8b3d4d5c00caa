package mood

import "github.com/oplogrep/replicator/internal/mongo/servererr"

// killed is the server's message for a killed operation.
const killed = "operation was interrupted"

// All returns the list of moods, those of roles and transactions first. docs/embedded-set.md
// has it as a table.
func All() []Mood {
	var all []Mood
	for _, part := range [][]Mood{ofRoles(), inTransactions(), ofOperations(), ofConcerns(), ofCursors(), ofCommands(), ofConnections()} {
		all = append(all, part...)
	}
	return all
}

// ofRoles are refusals of reads that are optional. A role does not change from one
// command to the next, so these are standing.
func ofRoles() []Mood {
	return []Mood{
		{
			Name: "no-config", Where: "replSetGetConfig", Answer: "13 Unauthorized, always",
			OneIn: 6, Standing: true, Kind: Refuse, Code: servererr.Unauthorized,
			Text: "not authorized on admin to execute command { replSetGetConfig: 1 }",
			Fact: "backup does not allow it, clusterMonitor does; builtin_roles.cpp",
			at:   func(p *Place) bool { return p.Command == "replSetGetConfig" },
		},
		{
			Name: "no-status", Where: "serverStatus", Answer: "13 Unauthorized, always",
			OneIn: 6, Standing: true, Kind: Refuse, Code: servererr.Unauthorized,
			Text: "not authorized on admin to execute command { serverStatus: 1 }",
			Fact: "readWriteAnyDatabase, dbAdminAnyDatabase and restore together do not allow serverStatus; builtin_roles.cpp",
			at:   func(p *Place) bool { return p.Command == "serverStatus" },
		},
		{
			Name: "no-sync-id", Where: "a read of local.replset.initialSyncId", Answer: "13 Unauthorized, always",
			OneIn: 3, Standing: true, Kind: Refuse, Code: servererr.Unauthorized,
			Text: "not authorized on local to execute command { find: \"replset.initialSyncId\" }",
			Fact: "no built-in role but __system allows it; builtin_roles.cpp",
			at:   func(p *Place) bool { return p.Collection == "replset.initialSyncId" },
		},
		{
			Name: "no-local-lists", Where: "listCollections of local", Answer: "13 Unauthorized, always",
			OneIn: 6, Standing: true, Kind: Refuse, Code: servererr.Unauthorized,
			Text: "not authorized on local to execute command { listCollections: 1 }",
			Fact: "a custom role that allows the mirrored namespaces and the oplog, and no more",
			at:   func(p *Place) bool { return p.Command == "listCollections" && p.Local },
		},
	}
}

func inTransactions() []Mood {
	return []Mood{
		{
			Name: "ticket-timeout", Where: "a statement of a transaction", Answer: "24 LockTimeout, transient",
			OneIn: 250, Kind: Refuse, Code: servererr.LockTimeout,
			Text: "Unable to acquire ticket with mode '2' within a max lock request timeout of '5ms' milliseconds.",
			Fact: "seen on 5.0.7 with 5 tickets and 48 other writers; lock_state.cpp",
			at:   (*Place).statement,
		},
		{
			Name: "lock-timeout", Where: "a statement of a transaction", Answer: "24 LockTimeout, transient",
			OneIn: 400, Kind: Refuse, Code: servererr.LockTimeout,
			Text: "Unable to acquire lock '{8442595743001781021: Database, 1525066715360699165}' within a max lock request timeout of '5ms' milliseconds.",
			Fact: "maxTransactionLockRequestTimeoutMillis; lock_state.cpp",
			at:   (*Place).statement,
		},
		{
			Name: "write-conflict", Where: "a statement of a transaction", Answer: "112 WriteConflict, transient",
			OneIn: 250, Kind: Refuse, Code: servererr.WriteConflict,
			Text: "WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document transaction.",
			Fact: "recorded; also when the cache rolls back a transaction to make room, reads included (write_conflict_exception.h)",
			at:   (*Place).statement,
		},
		{
			Name: "stale-catalog", Where: "a statement of a transaction", Answer: "246 SnapshotUnavailable, transient",
			OneIn: 400, Kind: Refuse, Code: servererr.SnapshotUnavailable,
			Text: "Unable to read from a snapshot due to pending collection catalog changes; please retry the operation. Snapshot timestamp is Timestamp(1616747877, 51). Collection minimum is Timestamp(1616747878, 5)",
			Fact: "a collection that was created or changed after the snapshot; seen in the field from 4.0 to 7.0",
			at:   (*Place).statement,
		},
		{
			Name: "old-snapshot", Where: "a read at a snapshot, in a transaction or not", Answer: "239 SnapshotTooOld, transient in a transaction",
			OneIn: 100, Kind: Refuse, Code: servererr.SnapshotTooOld,
			Text: "Read timestamp Timestamp(1616747877, 51) is older than the oldest available timestamp.",
			Fact: "minSnapshotHistoryWindowInSeconds; wiredtiger_begin_transaction_block.cpp",
			at:   func(p *Place) bool { return p.Snapshot && !p.Ends },
		},
		{
			Name: "txn-gone", Where: "a transaction that an earlier command began", Answer: "251 NoSuchTransaction, transient",
			OneIn: 400, Kind: Abort,
			Fact: "killSessions, the lifetime limit or cache pressure aborts a transaction between two statements; transaction_participant.cpp",
			at:   func(p *Place) bool { return p.InTxn && !p.Starts && p.Command != "abortTransaction" },
		},
		{
			Name: "txn-expired", Where: "a statement of a transaction, or its commit", Answer: "290 TransactionExceededLifetimeLimitSeconds, without a label",
			OneIn: 600, Kind: Refuse, Code: servererr.TransactionExceededLifetimeLimitSeconds, Text: killed,
			Fact: "transactionLifetimeLimitSeconds; error_labels.cpp does not label this code as transient",
			at:   func(p *Place) bool { return p.InTxn && !p.Starts && p.Command != "abortTransaction" },
		},
		{
			Name: "txn-too-large", Where: "a write of a transaction", Answer: "388 TransactionTooLargeForCache, without a label",
			Since: [2]int{7, 0}, OneIn: 800, Kind: Refuse, Code: servererr.TransactionTooLargeForCache,
			Text: "transaction is too large and will not fit in the storage engine cache",
			Fact: "transactionTooLargeForCacheThreshold, new in 6.2; wiredtiger_util.cpp",
			at:   func(p *Place) bool { return p.statement() && p.Writes },
		},
	}
}

func ofOperations() []Mood {
	return []Mood{
		{
			Name: "interrupted", Where: "any command but those of the handshake", Answer: "11601 Interrupted",
			OneIn: 400, Kind: Refuse, Code: servererr.Interrupted, Text: killed,
			Fact: "killOp, by an operator or a tool",
			at:   func(*Place) bool { return true },
		},
		{
			Name: "killed-by-step-down", Where: "any command on a primary", Answer: "11602 InterruptedDueToReplStateChange, with topologyVersion",
			OneIn: 500, Kind: Refuse, Code: servererr.InterruptedDueToReplStateChange, Text: killed,
			Fact: "a step-down attempt kills operations even if it then fails; replication_coordinator_impl.cpp",
			at:   func(p *Place) bool { return p.Primary },
		},
		{
			Name: "not-primary", Where: "a write on a primary", Answer: "10107 NotWritablePrimary, with topologyVersion",
			OneIn: 500, Kind: Refuse, Code: servererr.NotWritablePrimary, Text: "not primary",
			Fact: "writes are refused during such an attempt; replication_coordinator_impl.cpp",
			at:   func(p *Place) bool { return p.Primary && p.Writes && !p.Local },
		},
		{
			Name: "recovering", Where: "a read on a secondary", Answer: "13436 NotPrimaryOrSecondary, with topologyVersion",
			OneIn: 400, Kind: Refuse, Code: servererr.NotPrimaryOrSecondary, Text: "node is recovering",
			Fact: "maintenance mode, or a member that lags too far",
			at:   func(p *Place) bool { return !p.Primary && p.Reads },
		},
		{
			Name: "shutdown", Where: "any command", Answer: "11600 InterruptedAtShutdown, then the connection is closed",
			OneIn: 800, Kind: Shut, Code: servererr.InterruptedAtShutdown, Text: "interrupted at shutdown",
			Fact: "a member that is restarted at once",
			at:   func(*Place) bool { return true },
		},
		{
			Name: "quiesce", Where: "any command", Answer: "91 ShutdownInProgress, then the connection is closed",
			OneIn: 800, Kind: Shut, Code: servererr.ShutdownInProgress, Text: "The server is in quiesce mode and will shut down",
			Fact: "the seconds before a shutdown, since 4.4",
			at:   func(*Place) bool { return true },
		},
		{
			Name: "no-committed-snapshot", Where: "a read with read concern majority", Answer: "134 ReadConcernMajorityNotAvailableYet",
			OneIn: 400, Kind: Refuse, Code: servererr.ReadConcernMajorityNotAvailableYet,
			Text: "Read concern majority reads are currently not possible.",
			Fact: "a member that has just started",
			at:   func(p *Place) bool { return p.ReadMajority && !p.InTxn },
		},
		{
			Name: "out-of-time", Where: "a command with maxTimeMS, except getMore", Answer: "50 MaxTimeMSExpired",
			OneIn: 300, Kind: Refuse, Code: servererr.MaxTimeMSExpired, Text: "operation exceeded time limit",
			Fact: "an overloaded member",
			at:   func(p *Place) bool { return p.Limited && p.Command != "getMore" },
		},
		{
			Name: "unreachable", Where: "any command", Answer: "9001 SocketException",
			OneIn: 800, Kind: Refuse, Code: servererr.SocketException, Text: "network error while attempting to run command on the member",
			Fact: "a proxy that has lost the member; drivers retry after it (retryable-writes specification)",
			at:   func(*Place) bool { return true },
		},
		{
			Name: "too-many-sessions", Where: "a command with a session", Answer: "261 TooManyLogicalSessions",
			OneIn: 1500, Kind: Refuse, Code: tooManySessions,
			Text: "Unable to add session into the cache because the number of active sessions is too high",
			Fact: "maxSessions, a million; logical_session_cache_impl.cpp",
			at:   func(p *Place) bool { return p.Session && !p.InTxn },
		},
		{
			Name: "too-busy", Where: "a write outside of transactions", Answer: "365 TemporarilyUnavailable, as a write error of the first statement",
			Since: [2]int{6, 0}, OneIn: 150, Kind: Statement, Code: servererr.TemporarilyUnavailable,
			Text: "Operation was rolled back as it could not fit in the cache: retries exhausted",
			Fact: "temporarilyUnavailableMaxRetries, new in 6.0; write_ops_exec.cpp reports it as a write error",
			at: func(p *Place) bool {
				return !p.InTxn && !p.Local && p.is("insert", "update", "delete", "findAndModify")
			},
		},
	}
}

// tooManySessions is TooManyLogicalSessions.
const tooManySessions servererr.Code = 261

func ofConcerns() []Mood {
	waits := func(p *Place) bool { return p.Majority }
	return []Mood{
		{
			Name: "slow-majority", Where: "a write that waits for the majority", Answer: "a late reply",
			OneIn: 25, Kind: Slow,
			Fact: "distant members, or slow disks",
			at:   waits,
		},
		{
			Name: "concern-stepped-down", Where: "a write that waits for the majority", Answer: "done, with writeConcernError 189 PrimarySteppedDown",
			OneIn: 400, Kind: Unmet, Code: servererr.PrimarySteppedDown, Text: "Primary stepped down while waiting for replication",
			Fact: "replication_coordinator_impl.cpp",
			at:   waits,
		},
		{
			Name: "concern-interrupted", Where: "a write that waits for the majority", Answer: "done, with writeConcernError 11601 Interrupted",
			OneIn: 400, Kind: Unmet, Code: servererr.Interrupted, Text: killed,
			Fact: "killOp during the wait",
			at:   waits,
		},
		{
			Name: "concern-shutdown", Where: "a write that waits for the majority", Answer: "done, with writeConcernError 91 ShutdownInProgress",
			OneIn: 600, Kind: Unmet, Code: servererr.ShutdownInProgress, Text: "Replication is being shut down",
			Fact: "replication_coordinator_impl.cpp",
			at:   waits,
		},
		{
			Name: "concern-timeout", Where: "a write that waits for the majority, with wtimeout", Answer: "done, with writeConcernError 64 and wtimeout: true",
			OneIn: 50, Kind: Unmet, Code: servererr.WriteConcernTimeout, Text: "waiting for replication timed out",
			Fact: "a majority that is slower than the client allows",
			at:   func(p *Place) bool { return p.Majority && p.Timed },
		},
	}
}

func ofCursors() []Mood {
	more := func(p *Place) bool { return p.Command == "getMore" }
	return []Mood{
		{
			Name: "short-batch", Where: "a reply with a batch", Answer: "a few documents; the rest comes with the next getMore",
			OneIn: 6, Kind: Short,
			Fact: "batchSize is an upper bound; a tailing cursor returns the entries visible at the moment; a batch that ends with the last document is followed by an empty one",
			at:   func(p *Place) bool { return p.Batch },
		},
		{
			Name: "early-return", Where: "a getMore that waits for data", Answer: "an empty batch before the time is up",
			OneIn: 6, Kind: Early,
			Fact: "the commit point advanced, or the insert that ended the wait does not match",
			at:   more,
		},
		{
			Name: "cursor-gone", Where: "getMore", Answer: "43 CursorNotFound",
			OneIn: 200, Kind: Forget,
			Fact: "recorded; killCursors, a killed session, a restarted member",
			at:   more,
		},
		{
			Name: "cursor-killed", Where: "getMore", Answer: "237 CursorKilled",
			OneIn: 200, Kind: Kill, Code: servererr.CursorKilled, Text: killed,
			Fact: "the same, while the getMore runs",
			at:   more,
		},
		{
			Name: "cursor-in-use", Where: "getMore on another connection than the previous command", Answer: "143 CursorInUse",
			OneIn: 20, Kind: Refuse, Code: servererr.CursorInUse, Text: "cursor is already in use",
			Fact: "the server has not noticed yet that the other connection is gone; cursor_manager.cpp",
			at:   func(p *Place) bool { return p.Command == "getMore" && p.Moved },
		},
	}
}

func ofCommands() []Mood {
	return []Mood{
		{
			Name: "build-aborted", Where: "createIndexes", Answer: "276 IndexBuildAborted",
			OneIn: 10, Kind: Refuse, Code: servererr.IndexBuildAborted,
			Text: "Index build aborted: 7c1dc0a9-5f0c-4b34-8f0e-3a5b4d8f2a11 :: caused by :: collMod command",
			Fact: "a conflicting command aborts the build, since 4.4; index_builds_coordinator.cpp",
			at:   func(p *Place) bool { return p.Command == "createIndexes" && !p.InTxn },
		},
		{
			Name: "build-canceled", Where: "createIndexes", Answer: "90 CallbackCanceled",
			OneIn: 30, Kind: Refuse, Code: servererr.CallbackCanceled, Text: "Callback canceled",
			Fact: "the vote of a build uses an executor that shuts down with the member; index_builds_coordinator_mongod.cpp",
			at:   func(p *Place) bool { return p.Command == "createIndexes" && !p.InTxn },
		},
		{
			Name: "build-in-the-way", Where: "collMod, renameCollection", Answer: "12587 BackgroundOperationInProgressForNamespace",
			OneIn: 8, Kind: Refuse, Code: servererr.BackgroundOperationInProgressForNamespace,
			Text: "cannot perform operation: an index build is currently running for collection",
			Fact: "another client builds an index; index_builds_coordinator.cpp",
			at:   func(p *Place) bool { return p.is("collMod", "renameCollection") },
		},
	}
}

func ofConnections() []Mood {
	every := func(*Place) bool { return true }
	return []Mood{
		{
			Name: "reply-lost", Where: "any command", Answer: "the command is executed, then the connection is closed",
			OneIn: 300, Kind: Lose, Fact: "the network", at: every,
		},
		{
			Name: "hang-up", Where: "any command", Answer: "the connection is closed, nothing is executed",
			OneIn: 500, Kind: HangUp, Fact: "the network", at: every,
		},
		{
			Name: "connections-dropped", Where: "any command", Answer: "each connection that is open now is closed at its next command",
			OneIn: 1000, Kind: Drop, Fact: "a firewall or load balancer that drops idle connections", at: every,
		},
		{
			Name: "election", Where: "a command on the primary of a set in which others can be elected", Answer: "the primary steps down, another is elected",
			OneIn: 1000, Most: 1, Kind: Elect, Fact: "maintenance, or members that miss heartbeats",
			at: func(p *Place) bool { return p.Primary && p.Several },
		},
	}
}
