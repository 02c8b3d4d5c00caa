package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// recordedNode records calls, and returns the answers that a test sets.
type recordedNode struct {
	*scriptedNode
	calls   []string
	answer  bson.Raw
	err     error
	changed chan struct{}
}

func (n *recordedNode) call(format string, args ...any) error {
	n.calls = append(n.calls, fmt.Sprintf(format, args...))
	return n.err
}

func (n *recordedNode) Changed() <-chan struct{}  { return n.changed }
func (n *recordedNode) Status() (bson.Raw, error) { return n.answer, n.err }

func (n *recordedNode) Initiate(_ context.Context, config bson.Raw) error {
	return n.call("initiate %s", config)
}

func (n *recordedNode) Reconfig(_ context.Context, config bson.Raw, force bool) error {
	return n.call("reconfig %s %t", config, force)
}

func (n *recordedNode) StepDown(_ context.Context, stepDown, catchUp time.Duration, force bool) error {
	return n.call("step down %s %s %t", stepDown, catchUp, force)
}
func (n *recordedNode) StepUp(context.Context) error { return n.call("step up") }
func (n *recordedNode) Freeze(d time.Duration) error { return n.call("freeze %s", d) }

func (n *recordedNode) Heartbeat(cmd bson.Raw) (bson.Raw, error) {
	return n.answer, n.call("heartbeat from %s", cmd.Lookup("from").StringValue())
}

func (n *recordedNode) RequestVotes(cmd bson.Raw) (bson.Raw, error) {
	return n.answer, n.call("votes in %d", cmd.Lookup("term").AsInt64())
}
func (n *recordedNode) UpdatePosition(bson.Raw) error { return n.call("position") }

func newRecordedMember(t testing.TB, version string, change ...func(c *dispatch.Config)) (*member, *recordedNode) {
	t.Helper()
	n := &recordedNode{changed: make(chan struct{})}
	m := newMember(t, version, append(change, func(c *dispatch.Config) {
		n.scriptedNode = c.Node.(*scriptedNode)
		c.Node = n
	})...)
	return m, n
}

// three makes the node see a set of three, as the recorded replies do.
func (n *recordedNode) three(t testing.TB, state oplog.MemberState) {
	t.Helper()
	at := oplog.OpTime{TS: bson.Timestamp{T: 1795168891, I: 2}, Term: 5}
	config := recorded(t, "replSetGetConfig").Lookup("config").Document()
	n.become(func(v *repl.View) {
		v.State, v.Writable, v.Term = state, state == oplog.MemberPrimary, 5
		v.Self, v.Primary, v.SetName, v.ConfigVersion, v.ConfigTerm, v.ConfigDoc = 0, 0, "tgt", 3, 5, config
		if state == oplog.MemberSecondary {
			v.Self, v.Source = 1, "127.0.0.1:27311"
		}
		v.Members = nil
		for i := range 3 {
			v.Members = append(v.Members, repl.Member{
				ID: i, Host: fmt.Sprintf("127.0.0.1:2731%d", i+1), Votes: 1, Priority: 1, BuildIndexes: true,
			})
		}
		v.Applied, v.Durable, v.Committed = at, at, at
		v.CommittedWall = time.UnixMilli(1795168891989)
		v.RBID = 1
	})
}

// recorded reads a reply of a real server.
func recorded(t testing.TB, name string) bson.Raw {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "replies", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Fatalf("%s is no JSON", name)
	}
	return parse(t, string(text))
}

// shapes lists the fields of a document, those inside others too, with their
// types, which must equal those of a real server's reply, whatever the values.
func shapes(doc bson.Raw, within string, into *[]string) {
	elems, err := doc.Elements()
	if err != nil {
		*into = append(*into, within+" is corrupt")
		return
	}
	for _, e := range elems {
		name := within + e.Key()
		switch v := e.Value(); v.Type {
		case bson.TypeEmbeddedDocument:
			*into = append(*into, name+" object")
			shapes(v.Document(), name+".", into)
		case bson.TypeArray:
			*into = append(*into, name+" array")
			shapes(bson.Raw(v.Array()), name+".", into)
		default:
			*into = append(*into, fmt.Sprintf("%s %s", name, v.Type))
		}
	}
}

