package command

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/oplog"
)

// TestServerStatusShape wants no field that a real server does not have, or has
// elsewhere or with another type. Missing fields are not checked here.
func TestServerStatusShape(t *testing.T) {
	t.Parallel()
	m, n := newRecordedMember(t, "5.0.7")
	n.three(t, oplog.MemberPrimary)
	m.run(t, `{"insert": "c", "documents": [{}, {}], "$db": "test"}`)
	m.run(t, `{"ping": 1, "$db": "test"}`)
	// The recorded server's engine had another name for its section.
	got := shapesOf(m.run(t, `{"serverStatus": 1, "$db": "admin"}`), "wiredTiger")
	want := shapesOf(recorded(t, "serverStatus"))
	place := -1
	for _, field := range got {
		at := slices.Index(want, field)
		if at < 0 {
			t.Errorf("%s: no such field in a real reply", field)
			continue
		}
		if at < place {
			t.Errorf("%s comes too late", field)
		}
		place = at
	}
	if len(got) < 60 {
		t.Errorf("only %d fields", len(got))
	}
}

func TestServerStatusNumbers(t *testing.T) {
	t.Parallel()
	m := newMember(t, "5.0.7")
	m.run(t, `{"insert": "c", "documents": [{}, {}, {}], "$db": "test"}`)
	m.run(t, `{"find": "c", "batchSize": 1, "$db": "test"}`)
	m.run(t, `{"nosuch": 1, "$db": "test"}`)
	m.run(t, `{"find": {}, "$db": "test"}`)
	reply := m.run(t, `{"serverStatus": 1, "mem": 0, "$db": "admin"}`)
	for path, want := range map[string]int64{
		"opcounters.insert": 3, "opcounters.query": 2, "metrics.commands.find.total": 2, "metrics.commands.find.failed": 1,
		"metrics.cursor.open.total": 1, "connections.current": 1, "repl.rbid": 0,
	} {
		v, err := reply.LookupErr(strings.Split(path, ".")...)
		if err != nil || v.AsInt64() != want {
			t.Errorf("%s is %v, want %d", path, v, want)
		}
	}
	if used := reply.Lookup("wiredTiger", "cache", "bytes currently in the cache").AsInt64(); used < 60 {
		t.Errorf("%d bytes are used", used)
	}
	if _, err := reply.LookupErr("mem"); err == nil {
		t.Error("a section that was not wanted is there")
	}
	m.CloseConn(m.conn)
	if got := m.run(t, `{"serverStatus": 1, "$db": "admin"}`).Lookup("connections", "current").AsInt64(); got != 0 {
		t.Errorf("%d connections after the end of the only one", got)
	}
}

func TestAdminReplies(t *testing.T) {
	t.Parallel()
	m := newMember(t, "7.0.15", func(c *dispatch.Config) { c.Dialect.FCV = "6.0" })
	for _, c := range []struct{ cmd, reply string }{
		{`{"ping": 1, "$db": "test"}`, `{"ok": 1.0}`},
		{`{"whatsmyuri": 1, "$db": "admin"}`, `{"you": "test", "ok": 1.0}`},
		{`{"getLog": "*", "$db": "admin"}`, `{"names": ["global", "startupWarnings"], "ok": 1.0}`},
		{`{"getLog": "startupWarnings", "$db": "admin"}`, `{"totalLinesWritten": 0, "log": [], "ok": 1.0}`},
		{`{"currentOp": 1, "$db": "admin"}`, `{"inprog": [], "ok": 1.0}`},
		{
			`{"getCmdLineOpts": 1, "$db": "admin"}`,
			`{"argv": ["mongod", "--replSet", "rs", "--bind_ip", "h", "--port", "1"],
				"parsed": {"net": {"bindIp": "h", "port": 1}, "replication": {"replSet": "rs"}}, "ok": 1.0}`,
		},
		{`{"getParameter": 1, "featureCompatibilityVersion": 1, "$db": "admin"}`, `{"featureCompatibilityVersion": {"version": "6.0"}, "ok": 1.0}`},
		{`{"getParameter": 1, "logLevel": 1, "quiet": 1, "$db": "admin"}`, `{"logLevel": 0, "quiet": false, "ok": 1.0}`},
		{`{"setParameter": 1, "quiet": true, "logLevel": 2, "$db": "admin"}`, `{"was": 0, "ok": 1.0}`},
		{
			`{"getParameter": {"showDetails": true}, "logLevel": 1, "$db": "admin"}`,
			`{"logLevel": {"value": 2, "settableAtRuntime": true, "settableAtStartup": true}, "ok": 1.0}`,
		},
		{`{"setFeatureCompatibilityVersion": "6.0", "confirm": true, "$db": "admin"}`, `{"ok": 1.0}`},
		{
			`{"connectionStatus": 1, "showPrivileges": true, "$db": "admin"}`,
			`{"authInfo": {"authenticatedUsers": [], "authenticatedUserRoles": [], "authenticatedUserPrivileges": []}, "ok": 1.0}`,
		},
		{`{"usersInfo": 1, "$db": "admin"}`, `{"users": [], "ok": 1.0}`},
		{`{"logout": 1, "$db": "admin"}`, `{"ok": 1.0}`},
	} {
		m.want(t, c.cmd, c.reply)
	}
	reply := m.run(t, `{"buildInfo": 1, "$db": "admin"}`)
	if got := reply.Lookup("versionArray").String(); got != `[{"$numberInt":"7"},{"$numberInt":"0"},{"$numberInt":"15"},{"$numberInt":"0"}]` {
		t.Errorf("versionArray %s", got)
	}
	if all := must(m.run(t, `{"getParameter": "*", "$db": "admin"}`).Elements()); len(all) < len(dispatch.Parameters) {
		t.Errorf("getParameter * has %d fields", len(all))
	}
}

