package command

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

func TestRefusals(t *testing.T) {
	m := newMember(t, "5.0.7")
	for _, tc := range []struct{ cmd, reply string }{
		{
			`{nosuchcommand: 1, $db: "d"}`,
			`{ok: 0.0, errmsg: "no such command: 'nosuchcommand'", code: 59, codeName: "CommandNotFound"}`,
		},
		{
			`{insert: "c", documents: [{}], bogus: 1, $db: "d"}`,
			`{ok: 0.0, errmsg: "BSON field 'insert.bogus' is an unknown field.", code: 40415, codeName: "Location40415"}`,
		},
		{
			`{insert: "c", $db: "d"}`,
			`{ok: 0.0, errmsg: "BSON field 'insert.documents' is missing but a required field", code: 40414, codeName: "Location40414"}`,
		},
		{
			`{insert: "c", documents: [{}], ordered: true, ordered: true, $db: "d"}`,
			`{ok: 0.0, errmsg: "BSON field 'insert.ordered' is a duplicate field", code: 40413, codeName: "Location40413"}`,
		},
		{
			`{insert: "c", documents: [{}]}`,
			`{ok: 0.0, errmsg: "OP_MSG requests require a $db argument", code: 40571, codeName: "Location40571"}`,
		},
		{
			`{insert: "c", documents: [{}], $db: "a.b"}`,
			`{ok: 0.0, errmsg: "Invalid database name: 'a.b'", code: 73, codeName: "InvalidNamespace"}`,
		},
		{
			`{commitTransaction: 1, $db: "d"}`,
			`{ok: 0.0, errmsg: "commitTransaction may only be run against the admin database.", code: 13, codeName: "Unauthorized"}`,
		},
		{
			`{commitTransaction: 1, $db: "admin"}`,
			`{ok: 0.0, errmsg: "commitTransaction must be run within a transaction", code: 125, codeName: "CommandFailed"}`,
		},
		{
			`{insert: "c", documents: [{}], readConcern: {level: "majority"}, $db: "d"}`,
			`{ok: 0.0, errmsg: "Command insert does not support { readConcern: { level: \"majority\", provenance: \"clientSupplied\" } } :: caused by :: read concern not supported", code: 72, codeName: "InvalidOptions"}`,
		},
		{
			`{find: "c", writeConcern: {w: 1}, $db: "d"}`,
			`{ok: 0.0, errmsg: "Command does not support writeConcern", code: 72, codeName: "InvalidOptions"}`,
		},
		{
			`{insert: "c", documents: [{}], writeConcern: {w: 51}, $db: "d"}`,
			`{ok: 0.0, errmsg: "w has to be a non-negative number and not greater than 50; found: 51", code: 9, codeName: "FailedToParse"}`,
		},
		{
			`{insert: "c", documents: [{}], txnNumber: {$numberLong: "1"}, $db: "d"}`,
			`{ok: 0.0, errmsg: "Transaction number requires a session ID to also be specified", code: 72, codeName: "InvalidOptions"}`,
		},
		{
			`{create: "c", txnNumber: {$numberLong: "1"}, ` + sessionA + `, $db: "d"}`,
			`{ok: 0.0, errmsg: "txnNumber may only be provided for multi-document transactions and retryable write commands. autocommit:false was not provided, and create is not a retryable write command.", code: 50768, codeName: "NotARetryableWriteCommand"}`,
		},
		{
			`{insert: "oplog.rs", documents: [{}], $db: "local"}`,
			`{ok: 0.0, errmsg: "writing to the database local is not implemented here", code: 238, codeName: "NotImplemented"}`,
		},
	} {
		m.want(t, tc.cmd, tc.reply)
	}
	if n := len(m.entries(t)); n != len(newMember(t, "5.0.7").entries(t)) {
		t.Errorf("what was refused has left entries: %d", n)
	}
}

