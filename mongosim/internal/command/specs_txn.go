package command

func txnSpecs() []spec {
	return []spec{
		{
			name: "commitTransaction", fields: []string{"commitTimestamp", "recoveryToken", "durableTimestamp"},
			adminOnly: true, inTxn: true, writes: true, run: runCommitTransaction,
		},
		{
			name: "abortTransaction", fields: []string{"recoveryToken"},
			adminOnly: true, inTxn: true, writes: true, run: runAbortTransaction,
		},
		{
			name: "prepareTransaction", fields: []string{},
			adminOnly: true, inTxn: true, writes: true, run: runPrepareTransaction, test: true,
		},
		{
			name: "coordinateCommitTransaction", adminOnly: true, inTxn: true, writes: true, run: runCoordinateCommit,
		},
	}
}