func TestAdminRefusals(t *testing.T) {
	t.Parallel()
	m := newMember(t, "7.0.15")
	for _, c := range []struct {
		cmd  string
		code servererr.Code
	}{
		{`{"killOp": 1, "op": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"listCommands": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"fsync": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"setDefaultRWConcern": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"shutdown": 1, "$db": "admin"}`, servererr.NotImplemented},
		{`{"profile": 2, "$db": "test"}`, servererr.NotImplemented},
		{`{"setFeatureCompatibilityVersion": "5.0", "confirm": true, "$db": "admin"}`, servererr.BadValue},
		{`{"setFeatureCompatibilityVersion": "7.0", "$db": "admin"}`, 7369100},
		{`{"setFeatureCompatibilityVersion": "x", "$db": "admin"}`, servererr.BadValue},
		{`{"setFeatureCompatibilityVersion": 7, "$db": "admin"}`, servererr.TypeMismatch},
		{`{"getParameter": 1, "nosuch": 1, "$db": "admin"}`, servererr.InvalidOptions},
		{`{"getParameter": 1, "$db": "test"}`, servererr.Unauthorized},
		{`{"setParameter": 1, "nosuch": 1, "$db": "admin"}`, servererr.InvalidOptions},
		{`{"setParameter": 1, "$db": "admin"}`, servererr.InvalidOptions},
		{`{"setParameter": 1, "authenticationMechanisms": [], "$db": "admin"}`, servererr.IllegalOperation},
		{`{"setParameter": 1, "notablescan": true, "$db": "admin"}`, servererr.NotImplemented},
		{`{"setParameter": 1, "quiet": true, "logLevel": 9, "$db": "admin"}`, servererr.BadValue},
		{`{"getLog": "x", "$db": "admin"}`, servererr.OperationFailed},
		{`{"getLog": 1, "$db": "admin"}`, servererr.TypeMismatch},
		{`{"getFreeMonitoringStatus": 1, "$db": "admin"}`, servererr.CommandNotFound},
		{`{"createUser": "x", "pwd": "p", "roles": [], "$db": "admin"}`, servererr.NotImplemented},
		{`{"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "", "$db": "admin"}`, servererr.AuthenticationFailed},
		{`{"saslContinue": 1, "$db": "admin"}`, servererr.ProtocolError},
		{`{"appendOplogNote": 1, "$db": "admin"}`, servererr.NoSuchKey},
		{`{"appendOplogNote": 1, "data": 1, "$db": "admin"}`, servererr.TypeMismatch},
	} {
		if reply := m.run(t, c.cmd); reply.Lookup("code").AsInt64() != int64(c.code) {
			t.Errorf("%s: %s, want %s", c.cmd, reply, c.code)
		}
	}
	if m.run(t, `{"getParameter": 1, "quiet": 1, "$db": "admin"}`).Lookup("quiet").Boolean() {
		t.Error("one of two parameters was set, the other refused")
	}
}