func TestAReplyHasTheFieldsOfAMemberInOrder(t *testing.T) {
	m := newMember(t, "5.0.7")
	reply := m.run(t, `{insert: "c", documents: [{_id: 1}], $replData: 1, $oplogQueryData: 1, $db: "d"}`)
	want := []string{"n", "electionId", "opTime", "ok", "$replData", "$oplogQueryData", "$clusterTime", "operationTime"}
	if diff := cmp.Diff(want, names(reply)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	entries := m.entries(t)
	at, inc := entries[len(entries)-1].Lookup("ts").Timestamp()
	for _, path := range [][]string{{"opTime", "ts"}, {"operationTime"}, {"$clusterTime", "clusterTime"}, {"$replData", "lastOpVisible", "ts"}} {
		if a, i := reply.Lookup(path...).Timestamp(); a != at || i != inc {
			t.Errorf("%v is %d.%d, the entry is at %d.%d", path, a, i, at, inc)
		}
	}
	if diff := cmp.Diff([]string{
		"term", "lastOpCommitted", "lastCommittedWall", "lastOpVisible", "configVersion", "configTerm", "replicaSetId",
		"syncSourceIndex", "isPrimary",
	}, names(reply.Lookup("$replData").Document())); diff != "" {
		t.Errorf("$replData (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"lastOpCommitted", "lastCommittedWall", "lastOpApplied", "rbid", "primaryIndex", "syncSourceIndex", "syncSourceHost",
	}, names(reply.Lookup("$oplogQueryData").Document())); diff != "" {
		t.Errorf("$oplogQueryData (-want +got):\n%s", diff)
	}
}

func TestWhereAMemberRunsWhat(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.node.become(func(v *repl.View) { v.State, v.Writable = oplog.MemberSecondary, false })
	topology := `topologyVersion: {processId: {$oid: "010000000000000000000000"}, counter: {$numberLong: "6"}}`
	// As recorded of a secondary.
	m.want(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`,
		`{`+topology+`, ok: 0.0, errmsg: "not master", code: 10107, codeName: "NotWritablePrimary"}`)
	m.want(t, `{find: "c", $db: "d"}`,
		`{`+topology+`, ok: 0.0, errmsg: "not master and slaveOk=false", code: 13435, codeName: "NotPrimaryNoSecondaryOk"}`)
	for _, ok := range []string{
		`{find: "c", $readPreference: {mode: "secondaryPreferred"}, $db: "d"}`,
		`{find: "c", $db: "local"}`,
		`{endSessions: [], $db: "admin"}`,
	} {
		if reply := m.run(t, ok); reply.Lookup("ok").Double() != 1 {
			t.Errorf("%s: %s", ok, reply)
		}
	}
	m.conn.SupportsHello = true
	if reply := m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`); reply.Lookup("errmsg").StringValue() != "not primary" {
		t.Errorf("a client that knows the word is told %s", reply)
	}
	m.node.become(func(v *repl.View) { v.State = oplog.MemberRecovering })
	reply := m.run(t, `{find: "c", $readPreference: {mode: "nearest"}, $db: "d"}`)
	if reply.Lookup("code").Int32() != 13436 || reply.Lookup("errmsg").StringValue() != "node is recovering" {
		t.Errorf("a member that recovers says %s", reply)
	}
}

func TestARetryableWriteOnASecondaryIsLabelled(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.node.become(func(v *repl.View) { v.State, v.Writable = oplog.MemberSecondary, false })
	cmd := `{insert: "c", documents: [{_id: 1}], txnNumber: {$numberLong: "1"}, ` + sessionA + `, $db: "d"}`
	reply := m.run(t, cmd)
	if got := reply.Lookup("errorLabels").String(); got != `["RetryableWriteError"]` || names(reply)[0] != "errorLabels" {
		t.Errorf("labels are %s in %s", got, reply)
	}
	internal := m.Call(t.Context(), parse(t, cmd))
	if _, err := internal.LookupErr("errorLabels"); err == nil {
		t.Errorf("a member is told labels: %s", internal)
	}
}

func TestWriteConcernErrors(t *testing.T) {
	m := newMember(t, "5.0.7")
	var asked []repl.WriteConcern
	m.node.concern = func(_ context.Context, _ oplog.OpTime, wc repl.WriteConcern) error {
		asked = append(asked, wc)
		return servererr.New(servererr.WriteConcernTimeout, "waiting for replication timed out")
	}
	m.want(t, `{insert: "c", documents: [{_id: 1}], writeConcern: {w: 3, wtimeout: 100}, $db: "d"}`, `{n: 1,
		writeConcernError: {code: 64, codeName: "WriteConcernFailed", errmsg: "waiting for replication timed out",
		errInfo: {wtimeout: true, writeConcern: {w: 3, wtimeout: 100, provenance: "clientSupplied"}}}, ok: 1.0}`)
	// A command that fails after it has written waits as well, and says both.
	reply := m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
	if _, err := reply.LookupErr("writeConcernError"); err != nil {
		t.Errorf("%s: want a writeConcernError", reply)
	}
	m.run(t, `{insert: "c", documents: [{_id: 2}], writeConcern: {w: 1}, $db: "d"}`)
	want := []repl.WriteConcern{{W: 3, Timeout: 100 * time.Millisecond}, {Mode: "majority"}}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("waited for (-want +got):\n%s", diff)
	}
	m.node.concern = func(context.Context, oplog.OpTime, repl.WriteConcern) error {
		return servererr.New(servererr.PrimarySteppedDown, "Primary stepped down while waiting for replication")
	}
	reply = m.run(t, `{insert: "c", documents: [{_id: 3}], txnNumber: {$numberLong: "1"}, `+sessionA+`, $db: "d"}`)
	fields := []string{"n", "electionId", "opTime", "writeConcernError", "ok", "errorLabels", "topologyVersion", "$clusterTime", "operationTime"}
	if diff := cmp.Diff(fields, names(reply)); diff != "" {
		t.Errorf("a reply with a state change (-want +got):\n%s", diff)
	}
}

func TestMaxTimeEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMember(t, "5.0.7")
		m.node.concern = func(ctx context.Context, _ oplog.OpTime, _ repl.WriteConcern) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		start := time.Now()
		reply := m.run(t, `{insert: "c", documents: [{_id: 1}], maxTimeMS: 250, $db: "d"}`)
		if d := time.Since(start); d != 250*time.Millisecond {
			t.Errorf("it took %s", d)
		}
		if code := reply.Lookup("writeConcernError", "code").Int32(); code != 50 {
			t.Errorf("%s: want a writeConcernError with code 50", reply)
		}
		m.node.applied = func(ctx context.Context, _ bson.Timestamp) error {
			<-ctx.Done()
			return ctx.Err()
		}
		m.node.become(func(v *repl.View) { v.Writable, v.State = false, oplog.MemberSecondary })
		later := time.Now().Unix() + 1000
		reply = m.CallOn(t.Context(), m.conn, marshal(t, bson.D{
			{Key: "find", Value: "c"},
			{Key: "$db", Value: "d"},
			{Key: "maxTimeMS", Value: 100},
			{Key: "$readPreference", Value: bson.D{{Key: "mode", Value: "nearest"}}},
			{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: bson.Timestamp{T: uint32(later)}}}},
			{Key: "readConcern", Value: bson.D{{Key: "afterClusterTime", Value: bson.Timestamp{T: uint32(later)}}}},
		}))
		if reply.Lookup("code").Int32() != 50 || reply.Lookup("errmsg").StringValue() != "operation exceeded time limit" {
			t.Errorf("a read that waits for the cluster time ends with %s", reply)
		}
	})
}

