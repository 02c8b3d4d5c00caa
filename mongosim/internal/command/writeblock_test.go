package command

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

const (
	blockWrites = `{setUserWriteBlockMode: 1, global: true, $db: "admin"}`
	allowWrites = `{setUserWriteBlockMode: 1, global: false, $db: "admin"}`
	refusedOne  = `{n: 0, writeErrors: [{index: 0, code: 371, errmsg: "User writes blocked"}], ok: 1.0}`
)

// TestWriteBlock: while writes of users are blocked, commands that would change a database of users are
// refused, and no others; the databases of the server take writes, and blocking is idempotent.
func TestWriteBlock(t *testing.T) {
	t.Parallel()
	m := newMember(t, "7.0.15")
	m.want(t, `{insert: "c", documents: [{_id: 0}, {_id: 1}], $db: "d"}`, `{n: 2, ok: 1.0}`)
	for range 2 {
		m.want(t, blockWrites, ok)
	}
	m.want(t, `{find: "user_writes_critical_sections", $db: "config"}`,
		`{cursor: {firstBatch: [{_id: "", blockNewUserShardedDDL: false, blockUserWrites: true}], id: {$numberLong: "0"}, ns: "config.user_writes_critical_sections"}, ok: 1.0}`)
	m.want(t, `{insert: "c", documents: [{_id: 2}], $db: "d"}`, refusedOne)
	m.want(t, `{update: "c", updates: [{q: {_id: 0}, u: {$set: {x: 1}}}], $db: "d"}`, `{n: 0, writeErrors: [{index: 0, code: 371, errmsg: "User writes blocked"}], nModified: 0, ok: 1.0}`)
	m.want(t, `{delete: "c", deletes: [{q: {}, limit: 0}], $db: "d"}`, refusedOne)
	for _, cmd := range []string{
		`{create: "x", $db: "d"}`, `{drop: "c", $db: "d"}`, `{createIndexes: "c", indexes: [{key: {a: 1}, name: "a_1"}], $db: "d"}`,
		`{renameCollection: "d.c", to: "d.x", $db: "admin"}`, `{collMod: "c", validationLevel: "off", $db: "d"}`,
	} {
		if code, _ := m.run(t, cmd).Lookup("code").AsInt64OK(); code != int64(servererr.UserWritesBlocked) {
			t.Errorf("%s: code %d", cmd, code)
		}
	}
	m.want(t, `{insert: "c", documents: [{_id: 3}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, refusedOne)
	m.want(t, `{update: "c", updates: [{q: {_id: 9}, u: {$set: {x: 1}}}], $db: "d"}`, `{n: 0, nModified: 0, ok: 1.0}`)
	m.want(t, `{insert: "c", documents: [{_id: 2}], $db: "config"}`, `{n: 1, ok: 1.0}`)
	m.want(t, `{appendOplogNote: 1, data: {a: 1}, $db: "admin"}`, ok)
	for range 2 {
		m.want(t, allowWrites, ok)
	}
	m.want(t, `{insert: "c", documents: [{_id: 2}], $db: "d"}`, `{n: 1, ok: 1.0}`)
	old := newMember(t, "5.0.7")
	if reply := old.run(t, blockWrites); reply.Lookup("code").AsInt64() != int64(servererr.CommandNotFound) {
		t.Errorf("5.0: %s", reply)
	}
	if reply := m.run(t, `{setUserWriteBlockMode: 1, global: 1, $db: "admin"}`); reply.Lookup("code").AsInt64() != int64(servererr.TypeMismatch) {
		t.Errorf("of another type: %s", reply)
	}
}

// TestWriteBlockWaits: the block is acknowledged once the transactions that were open have ended: what
// they have written comes before it.
func TestWriteBlockWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMember(t, "7.0.15")
		m.want(t, `{insert: "c", documents: [{_id: 0}], $db: "d"}`, `{n: 1, ok: 1.0}`)
		m.want(t, `{insert: "c", documents: [{_id: 1}], `+inTxn(sessionA, 1, true)+`, $db: "d"}`, `{n: 1, ok: 1.0}`)
		done, end := context.WithCancelCause(t.Context())
		go func() {
			defer end(nil)
			m.want(t, blockWrites, ok)
		}()
		select {
		case <-done.Done():
			t.Error("the block did not wait for the open transaction")
		case <-time.After(time.Minute):
		}
		m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
		<-done.Done()
	})
}
