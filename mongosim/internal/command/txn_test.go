package command

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
)

// inTxn returns the arguments that make a command part of a transaction.
func inTxn(session string, n int, start bool) string {
	s := fmt.Sprintf(`%s, txnNumber: {$numberLong: "%d"}, autocommit: false`, session, n)
	if start {
		s += ", startTransaction: true"
	}
	return s
}

const ok = `{ok: 1.0}`

func noSuch(text string) string {
	return `{errorLabels: ["TransientTransactionError"], ok: 0.0, errmsg: "` + text + `", code: 251, codeName: "NoSuchTransaction"}`
}

func TestTransactionsCommitTogether(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.want(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	before := len(m.entries(t))
	m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
	m.want(t, `{update: "c", updates: [{q: {_id: 0}, u: {$set: {x: 1}}}], `+inTxn(sessionA, 1, false)+`, $db: "d"}`, `{n: 1, nModified: 1, ok: 1.0}`)
	m.want(t, `{find: "c", filter: {_id: 0}, `+inTxn(sessionA, 1, false)+`, $db: "d"}`,
		`{cursor: {firstBatch: [{_id: 0, x: 1}], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`)
	m.want(t, `{find: "c", $db: "d"}`, `{cursor: {firstBatch: [{_id: 0}], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`)
	if n := len(m.entries(t)); n != before {
		t.Errorf("%d entries before the commit", n-before)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	if n := len(m.entries(t)); n != before+1 {
		t.Errorf("%d entries after the commit, want 1", n-before)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	if n := len(m.entries(t)); n != before+1 {
		t.Errorf("%d entries after a second commit, want 1", n-before)
	}
	m.want(t, `{abortTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`,
		`{ok: 0.0, errmsg: "Transaction 1 has been committed.", code: 256, codeName: "TransactionCommitted"}`)
	// Other members, and this one after a rollback, know it from the record.
	m.RolledBack()
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
}

func TestTransactionRules(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.want(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	find := func(args string) string { return `{find: "c", filter: {_id: 0}, ` + args + `, $db: "d"}` }
	found := `{cursor: {firstBatch: [{_id: 0}], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`
	m.want(t, find(inTxn(sessionA, 5, false)), noSuch("Given transaction number 5 does not match any in-progress transactions. The active transaction number is -1"))
	m.want(t, find(inTxn(sessionA, 5, true)), found)
	m.want(t, find(inTxn(sessionA, 5, true)),
		`{ok: 0.0, errmsg: "Only servers in a sharded cluster can start a new transaction at the active transaction number", code: 117, codeName: "ConflictingOperationInProgress"}`)
	m.want(t, find(inTxn(sessionA, 6, true)), found)
	m.want(t, find(inTxn(sessionA, 5, false)),
		`{ok: 0.0, errmsg: "Cannot start transaction 5 on session 00000000-0000-4000-8000-00000000000a - 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= because a newer transaction with txnNumber 6 has already started on this session.", code: 225, codeName: "TransactionTooOld"}`)
	insert := `{insert: "c", documents: [{}], ` + sessionA + `, txnNumber: {$numberLong: "6"}, $db: "d"}`
	m.want(t, insert, `{ok: 0.0, errmsg: "Must specify autocommit=false on all operations of a multi-statement transaction.", code: 72, codeName: "InvalidOptions"}`)
	for _, tc := range []struct {
		args string
		code int32
	}{
		{sessionB + `, txnNumber: {$numberLong: "1"}, autocommit: true`, 72},
		{sessionB + `, txnNumber: {$numberLong: "1"}, startTransaction: true`, 72},
		{sessionB + `, autocommit: false`, 72},
		{inTxn(sessionB, 1, true) + `, readConcern: {level: "available"}`, 72},
		{inTxn(sessionA, 6, false) + `, readConcern: {level: "local"}`, 72},
		{inTxn(sessionA, 6, false) + `, writeConcern: {w: 1}`, 72},
	} {
		if reply := m.run(t, find(tc.args)); reply.Lookup("code").AsInt64() != int64(tc.code) {
			t.Errorf("%s: %s, want code %d", tc.args, reply, tc.code)
		}
	}
	m.want(t, `{count: "c", `+inTxn(sessionB, 1, true)+`, $db: "d"}`,
		`{ok: 0.0, errmsg: "Cannot run 'count' in a multi-document transaction. Please see http://dochub.mongodb.org/core/transaction-count for a recommended alternative.", code: 263, codeName: "OperationNotSupportedInTransaction"}`)
	m.want(t, `{find: "c", `+inTxn(sessionB, 1, true)+`, $db: "local"}`,
		`{ok: 0.0, errmsg: "Cannot run command against the 'local' database in a transaction.", code: 263, codeName: "OperationNotSupportedInTransaction"}`)
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionB, 1, true)+`, $db: "admin"}`,
		`{ok: 0.0, errmsg: "Cannot start a transaction with a commit", code: 263, codeName: "OperationNotSupportedInTransaction"}`)
}

// TestNoSystemCollectionInATransaction: no transaction writes to a system collection of
// a database, however it is asked to; outside of one it is a collection like others.
func TestNoSystemCollectionInATransaction(t *testing.T) {
	for _, tc := range []struct {
		dialect, coll string
		code          int64
	}{
		{"4.4.0", "system.js", 50791},
		{"5.0.7", "system.js", 50791},
		{"5.0.7", "system.views", 50791},
		{"5.0.7", "system.buckets.series", 50791},
		{"7.0.0", "system.buckets.series", 50791},
		{"8.0.0", "system.js", 50791},
		{"8.0.0", "system.buckets.series", 0},
	} {
		t.Run(tc.dialect+" "+tc.coll, func(t *testing.T) {
			m := newMember(t, tc.dialect)
			if tc.coll != "system.js" && tc.dialect != "4.4.0" {
				m.want(t, `{create: "series", timeseries: {timeField: "t"}, $db: "d"}`, ok)
			} else {
				m.want(t, `{insert: "system.js", documents: [{_id: "f", value: "x"}], $db: "d"}`, `{n: 1, ok: 1.0}`)
			}
			n := 0
			for _, cmd := range []string{
				`{update: "` + tc.coll + `", updates: [{q: {_id: "none"}, u: {$set: {a: 1}}}], `,
				`{delete: "` + tc.coll + `", deletes: [{q: {_id: "none"}, limit: 1}], `,
				`{findAndModify: "` + tc.coll + `", query: {_id: "none"}, update: {$set: {a: 1}}, `,
			} {
				n++
				reply := m.run(t, cmd+inTxn(sessionA, n, true)+`, $db: "d"}`)
				if code, _ := reply.Lookup("code").AsInt64OK(); code != tc.code {
					t.Errorf("%s: %s, want the code %d", cmd, reply, tc.code)
				}
			}
			if tc.coll == "system.js" {
				for cmd, code := range map[string]int64{
					`{insert: "system.js", documents: [{_id: "g"}], `:                      50791,
					`{createIndexes: "system.js", indexes: [{key: {a: 1}, name: "a_1"}], `: 263,
					`{create: "system.js", `:                                               263,
				} {
					n++
					reply := m.run(t, cmd+inTxn(sessionA, n, true)+`, $db: "d"}`)
					if got, _ := reply.Lookup("code").AsInt64OK(); got != code {
						t.Errorf("%s: %s, want the code %d", cmd, reply, code)
					}
				}
			}
		})
	}
}

func TestAConflictAbortsTheLaterTransaction(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.want(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	update := func(args string) string {
		return `{update: "c", updates: [{q: {_id: 1}, u: {$inc: {n: 1}}}], ` + args + `, $db: "d"}`
	}
	m.want(t, update(inTxn(sessionA, 1, true)), `{n: 1, nModified: 1, ok: 1.0}`)
	m.want(t, update(inTxn(sessionB, 1, true)), `{errorLabels: ["TransientTransactionError"], ok: 0.0,
		errmsg: "WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document transaction.",
		code: 112, codeName: "WriteConflict"}`)
	m.want(t, `{abortTransaction: 1, `+inTxn(sessionB, 1, false)+`, $db: "admin"}`, noSuch("Transaction 1 has been aborted."))
	entries := m.entries(t)
	if o := entries[len(entries)-1].Lookup("o"); o.String() != `{"msg": "NoSuchTransaction error"}` {
		t.Errorf("the last entry has o %s, want the no-op that the write concern waits for", o)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	// A failed operation aborts as well, although the reply is none of an error.
	m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 2, true)+`, $db: "d"}`,
		`{n: 0, writeErrors: [{index: 0, code: 11000, keyPattern: {_id: 1}, keyValue: {_id: 1}, errmsg: "E11000 duplicate key error collection: d.c index: _id_ dup key: { _id: 1 }"}], ok: 1.0}`)
	m.want(t, `{insert: "c", documents: [{_id: 2}], `+inTxn(sessionA, 2, false)+`, $db: "d"}`, noSuch("Transaction 2 has been aborted."))
}

func TestWritersOutsideWaitForTransactions(t *testing.T) {
	for name, end := range map[string]string{
		"commit": `{commitTransaction: 1, `, "abort": `{abortTransaction: 1, `,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMember(t, "5.0.7")
				m.run(t, `{insert: "c", documents: [{_id: 1, n: 0}], $db: "d"}`)
				m.run(t, `{update: "c", updates: [{q: {_id: 1}, u: {$inc: {n: 1}}}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`)
				plain := `{update: "c", updates: [{q: {_id: 1}, u: {$inc: {n: 10}}}], maxTimeMS: 1000, $db: "d"}`
				start := time.Now()
				if r := m.run(t, plain); r.Lookup("code").AsInt64() != 50 || time.Since(start) != time.Second {
					t.Fatalf("after %s: %s, want it to wait for a second", time.Since(start), r)
				}
				answer := make(chan bson.Raw)
				other := m.NewConn("other")
				go func() { answer <- m.CallOn(t.Context(), other, parse(t, plain)) }()
				synctest.Wait()
				m.want(t, end+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
				if r := <-answer; r.Lookup("n").Int32() != 1 {
					t.Errorf("the writer that waited: %s", r)
				}
				want := int32(11)
				if name == "abort" {
					want = 10
				}
				r := m.run(t, `{find: "c", $db: "d"}`)
				if n := r.Lookup("cursor", "firstBatch", "0", "n").Int32(); n != want {
					t.Errorf("n is %d, want %d", n, want)
				}
			})
		})
	}
}

func TestStepDownEndsTransactionsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMember(t, "5.0.7")
		m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
		m.run(t, `{update: "c", updates: [{q: {_id: 1}, u: {$inc: {n: 1}}}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`)
		answer := make(chan bson.Raw)
		go func() {
			answer <- m.CallOn(t.Context(), m.NewConn("other"), parse(t, `{update: "c", updates: [{q: {_id: 1}, u: {$inc: {n: 10}}}], $db: "d"}`))
		}()
		synctest.Wait()
		m.SteppedDown()
		r := <-answer
		if code, _ := r.Lookup("code").AsInt64OK(); code != 11602 {
			t.Errorf("the writer that waited: %s", r)
		}
		m.SteppedUp(4, nil)
		m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`,
			noSuch("Given transaction number 1 does not match any in-progress transactions. The active transaction number is -1"))
	})
}

func TestPreparedTransactions(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`)
	m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
	commit := func(ts string) string {
		return `{commitTransaction: 1, commitTimestamp: ` + ts + `, ` + inTxn(sessionA, 1, false) + `, $db: "admin"}`
	}
	m.want(t, commit(`{$timestamp: {t: 1, i: 1}}`),
		`{ok: 0.0, errmsg: "commitTransaction cannot provide commitTimestamp to unprepared transaction.", code: 72, codeName: "InvalidOptions"}`)
	// That was an error of a command in the transaction, so it is gone.
	m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 2, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
	prepared := m.run(t, `{prepareTransaction: 1, `+inTxn(sessionA, 2, false)+`, $db: "admin"}`)
	ts, i, isTS := prepared.Lookup("prepareTimestamp").TimestampOK()
	if !isTS || names(prepared)[0] != "prepareTimestamp" {
		t.Fatalf("prepare: %s", prepared)
	}
	m.want(t, `{find: "c", `+inTxn(sessionA, 2, false)+`, $db: "d"}`, `{errorLabels: ["TransientTransactionError"], ok: 0.0,
		errmsg: "Cannot call any operation other than abort, prepare or commit on a prepared transaction", code: 267, codeName: "PreparedTransactionInProgress"}`)
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 2, false)+`, $db: "admin"}`,
		`{ok: 0.0, errmsg: "commitTransaction must provide commitTimestamp to prepared transaction.", code: 72, codeName: "InvalidOptions"}`)
	m.want(t, `{insert: "c", documents: [{_id: 7}], `+inTxn(sessionA, 3, true)+`, $db: "d"}`, `{errorLabels: ["TransientTransactionError"], ok: 0.0,
		errmsg: "Cannot change transaction number while the session has a prepared transaction", code: 267, codeName: "PreparedTransactionInProgress"}`)
	m.want(t, `{commitTransaction: 1, commitTimestamp: `+fmt.Sprintf(`{$timestamp: {t: %d, i: %d}}, `, ts, i)+inTxn(sessionA, 2, false)+`, $db: "admin"}`, ok)
	var kinds []string
	for _, e := range m.entries(t) {
		if _, err := e.LookupErr("lsid"); err == nil {
			kinds = append(kinds, names(e.Lookup("o").Document())[0])
		}
	}
	if diff := cmp.Diff([]string{"applyOps", "commitTransaction"}, kinds); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestSnapshotsAreThoseOfTheFirstCommand(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`)
	for i, level := range []string{"local", "majority", "snapshot"} {
		m.run(t, `{find: "c", `+inTxn(sessionA, i, true)+`, readConcern: {level: "`+level+`"}, $db: "d"}`)
		m.run(t, fmt.Sprintf(`{insert: "c", documents: [{_id: %d}], $db: "d"}`, i+1))
		r := m.run(t, `{find: "c", sort: {_id: -1}, limit: 1, `+inTxn(sessionA, i, false)+`, $db: "d"}`)
		if id := r.Lookup("cursor", "firstBatch", "0", "_id").Int32(); id != int32(i) {
			t.Errorf("%s: the newest document seen is %d, want %d", level, id, i)
		}
	}
}

func TestKilledAndExpiredTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMember(t, "5.0.7", func(c *dispatch.Config) { c.TransactionLifetime = time.Minute })
		for i, end := range []func(){
			func() { m.want(t, `{endSessions: [`+sessionA[len("lsid: "):]+`], $db: "admin"}`, ok) },
			func() { m.want(t, `{killSessions: [], $db: "admin"}`, ok) },
			func() { m.want(t, `{killAllSessions: [], $db: "admin"}`, ok) },
			func() { time.Sleep(61 * time.Second); synctest.Wait() },
		} {
			m.want(t, fmt.Sprintf(`{insert: "c", documents: [{_id: %d}], `, i)+inTxn(sessionA, i+1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
			end()
			text := fmt.Sprintf("Transaction %d has been aborted.", i+1)
			if i == 0 { // an ended session is forgotten
				text = "Given transaction number 1 does not match any in-progress transactions. The active transaction number is -1"
			}
			m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, i+1, false)+`, $db: "admin"}`, noSuch(text))
		}
	})
}

// TestPreparedTransactionsOutliveTheirPrimary steps down with a prepared
// transaction, lets the member's replay find it in the log, and is elected again.
func TestPreparedTransactionsOutliveTheirPrimary(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.run(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`)
	m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
	m.want(t, `{insert: "c", documents: [{_id: 2}], `+inTxn(sessionB, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
	prepared := m.run(t, `{prepareTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`)
	ts, i := prepared.Lookup("prepareTimestamp").Timestamp()
	entries := len(m.entries(t))
	m.SteppedDown()
	applier, err := replay.New(m.store, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.entries(t)); n != entries {
		t.Errorf("stepping down has logged %d entries", n-entries)
	}
	m.SteppedUp(4, applier.Prepared())
	insert := `{insert: "c", documents: [{_id: 1}], maxTimeMS: 20, $db: "d"}`
	if r := m.run(t, insert); r.Lookup("code").AsInt64() != 50 {
		t.Errorf("a writer of the same document does not wait: %s", r)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionB, 1, false)+`, $db: "admin"}`,
		noSuch("Given transaction number 1 does not match any in-progress transactions. The active transaction number is -1"))
	m.want(t, `{commitTransaction: 1, commitTimestamp: `+fmt.Sprintf(`{$timestamp: {t: %d, i: %d}}, `, ts, i)+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	m.want(t, `{find: "c", $db: "d"}`, `{cursor: {firstBatch: [{_id: 0}, {_id: 1}], id: {$numberLong: "0"}, ns: "d.c"}, ok: 1.0}`)
}
