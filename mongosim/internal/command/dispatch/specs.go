package dispatch

func txnSpecs() []Spec {
	return []Spec{
		{
			Name: "commitTransaction", Fields: []string{"commitTimestamp", "recoveryToken", "durableTimestamp"},
			AdminOnly: true, InTxn: true, Writes: true, Run: runCommitTransaction,
		},
		{
			Name: "abortTransaction", Fields: []string{"recoveryToken"},
			AdminOnly: true, InTxn: true, Writes: true, Run: runAbortTransaction,
		},
		{
			Name: "prepareTransaction", Fields: []string{},
			AdminOnly: true, InTxn: true, Writes: true, Run: runPrepareTransaction, Test: true,
		},
	}
}