func shapesOf(doc bson.Raw, drop ...string) []string {
	var list []string
	shapes(doc, "", &list)
	return slices.DeleteFunc(list, func(s string) bool {
		return slices.ContainsFunc(append(drop, "$clusterTime", "operationTime"), func(d string) bool {
			name, _, _ := strings.Cut(s, " ")
			return name == d || strings.HasPrefix(name, d+".")
		})
	})
}

// TestShapes compares replies with recorded ones, field by field, in order and
// type.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, command string
		state         oplog.MemberState
		// ours and theirs are fields that only one side has.
		ours, theirs []string
	}{
		{file: "hello-primary", command: `{"hello": 1, "$db": "admin"}`, state: oplog.MemberPrimary},
		{file: "hello-secondary", command: `{"hello": 1, "$db": "admin"}`, state: oplog.MemberSecondary},
		{file: "isMaster-secondary", command: `{"isMaster": 1, "$db": "admin"}`, state: oplog.MemberSecondary},
		{file: "hello-metadata", command: `{"hello": 1, "$replData": 1, "$oplogQueryData": 1, "$db": "admin"}`, state: oplog.MemberPrimary},
		{
			file: "buildInfo", command: `{"buildInfo": 1, "$db": "admin"}`, state: oplog.MemberPrimary,
			// There is one engine, and so a shorter list.
			theirs: []string{"storageEngines.1", "storageEngines.2"},
		},
		{file: "connectionStatus", command: `{"connectionStatus": 1, "$db": "admin"}`, state: oplog.MemberPrimary},
		{file: "replSetGetConfig", command: `{"replSetGetConfig": 1, "$db": "admin"}`, state: oplog.MemberPrimary},
		{file: "replSetGetRBID", command: `{"replSetGetRBID": 1, "$db": "admin"}`, state: oplog.MemberPrimary},
	} {
		t.Run(c.file, func(t *testing.T) {
			t.Parallel()
			m, n := newRecordedMember(t, "5.0.7")
			n.three(t, c.state)
			got, want := shapesOf(m.run(t, c.command), c.ours...), shapesOf(recorded(t, c.file), c.theirs...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-recorded +ours):\n%s", diff)
			}
		})
	}
}

// TestHeartbeatReply wants ok in front, as nowhere else.
func TestHeartbeatReply(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "5.0.7")
	want := recorded(t, "replSetHeartbeat")
	elems, err := want.Elements()
	if err != nil {
		t.Fatal(err)
	}
	rest := bson.D{}
	for _, e := range elems[1:] {
		rest = append(rest, bson.E{Key: e.Key(), Value: e.Value()})
	}
	if n.answer, err = bson.Marshal(rest); err != nil {
		t.Fatal(err)
	}
	got := m.run(t, `{"replSetHeartbeat": "tgt", "from": "a:1", "$db": "admin"}`)
	if diff := cmp.Diff(shapesOf(want), shapesOf(got)); diff != "" {
		t.Errorf("(-recorded +ours):\n%s", diff)
	}
}