func marshal(t testing.TB, v any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestAPrimaryLogsANoOpToReachAClusterTime(t *testing.T) {
	m := newMember(t, "5.0.7")
	entries := m.entries(t)
	after := bson.Timestamp{T: uint32(time.Now().Unix()) + 50, I: 7}
	cmd := bson.D{
		{Key: "find", Value: "c"},
		{Key: "$db", Value: "d"},
		{Key: "$clusterTime", Value: bson.D{{Key: "clusterTime", Value: after}}},
		{Key: "readConcern", Value: bson.D{{Key: "afterClusterTime", Value: after}}},
	}
	if reply := m.CallOn(t.Context(), m.conn, marshal(t, cmd)); reply.Lookup("ok").Double() != 1 {
		t.Fatal(reply)
	}
	now := m.entries(t)
	if len(now) != len(entries)+1 {
		t.Fatalf("%d entries more, want 1", len(now)-len(entries))
	}
	last := now[len(now)-1]
	ts, i := last.Lookup("ts").Timestamp()
	if last.Lookup("op").StringValue() != "n" || oplog.CompareTimestamps(bson.Timestamp{T: ts, I: i}, after) < 0 {
		t.Errorf("the entry is %s", last)
	}
	// A time that was never seen is refused.
	unknown := bson.Timestamp{T: after.T + 1000}
	cmd[3].Value = bson.D{{Key: "afterClusterTime", Value: unknown}}
	if reply := m.CallOn(t.Context(), m.conn, marshal(t, cmd)); reply.Lookup("code").Int32() != 72 {
		t.Errorf("an unknown cluster time: %s", reply)
	}
}

func TestFailCommand(t *testing.T) {
	m := newMember(t, "5.0.7")
	set := func(mode, data string) {
		t.Helper()
		if r := m.run(t, `{configureFailPoint: "failCommand", mode: `+mode+`, data: `+data+`, $db: "admin"}`); r.Lookup("ok").Double() != 1 {
			t.Fatal(r)
		}
	}
	insert := `{insert: "c", documents: [{}], txnNumber: {$numberLong: "1"}, ` + sessionA + `, $db: "d"}`
	set(`{times: 1}`, `{failCommands: ["insert"], errorCode: 10107}`)
	m.want(t, insert, `{errorLabels: ["RetryableWriteError"], topologyVersion: {processId: {$oid: "010000000000000000000000"}, counter: {$numberLong: "6"}},
		ok: 0.0, errmsg: "Failing command via 'failCommand' failpoint", code: 10107, codeName: "NotWritablePrimary"}`)
	m.want(t, insert, `{n: 1, ok: 1.0}`)

	set(`{skip: 1}`, `{failCommands: ["find"], errorCode: 91, errorLabels: ["Own"]}`)
	m.want(t, `{find: "none", $db: "d"}`, `{cursor: {id: {$numberLong: "0"}, ns: "d.none", firstBatch: []}, ok: 1.0}`)
	m.want(t, `{find: "none", $db: "d"}`, `{errorLabels: ["Own"], ok: 0.0, errmsg: "Failing command via 'failCommand' failpoint", code: 91, codeName: "ShutdownInProgress"}`)

	set(`"alwaysOn"`, `{failCommands: ["insert", "find"], writeConcernError: {code: 100, errmsg: "few"}}`)
	m.want(t, `{insert: "c", documents: [{_id: 9}], $db: "d"}`, `{n: 1, writeConcernError: {code: 100, errmsg: "few"}, ok: 1.0}`)

	set(`"alwaysOn"`, `{failCommands: ["find"], closeConnection: true}`)
	if r := m.run(t, `{find: "none", $db: "d"}`); r != nil {
		t.Errorf("a closed connection answers %s", r)
	}
	if r := m.Call(t.Context(), parse(t, `{find: "none", $db: "d"}`)); r.Lookup("ok").Double() != 1 {
		t.Errorf("another member met the fail point: %s", r)
	}
	set(`"off"`, `{}`)
	if r := m.run(t, `{find: "none", $db: "d"}`); r.Lookup("ok").Double() != 1 {
		t.Errorf("after off: %s", r)
	}
}

func TestBlockedCommandsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMember(t, "5.0.7")
		m.run(t, `{configureFailPoint: "failCommand", mode: "alwaysOn", data: {failCommands: ["ping", "insert"], blockConnection: true, blockTimeMS: 3600000}, $db: "admin"}`)
		answer := make(chan bson.Raw)
		go func() { answer <- m.run(t, `{insert: "c", documents: [{}], $db: "d"}`) }()
		synctest.Wait()
		m.Close()
		if r := <-answer; r.Lookup("code").Int32() != 11600 {
			t.Errorf("a command that was blocked ended with %s", r)
		}
	})
}

func TestNewNamesEveryFault(t *testing.T) {
	_, err := New(dispatch.Config{})
	if err == nil {
		t.Fatal("an empty configuration was taken")
	}
	for _, want := range []string{"Host", "Store", "Path", "Node", "NewUUID", "version"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
