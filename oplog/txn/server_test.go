package txn

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The server's tests of how its applier assembles transactions, and of transactions
// applied twice, by their names. Tests that differ only in the target's contents
// (data partially applied, a missing collection, initial sync), or in the
// boundaries of batches, are the same to the Assembler.
func TestServerTransactionTests(t *testing.T) {
	const s1, s2 = 1, 2
	three := []line{
		part(1, null, s1, 3, list(ops("i1"), partial)),
		part(2, 1, s1, 3, list(ops("i2"), partial)),
		part(3, 2, s1, 3, list(ops("i3"), count(3))),
	}
	preparedThree := []line{
		part(1, null, s1, 3, list(ops("i1"), partial)),
		part(2, 1, s1, 3, list(ops("i2"), partial)),
		part(3, 2, s1, 3, list(ops("i3"), prepare, count(3))),
	}
	tests := []struct {
		names []string
		log   []line
		want  []string
	}{{
		names: []string{
			"CommitUnpreparedTransaction", "CommitUnpreparedTransactionDataPartiallyApplied",
			"CommitUnpreparedTransactionIgnoresNamespaceNotFoundErrors",
		},
		log:  []line{part(1, null, s1, 1, list(ops("i1 u1")))},
		want: []string{"committed transaction i1 u1"},
	}, {
		names: []string{
			"CommitPreparedTransaction", "CommitPreparedTransactionDataPartiallyApplied",
			"CommitPreparedTransactionIgnoresNamespaceNotFoundErrors",
			"MultiApplySingleApplyOpsPreparedTransaction", "MultiApplySingleApplyOpsPreparedTransactionInitialSync",
			"MultiApplySingleApplyOpsPreparedTransactionRecovery",
		},
		log:  []line{part(1, null, s1, 1, list(ops("i1"), prepare)), part(2, 1, s1, 1, commitAt(1))},
		want: []string{"partial", "committed transaction i1"},
	}, {
		names: []string{"AbortPreparedTransaction", "MultiApplyAbortSingleApplyOpsPreparedTransaction"},
		log:   []line{part(1, null, s1, 1, list(ops("i1"), prepare)), part(2, 1, s1, 1, abortCmd)},
		want:  []string{"partial", "aborted 1 parts"},
	}, {
		names: []string{"SinglePartialTxnOp"},
		log:   []line{part(1, null, s1, 1, list(ops("i1"), partial))},
		want:  []string{"partial"},
	}, {
		names: []string{"MultiplePartialTxnOps"},
		log:   three[:2],
		want:  []string{"partial", "partial"},
	}, {
		names: []string{
			"CommitUnpreparedTransactionWithPartialTxnOps", "CommitUnpreparedTransactionWithPartialTxnOpsAndDataPartiallyApplied",
			"MultiApplyUnpreparedTransactionSeparate", "MultiApplyUnpreparedTransactionAllAtOnce",
			"MultiApplyUnpreparedTransactionTwoBatches",
		},
		log:  three,
		want: []string{"partial", "partial", "committed transaction i1 i2 i3"},
	}, {
		names: []string{"CommitTwoUnpreparedTransactionsWithPartialTxnOpsAtOnce"},
		log: []line{
			part(1, null, s1, 1, list(ops("i1"), partial)), part(2, null, s2, 1, list(ops("i2"), partial)),
			part(3, 2, s2, 1, list(ops("i3"), count(2))), part(4, 1, s1, 1, list(ops("i4"), count(2))),
		},
		want: []string{"partial", "partial", "committed transaction i2 i3", "committed transaction i1 i4"},
	}, {
		names: []string{"MultiApplyTwoTransactionsOneBatch"}, // of one session, one after the other
		log: []line{
			part(1, null, s1, 1, list(ops("i1"), partial)), part(2, 1, s1, 1, list(ops("i2"), partial)),
			part(3, 2, s1, 1, list(nil, count(2))),
			part(4, null, s1, 2, list(ops("i3"), partial)), part(5, 4, s1, 2, list(ops("i4"), partial)),
			part(6, 5, s1, 2, list(nil, count(2))),
		},
		want: []string{"partial", "partial", "committed transaction i1 i2", "partial", "partial", "committed transaction i3 i4"},
	}, {
		names: []string{"CommitAndAbortTwoTransactionsWithPartialTxnOpsAtOnce"},
		log: []line{
			part(1, null, s1, 1, list(ops("i1"), partial)), part(2, null, s2, 1, list(ops("i2"), partial)),
			part(3, 2, s2, 1, abortCmd), part(4, 1, s1, 1, list(ops("i4"), count(2))),
		},
		want: []string{"partial", "partial", "aborted 1 parts", "committed transaction i1 i4"},
	}, {
		names: []string{"PrepareTransactionWithPartialTxnOps"},
		log:   preparedThree,
		want:  []string{"partial", "partial", "partial"},
	}, {
		names: []string{"EmptyPrepareTransaction", "MultiApplyEmptyApplyOpsPreparedTransaction"},
		log:   []line{part(1, null, s1, 1, list(nil, prepare)), part(2, 1, s1, 1, commitAt(1))},
		want:  []string{"partial", "committed transaction"},
	}, {
		names: []string{
			"CommitPreparedTransactionWithPartialTxnOps", "CommitPreparedTransactionWithPartialTxnOpsAndDataPartiallyApplied",
			"MultiApplyPreparedTransactionSteadyState", "MultiApplyPreparedTransactionInitialSync",
			"MultiApplyPreparedTransactionRecovery",
		},
		log:  append(preparedThree[:3:3], part(9, 3, s1, 3, commitAt(7))),
		want: []string{"partial", "partial", "partial", "committed transaction i1 i2 i3"},
	}, {
		names: []string{"CommitTwoPreparedTransactionsWithPartialTxnOpsAtOnce"},
		log: []line{
			part(1, null, s1, 1, list(ops("i1"), partial)), part(2, null, s2, 1, list(ops("i2"), partial)),
			part(3, 1, s1, 1, list(ops("i3"), prepare, count(2))), part(4, 2, s2, 1, list(ops("i4"), prepare, count(2))),
			part(5, 4, s2, 1, commitAt(4)), part(6, 3, s1, 1, commitAt(4)),
		},
		want: []string{"partial", "partial", "partial", "partial", "committed transaction i2 i4", "committed transaction i1 i3"},
	}, {
		names: []string{"AbortPreparedTransactionWithPartialTxnOps", "MultiApplyAbortPreparedTransactionCheckTxnTable"},
		log:   append(preparedThree[:3:3], part(4, 3, s1, 3, abortCmd)),
		want:  []string{"partial", "partial", "partial", "aborted 3 parts"},
	}, {
		names: []string{"AbortInProgressTransaction"},
		log:   append(three[:2:2], part(4, 2, s1, 3, abortCmd)),
		want:  []string{"partial", "partial", "aborted 2 parts"},
	}}
	for _, tt := range tests {
		for _, name := range tt.names {
			t.Run(name, func(t *testing.T) {
				for _, memory := range []int64{0, 1} {
					if diff := cmp.Diff(tt.want, play(t, Config{MemoryBytes: memory}, tt.log)); diff != "" {
						t.Errorf("with %d bytes of memory (-want +got):\n%s", memory, diff)
					}
				}
			})
		}
	}
}