func TestHelloMembers(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "7.0.15")
	n.three(t, oplog.MemberSecondary)
	n.become(func(v *repl.View) {
		v.Members = append(v.Members,
			repl.Member{Host: "passive:1", BuildIndexes: true}, repl.Member{Host: "hidden:1", Hidden: true, BuildIndexes: true},
			repl.Member{Host: "late:1", DelaySecs: 60, BuildIndexes: true}, repl.Member{Host: "arbiter:1", Arbiter: true, BuildIndexes: true})
	})
	hosts := `"hosts": ["127.0.0.1:27311", "127.0.0.1:27312", "127.0.0.1:27313"], "passives": ["passive:1"], "arbiters": ["arbiter:1"]`
	for _, c := range []struct {
		self repl.Member
		want string
	}{
		{repl.Member{Host: "me:1", Priority: 1, BuildIndexes: true}, `"me": "me:1"`},
		{repl.Member{Host: "me:1", BuildIndexes: true}, `"passive": true, "me": "me:1"`},
		{
			repl.Member{Host: "me:1", Hidden: true, DelaySecs: 5, Tags: map[string]string{"b": "2", "a": "1"}},
			`"passive": true, "hidden": true, "buildIndexes": false, "secondaryDelaySecs": {"$numberLong": "5"}, "tags": {"a": "1", "b": "2"}, "me": "me:1"`,
		},
		{repl.Member{Host: "me:1", Arbiter: true, BuildIndexes: true}, `"arbiterOnly": true, "me": "me:1"`},
	} {
		n.become(func(v *repl.View) { v.Members[1] = c.self })
		reply := m.run(t, `{"hello": 1, "$db": "admin"}`)
		var got bson.D
		for _, e := range must(reply.Elements()) {
			switch e.Key() {
			case "hosts", "passives", "arbiters", "arbiterOnly", "passive", "hidden", "buildIndexes", "secondaryDelaySecs", "tags", "me":
				got = append(got, bson.E{Key: e.Key(), Value: e.Value()})
			}
		}
		list := strings.Replace(hosts, "127.0.0.1:27312\", \"", "", 1)
		switch {
		case c.self.Priority > 0:
			list = strings.Replace(hosts, "127.0.0.1:27312", "me:1", 1)
		case c.self.Arbiter:
			list = strings.Replace(list, `["arbiter:1"]`, `["me:1", "arbiter:1"]`, 1)
		case !c.self.Hidden:
			list = strings.Replace(list, `["passive:1"]`, `["me:1", "passive:1"]`, 1)
		}
		if want := extJSON(t, parse(t, "{"+list+", "+c.want+"}")); extJSON(t, got) != want {
			t.Errorf("%+v\n got %s\nwant %s", c.self, extJSON(t, got), want)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestHelloStates(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "4.4.29")
	n.three(t, oplog.MemberPrimary)
	n.become(func(v *repl.View) { v.Writable = false })
	reply := m.run(t, `{"isMaster": 1, "helloOk": true, "$db": "test"}`)
	if reply.Lookup("ismaster").Boolean() || !reply.Lookup("secondary").Boolean() || !reply.Lookup("helloOk").Boolean() {
		t.Errorf("draining: %s", reply)
	}
	if got := reply.Lookup("maxWireVersion").AsInt64(); got != 9 {
		t.Errorf("wire version %d", got)
	}
	n.become(func(v *repl.View) { v.ConfigDoc, v.Self, v.Primary, v.State = nil, -1, -1, oplog.MemberStartup })
	reply = m.run(t, `{"hello": 1, "$db": "test"}`)
	if reply.Lookup("info").StringValue() != "Does not have a valid replica set config" || !reply.Lookup("isreplicaset").Boolean() {
		t.Errorf("without a configuration: %s", reply)
	}
}

func TestHelloMetadata(t *testing.T) {
	t.Parallel()
	m, _ := newRecordedMember(t, "5.0.7")
	first := m.run(t, `{"hello": 1, "client": {"driver": {"name": "x"}}, "$db": "admin"}`)
	again := m.run(t, `{"hello": 1, "client": {"driver": {"name": "x"}}, "$db": "admin"}`)
	if first.Lookup("ok").Double() != 1 || again.Lookup("code").AsInt64() != int64(servererr.ClientMetadataCannotBeMutated) {
		t.Errorf("first %s, again %s", first, again)
	}
	if m.conn.Metadata.Lookup("driver", "name").StringValue() != "x" {
		t.Errorf("kept %s", m.conn.Metadata)
	}
}

// awaitHello is an awaitable hello for a counter.
func awaitHello(counter int64, process bson.ObjectID) string {
	return fmt.Sprintf(`{"hello": 1, "topologyVersion": {"processId": {"$oid": "%s"}, "counter": {"$numberLong": "%d"}}, "maxAwaitTimeMS": 10000, "$db": "admin"}`,
		process.Hex(), counter)
}

func TestHelloAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, n := newRecordedMember(t, "5.0.7")
		process := bson.ObjectID{1}
		took := func(cmd string) (time.Duration, bson.Raw) {
			began := time.Now()
			reply := m.run(t, cmd)
			return time.Since(began), reply
		}
		if d, reply := took(awaitHello(6, process)); d != 10*time.Second || reply.Lookup("ok").Double() != 1 {
			t.Errorf("without a change: %s, %s", d, reply)
		}
		if d, _ := took(awaitHello(5, process)); d != 0 {
			t.Errorf("an older state: %s", d)
		}
		if d, _ := took(awaitHello(9, bson.ObjectID{2})); d != 0 {
			t.Errorf("another process: %s", d)
		}
		if _, reply := took(awaitHello(7, process)); reply.Lookup("code").AsInt64() != 31382 {
			t.Errorf("a state to come: %s", reply)
		}
		time.AfterFunc(3*time.Second, func() {
			n.become(func(v *repl.View) { v.TopologyCounter++ })
			close(n.changed)
		})
		d, reply := took(awaitHello(6, process))
		if d != 3*time.Second || reply.Lookup("topologyVersion", "counter").AsInt64() != 7 {
			t.Errorf("with a change: %s, %s", d, reply)
		}
		time.AfterFunc(time.Second, m.Close)
		n.changed = make(chan struct{})
		if d, reply := took(awaitHello(7, process)); d != time.Second || reply.Lookup("code").AsInt64() != int64(servererr.InterruptedAtShutdown) {
			t.Errorf("at shutdown: %s, %s", d, reply)
		}
	})
}