func TestAppendOplogNote(t *testing.T) {
	t.Parallel()
	m := newMember(t, "5.0.7")
	m.want(t, `{"appendOplogNote": 1, "data": {"scenario": "x"}, "$db": "admin"}`, `{"ok": 1.0}`)
	entries := m.logged(t, "")
	if last := entries[len(entries)-1]; extJSON(t, last) != `{"op":"n","o":{"scenario":"x"}}` {
		t.Errorf("logged %v", last)
	}
	reply := m.run(t, `{"appendOplogNote": 1, "data": {}, "maxClusterTime": {"$timestamp": {"t": 5, "i": 1}}, "$db": "admin"}`)
	if reply.Lookup("code").AsInt64() != int64(servererr.StaleClusterTime) {
		t.Errorf("in the past: %s", reply)
	}
	m.want(t, `{"appendOplogNote": 1, "data": {}, "maxClusterTime": {"$timestamp": {"t": 4294967295, "i": 1}}, "$db": "admin"}`, `{"ok": 1.0}`)
}

func TestApplyOps(t *testing.T) {
	t.Parallel()
	m := newMember(t, "5.0.7")
	m.want(t, `{"applyOps": [], "$db": "admin"}`, `{"applied": 0, "results": [], "ok": 1.0}`)
	m.want(t, `{"applyOps": [{"op": "c", "ns": "ao.$cmd", "o": {"create": "a"}}, {"op": "i", "ns": "ao.a", "o": {"_id": 1}}], "$db": "admin"}`,
		`{"applied": 2, "results": [true, true], "ok": 1.0}`)
	m.want(t, `{"applyOps": [{"op": "x", "ns": "ao.a", "o": {}}], "$db": "admin"}`,
		`{"ok": 0.0, "errmsg": "Enumeration value 'x' for field 'OplogEntryBase.op' is not a valid value.", "code": 2, "codeName": "BadValue"}`)
	reply := m.run(t, `{"applyOps": [{"op": "u", "ns": "ao.a", "o2": {"_id": 50}, "o": {"$v": 2, "diff": {"u": {"a": 1}}}}],
		"allowAtomic": false, "alwaysUpsert": false, "$db": "admin"}`)
	if reply.Lookup("errmsg").StringValue() != "applyOps had one or more errors applying ops" || reply.Lookup("results").Type != bson.TypeArray {
		t.Errorf("failed: %s", reply)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	stopped := false
	m, n := newRecordedMember(t, "5.0.7", func(c *dispatch.Config) { c.Shutdown = func() { stopped = true } })
	n.three(t, oplog.MemberPrimary)
	n.err = servererr.New(servererr.ExceededTimeLimit, "No electable secondaries caught up")
	if reply := m.run(t, `{"shutdown": 1, "$db": "admin"}`); stopped || reply.Lookup("code").AsInt64() != int64(servererr.ExceededTimeLimit) {
		t.Errorf("stopped %t: %s", stopped, reply)
	}
	if reply := m.run(t, `{"shutdown": 1, "force": true, "$db": "admin"}`); !stopped || reply != nil {
		t.Errorf("by force: stopped %t, %s", stopped, reply)
	}
}

// gate is access control that lets one action pass, and knows one user.
type gate struct {
	dispatch.Authorizer
	allowed string
	asked   []string
}

func (g *gate) Check(_ *dispatch.Conn, action, db, coll string, _ bson.Raw) error {
	g.asked = append(g.asked, strings.TrimSpace(strings.Join([]string{action, db, coll}, " ")))
	if action == g.allowed {
		return nil
	}
	return servererr.New(servererr.Unauthorized, "not authorized")
}

func (g *gate) Start(c *dispatch.Conn, db string, cmd bson.Raw) (bson.Raw, error) {
	if cmd.Lookup("mechanism").StringValue() != "M" {
		return nil, servererr.New(servererr.MechanismUnavailable, "no")
	}
	c.Login = db
	return bson.Raw(must(bson.Marshal(bson.D{{Key: "conversationId", Value: 1}, {Key: "done", Value: false}}))), nil
}
func (g *gate) UserID(*dispatch.Conn) [32]byte               { return [32]byte{} }
func (g *gate) Mechanisms(user, db string) []string          { return []string{user, db} }
func (g *gate) CreateUser(string, bson.Raw) error            { return nil }
func (g *gate) DropUser(string, bson.Raw) error              { return nil }
func (g *gate) CreateRole(string, bson.Raw) error            { return nil }
func (g *gate) GrantRoles(string, bson.Raw) error            { return nil }
func (g *gate) UsersInfo(string, bson.Raw) (bson.Raw, error) { return dispatch.EmptyArray, nil }

// TestPrivileges checks what each command asks for.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cmd, action string }{
		{`{"replSetGetStatus": 1, "$db": "admin"}`, "replSetGetStatus"},
		{`{"replSetGetConfig": 1, "$db": "admin"}`, "replSetGetConfig"},
		{`{"replSetGetRBID": 1, "$db": "admin"}`, "internal"},
		{`{"replSetHeartbeat": "x", "$db": "admin"}`, "internal"},
		{`{"replSetUpdatePosition": 1, "$db": "admin"}`, "internal"},
		{`{"replSetStepDown": 1, "$db": "admin"}`, "replSetStateChange"},
		{`{"replSetReconfig": {}, "$db": "admin"}`, "replSetConfigure"},
		{`{"serverStatus": 1, "$db": "admin"}`, "serverStatus"},
		{`{"appendOplogNote": 1, "data": {}, "$db": "admin"}`, "appendOplogNote"},
		{`{"applyOps": [], "$db": "admin"}`, "applyOps"},
		{`{"createUser": "x", "$db": "app"}`, "createUser app"},
		{`{"usersInfo": 1, "$db": "app"}`, "viewUser app"},
		{`{"usersInfo": "x", "$db": "app"}`, "viewUser app"},
		{`{"usersInfo": {"user": "x", "db": "other"}, "$db": "app"}`, "viewUser other"},
	} {
		g := &gate{}
		m, _ := newRecordedMember(t, "5.0.7", func(c *dispatch.Config) { c.Auth = g })
		if reply := m.run(t, c.cmd); reply.Lookup("code").AsInt64() != int64(servererr.Unauthorized) {
			t.Errorf("%s: %s", c.cmd, reply)
		}
		if got := strings.Join(g.asked, "; "); got != c.action {
			t.Errorf("%s asks for %q, want %q", c.cmd, got, c.action)
		}
	}
}