// TestHelloExhaust wants the request that the next reply stands for to have the
// topologyVersion of this one.
func TestHelloExhaust(t *testing.T) {
	t.Parallel()
	m, _ := newRecordedMember(t, "5.0.7")
	out := m.Dispatch(t.Context(), m.conn, dispatch.Input{Body: parse(t, awaitHello(2, bson.ObjectID{1})), Exhaust: true})
	if !out.More || out.Next.Lookup("topologyVersion", "counter").AsInt64() != 6 || out.Next.Lookup("maxAwaitTimeMS").AsInt64() != 10000 {
		t.Errorf("more %t, next %s", out.More, out.Next)
	}
	out = m.Dispatch(t.Context(), m.conn, dispatch.Input{Body: parse(t, `{"hello": 1, "$db": "admin"}`), Exhaust: true})
	if out.More {
		t.Error("an ordinary hello goes on")
	}
}

func TestHelloFaults(t *testing.T) {
	t.Parallel()
	m, _ := newRecordedMember(t, "5.0.7")
	for _, c := range []struct {
		cmd  string
		code int64
	}{
		{`{"hello": 1, "maxAwaitTimeMS": 1, "$db": "admin"}`, 31368},
		{`{"hello": 1, "topologyVersion": {"processId": {"$oid": "010000000000000000000000"}, "counter": {"$numberLong": "1"}}, "$db": "admin"}`, 31368},
		{`{"hello": 1, "topologyVersion": 1, "maxAwaitTimeMS": 1, "$db": "admin"}`, 14},
		{`{"hello": 1, "topologyVersion": {}, "maxAwaitTimeMS": 1, "$db": "admin"}`, 40414},
		{strings.Replace(awaitHello(1, bson.ObjectID{1}), "10000,", "-1,", 1), 31373},
		{awaitHello(-1, bson.ObjectID{1}), 31372},
		{`{"hello": 1, "saslSupportedMechs": "x", "$db": "admin"}`, 2},
	} {
		if reply := m.run(t, c.cmd); reply.Lookup("code").AsInt64() != c.code {
			t.Errorf("%s: %s, want code %d", c.cmd, reply, c.code)
		}
	}
}

// TestReplCommands checks what reaches the node.
func TestReplCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cmd, call, reply string }{
		{`{"replSetInitiate": {"_id": "x"}, "$db": "admin"}`, `initiate {"_id": "x","version": {"$numberInt":"1"}}`, `{"ok": 1.0}`},
		{
			`{"replSetInitiate": {}, "$db": "admin"}`, `initiate {}`,
			`{"info2": "no configuration specified. Using a default configuration for the set", "me": "h:1", "ok": 1.0}`,
		},
		{`{"replSetReconfig": {"_id": "x"}, "force": true, "$db": "admin"}`, `reconfig {"_id": "x"} true`, `{"ok": 1.0}`},
		{`{"replSetStepDown": 1, "force": true, "$db": "admin"}`, `step down 1s 0s true`, `{"ok": 1.0}`},
		{`{"replSetStepDown": 60.0, "$db": "admin"}`, `step down 1m0s 10s false`, `{"ok": 1.0}`},
		{`{"replSetStepDown": 0, "secondaryCatchUpPeriodSecs": 3, "$db": "admin"}`, `step down 1m0s 3s false`, `{"ok": 1.0}`},
		{`{"replSetStepUp": 1, "$db": "admin"}`, `step up`, `{"ok": 1.0}`},
		{`{"replSetFreeze": 20, "$db": "admin"}`, `freeze 20s`, `{"ok": 1.0}`},
		{`{"replSetFreeze": 0, "$db": "admin"}`, `freeze 0s`, `{"info": "unfreezing", "ok": 1.0}`},
		{`{"replSetRequestVotes": 1, "term": 8, "$db": "admin"}`, `votes in 8`, `{"x": 1, "ok": 1.0}`},
		{`{"replSetUpdatePosition": 1, "optimes": [], "$db": "admin"}`, `position`, `{"ok": 1.0}`},
	} {
		m, n := newRecordedMember(t, "5.0.7")
		n.answer = parse(t, `{"x": 1}`)
		m.want(t, c.cmd, c.reply)
		if got := strings.Join(n.calls, "; "); got != c.call {
			t.Errorf("%s\n got %s\nwant %s", c.cmd, got, c.call)
		}
		n.err = servererr.New(servererr.NodeNotFound, "no")
		m.want(t, c.cmd, `{"ok": 0.0, "errmsg": "no", "code": 74, "codeName": "NodeNotFound"}`)
	}
}

func TestReplRefusals(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "5.0.7")
	for _, c := range []struct {
		cmd  string
		code servererr.Code
	}{
		{`{"replSetStepDown": 5, "$db": "admin"}`, servererr.BadValue},
		{`{"replSetStepDown": -1, "$db": "admin"}`, servererr.BadValue},
		{`{"replSetStepDown": "x", "$db": "admin"}`, servererr.TypeMismatch},
		{`{"replSetStepDown": 5, "secondaryCatchUpPeriodSecs": -1, "$db": "admin"}`, servererr.BadValue},
		{`{"replSetFreeze": -1, "$db": "admin"}`, servererr.BadValue},
		{`{"replSetReconfig": 1, "$db": "admin"}`, servererr.BadValue},
		{`{"replSetInitiate": "x", "$db": "test"}`, servererr.Unauthorized},
		{`{"replSetMaintenance": true, "$db": "admin"}`, servererr.NotImplemented},
		{`{"replSetAbortPrimaryCatchUp": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"replSetTest": 1, "$db": "admin"}`, servererr.CommandNotFound},
	} {
		if reply := m.run(t, c.cmd); reply.Lookup("code").AsInt64() != int64(c.code) {
			t.Errorf("%s: %s, want %s", c.cmd, reply, c.code)
		}
	}
	if len(n.calls) > 0 {
		t.Errorf("the node heard of %v", n.calls)
	}
	n.become(func(v *repl.View) { v.ConfigDoc = nil })
	if reply := m.run(t, `{"replSetGetConfig": 1, "$db": "admin"}`); reply.Lookup("code").AsInt64() != int64(servererr.NotYetInitialized) {
		t.Errorf("without a configuration: %s", reply)
	}
}

func TestCommitmentStatus(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "5.0.7")
	n.three(t, oplog.MemberPrimary)
	for _, c := range []struct {
		other string // the version that the second member has
		want  bool
	}{{"3", true}, {"2", false}} {
		n.answer = parse(t, `{"members": [{}, {"configVersion": `+c.other+`, "configTerm": 5}, {"configVersion": 2, "configTerm": 5}]}`)
		reply := m.run(t, `{"replSetGetConfig": 1, "commitmentStatus": true, "$db": "admin"}`)
		if got, ok := reply.Lookup("commitmentStatus").BooleanOK(); !ok || got != c.want {
			t.Errorf("version %s: %s", c.other, reply)
		}
	}
}