// TestBeforeLogin checks the commands that need no login.
func TestBeforeLogin(t *testing.T) {
	t.Parallel()
	g := &gate{}
	m, _ := newRecordedMember(t, "5.0.7", func(c *dispatch.Config) { c.Auth = g })
	for _, cmd := range []string{
		`{"hello": 1, "$db": "admin"}`, `{"ismaster": 1, "$db": "admin"}`, `{"ping": 1, "$db": "admin"}`,
		`{"buildinfo": 1, "$db": "admin"}`, `{"saslStart": 1, "mechanism": "M", "$db": "admin"}`,
	} {
		if reply := m.run(t, cmd); reply.Lookup("ok").Double() != 1 {
			t.Errorf("%s: %s", cmd, reply)
		}
	}
	reply := m.run(t, `{"hello": 1, "saslSupportedMechs": "db.u.v", "speculativeAuthenticate": {"saslStart": 1, "mechanism": "M", "db": "x"}, "$db": "admin"}`)
	if got := reply.Lookup("saslSupportedMechs").String(); got != `["u.v","db"]` {
		t.Errorf("saslSupportedMechs %s", got)
	}
	if reply.Lookup("speculativeAuthenticate", "conversationId").AsInt64() != 1 || m.conn.Login != "x" {
		t.Errorf("speculative login: %s", reply)
	}
	reply = m.run(t, `{"hello": 1, "speculativeAuthenticate": {"saslStart": 1, "mechanism": "N", "db": "x"}, "$db": "admin"}`)
	if _, err := reply.LookupErr("speculativeAuthenticate"); err == nil || reply.Lookup("ok").Double() != 1 {
		t.Errorf("speculative login that fails: %s", reply)
	}
}
