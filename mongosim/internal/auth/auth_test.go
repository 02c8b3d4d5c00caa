package auth

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/xdg-go/scram"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func document(t testing.TB, fields ...any) bson.Raw {
	t.Helper()
	d := bson.D{}
	for i := 0; i < len(fields); i += 2 {
		d = append(d, bson.E{Key: fields[i].(string), Value: fields[i+1]})
	}
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func manager(t testing.TB, cfg Config) *Manager {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantCode checks an error's code.
func wantCode(t testing.TB, err error, code servererr.Code) {
	t.Helper()
	if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != code {
		t.Fatalf("error %v, want code %v", err, code)
	}
}

// loggedIn returns a connection of a user of the database admin.
//
//nolint:unparam // Calls read better with the name.
func loggedIn(m *Manager, name string) *dispatch.Conn {
	u := m.users[userName{name, "admin"}]
	return &dispatch.Conn{Login: &login{users: []identity{{u.userName, u.id}}}}
}

type client struct {
	mechanism, user, password, db string
	// skip asks for the short form of the exchange.
	skip bool
}

func (c client) steps(t testing.TB) *scram.ClientConversation {
	t.Helper()
	hash, password := scram.SHA256, c.password
	if c.mechanism == sha1Name {
		sum := md5.Sum([]byte(c.user + ":mongo:" + password)) //nolint:gosec // see the import
		hash, password = scram.SHA1, hex.EncodeToString(sum[:])
	}
	made, err := hash.NewClient(c.user, password, "")
	if err != nil {
		t.Fatal(err)
	}
	return made.NewConversation()
}

// logIn has a whole conversation and returns how many replies it took.
func (c client) logIn(t testing.TB, m *Manager, conn *dispatch.Conn) (rounds int, err error) {
	t.Helper()
	steps := c.steps(t)
	first, err := steps.Step("")
	if err != nil {
		t.Fatal(err)
	}
	reply, err := m.Start(conn, c.db, document(t, "saslStart", 1, "mechanism", c.mechanism, "payload", []byte(first),
		"options", bson.D{{Key: "skipEmptyExchange", Value: c.skip}}))
	for err == nil {
		rounds++
		_, payload := reply.Lookup("payload").Binary()
		answer := ""
		if !steps.Done() {
			if answer, err = steps.Step(string(payload)); err != nil {
				return rounds, err
			}
		}
		if reply.Lookup("done").Boolean() {
			if !steps.Valid() {
				t.Fatal("the server says done before it has proven itself")
			}
			return rounds, nil
		}
		reply, err = m.Continue(conn, c.db, document(t, "saslContinue", 1,
			"conversationId", reply.Lookup("conversationId").Int32(), "payload", []byte(answer)))
	}
	return rounds, err
}

func TestLogin(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{
		Users: []User{
			{Name: "ann", Password: "pass word", Roles: []Role{{"root", ""}}},
			{Name: "bob", Password: "pb", DB: "app", Roles: []Role{{"read", ""}}},
		},
		Keyfile: " se\ncr et\n",
	})
	for _, c := range []struct {
		name   string
		client client
		rounds int
		code   servererr.Code
	}{
		{"sha-256", client{sha256Name, "ann", "pass word", "admin", false}, 3, 0},
		{"sha-256, short", client{sha256Name, "ann", "pass word", "admin", true}, 2, 0},
		{"sha-1", client{sha1Name, "ann", "pass word", "admin", true}, 2, 0},
		{"another database", client{sha256Name, "bob", "pb", "app", true}, 2, 0},
		{"the keyfile", client{sha256Name, "__system", "secret", "local", true}, 2, 0},
		{"wrong password", client{sha256Name, "ann", "password", "admin", true}, 1, servererr.AuthenticationFailed},
		{"wrong database", client{sha256Name, "bob", "pb", "admin", true}, 0, servererr.AuthenticationFailed},
		{"nobody", client{sha256Name, "eve", "x", "admin", true}, 0, servererr.AuthenticationFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := &dispatch.Conn{}
			rounds, err := c.client.logIn(t, m, conn)
			if rounds != c.rounds {
				t.Errorf("%d replies, want %d", rounds, c.rounds)
			}
			who := m.Status(conn, true).Lookup("authenticatedUsers").Array()
			if c.code != 0 {
				wantCode(t, err, c.code)
				wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1, "$db", "admin")), servererr.Unauthorized)
				if vs, _ := who.Values(); len(vs) != 0 {
					t.Fatalf("logged in as %s", who)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := who.Index(0).Document().Lookup("user").StringValue(); got != c.client.user {
				t.Errorf("logged in as %s", who)
			}
			if want := sha256.Sum256([]byte(c.client.user + "@" + c.client.db)); m.UserID(conn) != want {
				t.Error("the uid is not the digest of the name")
			}
			m.Logout(conn, c.client.db)
			wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1)), servererr.Unauthorized)
		})
	}
}

// TestConversationFaults sends what a client must not.
func TestConversationFaults(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "ann", Password: "p"}}})
	c := client{sha256Name, "ann", "p", "admin", true}
	start := func(conn *dispatch.Conn) string {
		first, err := c.steps(t).Step("")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", []byte(first))); err != nil {
			t.Fatal(err)
		}
		return first
	}
	next := func(conn *dispatch.Conn, db string, fields ...any) error {
		_, err := m.Continue(conn, db, document(t, append([]any{"saslContinue", 1}, fields...)...))
		return err
	}

	conn := &dispatch.Conn{}
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 2, "payload", []byte("x")), servererr.ProtocolError)
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "test", "conversationId", 1, "payload", []byte("x")), servererr.ProtocolError)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 1, "payload", []byte("x")), servererr.AuthenticationFailed)
	start(conn)
	wantCode(t, next(conn, "admin", "conversationId", 1), servererr.NoSuchKey)
	_, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", "PLAIN", "payload", []byte("x")))
	wantCode(t, err, servererr.MechanismUnavailable)
	_, err = m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", 5))
	wantCode(t, err, servererr.FailedToParse)
	_, err = m.Start(conn, "admin", document(t, "saslStart", 1, "payload", []byte("x")))
	wantCode(t, err, servererr.NoSuchKey)
}

func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	// can lists what each role may do, as ACTION DB COLLECTION; cannot what not.
	cases := []struct {
		role        Role
		can, cannot []string
	}{
		{
			Role{"read", "app"},
			[]string{"find app c", "listCollections app", "collStats app c"},
			[]string{"find app system.views", "find other c", "insert app c", "find local oplog.rs", "listDatabases", "replSetGetStatus"},
		},
		{
			Role{"read", "local"},
			[]string{"find local oplog.rs", "listCollections local"},
			[]string{"find app c", "insert local x"},
		},
		{
			Role{"readWrite", "app"},
			[]string{"insert app c", "dropCollection app c", "createIndex app c"},
			[]string{"dropDatabase app", "collMod app c", "insert app system.buckets.c"},
		},
		{
			Role{"readAnyDatabase", "admin"},
			[]string{"find app c", "find app system.buckets.c", "listDatabases", "listCollections app"},
			[]string{"find local oplog.rs", "find config transactions", "insert app c", "serverStatus"},
		},
		{
			Role{"clusterMonitor", "admin"},
			[]string{"replSetGetStatus", "replSetGetConfig", "serverStatus", "find local oplog.rs", "find config transactions"},
			[]string{"find app c", "internal", "replSetConfigure", "applyOps", "find local replset.initialSyncId", "listIndexes admin system.version"},
		},
		{
			Role{"backup", "admin"},
			[]string{
				"find app c", "find local oplog.rs", "find config transactions", "find admin system.users", "find app system.js",
				"appendOplogNote", "listDatabases", "insert config settings", "useUUID", "serverStatus", "find app system.buckets.c",
				"listCollections local", "listIndexes local replset.initialSyncId", "find local replset.minvalid", "find admin system.roles",
				"find admin system.version", "listIndexes admin system.keys", "listIndexes app system.views",
			},
			[]string{
				"insert app c", "internal", "replSetGetStatus", "replSetGetConfig", "find local replset.initialSyncId", "find admin system.keys",
				"find app system.views", "find config system.sessions",
			},
		},
		{
			Role{"restore", "admin"},
			[]string{
				"insert app c", "createCollection app c", "bypassDocumentValidation app c", "forceUUID", "insert app system.buckets.c",
				"insert admin system.users", "update admin system.users", "createIndex admin system.roles", "listCollections local",
			},
			[]string{
				"applyOps", "internal", "update app c", "remove app system.buckets.c", "insert admin system.roles", "find admin system.roles",
				"listIndexes admin system.users", "listIndexes admin system.version", "listIndexes admin system.keys", "bypassDocumentValidation admin system.roles",
			},
		},
		{
			Role{"dbAdminAnyDatabase", "admin"},
			[]string{"applyOps", "collMod app c", "dropDatabase app", "dropIndex app system.buckets.c", "listIndexes app system.profile"},
			[]string{"find app c", "insert app c"},
		},
		{
			Role{"clusterAdmin", "admin"},
			[]string{"replSetConfigure", "replSetStateChange", "shutdown", "setParameter", "dropDatabase app"},
			[]string{"find app c", "internal"},
		},
		{
			Role{"root", "admin"},
			[]string{"find app c", "applyOps", "replSetConfigure", "validate app c", "createUser app", "find local oplog.rs"},
			[]string{"internal", "insert admin system.roles", "update admin system.roles", "find local replset.initialSyncId", "find app system.views"},
		},
		{Role{"__system", "admin"}, []string{"internal", "find app system.anything", "insert local oplog.rs"}, nil},
		{
			Role{"dbOwner", "app"},
			[]string{"insert app c", "collMod app c", "createUser app", "dropDatabase app"},
			[]string{"insert other c"},
		},
	}
	for _, c := range cases {
		t.Run(c.role.Name+"@"+c.role.DB, func(t *testing.T) {
			t.Parallel()
			m := manager(t, Config{Users: []User{{Name: "u", Password: "p", Roles: []Role{c.role}}}})
			conn := loggedIn(m, "u")
			check := func(what string) error {
				words := append(strings.Fields(what), "", "")
				return m.Check(conn, words[0], words[1], words[2], document(t, "x", 1, "$db", "d"))
			}
			for _, what := range c.can {
				if err := check(what); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for _, what := range c.cannot {
				if check(what) == nil {
					t.Errorf("%s is allowed", what)
				}
			}
		})
	}
}

func TestUnauthorizedWords(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "u", Password: "p"}}})
	cmd := document(t, "createUser", "x", "pwd", "secret", "n", int32(1), "$db", "app")
	for _, c := range []struct {
		conn *dispatch.Conn
		want string
	}{
		{&dispatch.Conn{}, "command createUser requires authentication"},
		{
			loggedIn(m, "u"),
			`not authorized on app to execute command { createUser: "x", pwd: "xxx", n: 1, $db: "app" }`,
		},
	} {
		err := m.Check(c.conn, "createUser", "app", "", cmd)
		wantCode(t, err, servererr.Unauthorized)
		if e, _ := errors.AsType[*servererr.Error](err); e.Message != c.want {
			t.Errorf("%q, want %q", e.Message, c.want)
		}
	}
}

func TestUserCommands(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "ann", Password: "p"}}, Keyfile: "k"})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	create := document(t, "createUser", "bob", "pwd", "one", "roles", bson.A{"read", bson.D{{Key: "role", Value: "clusterMonitor"}, {Key: "db", Value: "admin"}}})
	must(m.CreateUser("app", create))
	wantCode(t, m.CreateUser("app", create), 51003)
	wantCode(t, m.CreateUser("app", document(t, "createUser", "eve", "pwd", "x", "roles", bson.A{"root"})), servererr.RoleNotFound)
	wantCode(t, m.CreateUser("app", document(t, "createUser", "eve", "roles", bson.A{})), servererr.BadValue)
	wantCode(t, m.DropUser("app", document(t, "dropUser", "eve")), servererr.UserNotFound)
	wantCode(t, m.DropUser("local", document(t, "dropUser", "__system")), servererr.UserNotFound)

	conn := &dispatch.Conn{}
	if _, err := (client{sha256Name, "bob", "one", "app", true}).logIn(t, m, conn); err != nil {
		t.Fatal(err)
	}
	must(m.UpdateUser("app", document(t, "updateUser", "bob", "pwd", "two")))
	if _, err := (client{sha256Name, "bob", "one", "app", true}).logIn(t, m, &dispatch.Conn{}); err == nil {
		t.Error("the old password still works")
	}
	if _, err := (client{sha1Name, "bob", "two", "app", true}).logIn(t, m, &dispatch.Conn{}); err != nil {
		t.Error(err)
	}

	insert := func() error { return m.Check(conn, "insert", "app", "c", document(t, "insert", "c")) }
	wantCode(t, insert(), servererr.Unauthorized)
	must(m.GrantRoles("app", document(t, "grantRolesToUser", "bob", "roles", bson.A{"readWrite"})))
	must(insert())
	must(m.RevokeRoles("app", document(t, "revokeRolesFromUser", "bob", "roles", bson.A{"readWrite"})))
	wantCode(t, insert(), servererr.Unauthorized)

	info := func(db string, first any) []string {
		t.Helper()
		array, err := m.UsersInfo(db, document(t, "usersInfo", first))
		must(err)
		values, err := bson.RawArray(array).Values()
		must(err)
		var ids []string
		for _, v := range values {
			ids = append(ids, v.Document().Lookup("_id").StringValue())
		}
		return ids
	}
	for _, c := range []struct {
		db    string
		first any
		want  []string
	}{
		{"app", 1, []string{"app.bob"}},
		{"app", "bob", []string{"app.bob"}},
		{"app", "ann", nil},
		{"app", bson.D{{Key: "user", Value: "ann"}, {Key: "db", Value: "admin"}}, []string{"admin.ann"}},
		{"app", bson.D{{Key: "forAllDBs", Value: true}}, []string{"admin.ann", "app.bob"}},
		{"local", 1, nil},
	} {
		if diff := cmp.Diff(c.want, info(c.db, c.first)); diff != "" {
			t.Errorf("usersInfo %v in %s (-want +got):\n%s", c.first, c.db, diff)
		}
	}
	must(m.DropUser("app", document(t, "dropUser", "bob")))
	wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1)), servererr.Unauthorized)
	must(m.CreateUser("app", create)) // another user, whatever its name
	wantCode(t, m.Check(conn, "", "", "", document(t, "ping", 1)), servererr.Unauthorized)
	must(m.DropUser("app", document(t, "dropUser", "bob")))
	if n := m.DropAllUsers("admin"); n != 1 {
		t.Errorf("%d users dropped, want 1", n)
	}
}

func TestNewFaults(t *testing.T) {
	t.Parallel()
	for _, users := range [][]User{
		{{Name: "", Password: "p"}},
		{{Name: "a", Password: "p", Roles: []Role{{"emperor", "admin"}}}},
		{{Name: "a", Password: "p", DB: "app", Roles: []Role{{"root", ""}}}},
		{{Name: "a", Password: "p"}, {Name: "a", Password: "q"}},
		{{Name: "a", Password: "\u0007"}},
	} {
		if _, err := New(Config{Users: users}); err == nil {
			t.Errorf("users %v are taken", users)
		}
	}
}

func TestMechanisms(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "ann", Password: "p"}}})
	if got := m.Mechanisms("ann", "admin"); !slices.Equal(got, []string{sha256Name, sha1Name}) {
		t.Errorf("mechanisms %v", got)
	}
	if got := m.Mechanisms("eve", "admin"); got != nil {
		t.Errorf("mechanisms of nobody: %v", got)
	}
}

// FuzzConversation feeds payloads to both steps.
func FuzzConversation(f *testing.F) {
	f.Add("n,,n=ann,r=abc", "c=biws,r=abc,p=AAAA")
	f.Add("", "")
	f.Add("p=tls-unique,,n=ann,r=abc", "v=1")
	m := manager(f, Config{Users: []User{{Name: "ann", Password: "p"}}})
	f.Fuzz(func(t *testing.T, first, second string) {
		conn := &dispatch.Conn{}
		if _, err := m.Start(conn, "admin", document(t, "saslStart", 1, "mechanism", sha256Name, "payload", []byte(first))); err != nil {
			return
		}
		if _, err := m.Continue(conn, "admin", document(t, "saslContinue", 1, "conversationId", 1, "payload", []byte(second))); err == nil {
			t.Fatal("logged in without the password")
		}
	})
}

// TestRolesByVersion: what roles may differs with the server's version.
func TestRolesByVersion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		role, what string
		since      int
	}{
		{"backup", "find app system.buckets.c", 5},
		{"readAnyDatabase", "find app system.buckets.c", 5},
		{"readWriteAnyDatabase", "update app system.buckets.c", 5},
		{"dbAdminAnyDatabase", "collMod app system.buckets.c", 5},
		{"restore", "insert app system.buckets.c", 5},
		{"backup", "setUserWriteBlockMode", 6},
		{"restore", "applyOps", 7},
		{"backup", "find app c", 4},
	} {
		for major := 4; major <= 8; major++ {
			m := manager(t, Config{Major: major, Users: []User{{Name: "u", Password: "p", Roles: []Role{{c.role, "admin"}}}}})
			words := append(strings.Fields(c.what), "", "")
			err := m.Check(loggedIn(m, "u"), words[0], words[1], words[2], document(t, "x", 1, "$db", "d"))
			if (err == nil) != (major >= c.since) {
				t.Errorf("%s on %d: %s: %v", c.role, major, c.what, err)
			}
		}
	}
}

func TestOwnRoles(t *testing.T) {
	t.Parallel()
	m := manager(t, Config{Users: []User{{Name: "u", Password: "p"}}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	resource := func(fields ...any) bson.D {
		d := bson.D{}
		for i := 0; i < len(fields); i += 2 {
			d = append(d, bson.E{Key: fields[i].(string), Value: fields[i+1]})
		}
		return d
	}
	create := func(db, name string, roles bson.A, on bson.D, actions ...string) error {
		return m.CreateRole(db, document(t, "createRole", name, "privileges",
			bson.A{bson.D{{Key: "resource", Value: on}, {Key: "actions", Value: actions}}}, "roles", roles, "$db", db))
	}
	roles := resource("db", "admin", "collection", "system.roles")
	must(create("admin", "one", bson.A{}, roles, "insert", "find"))
	must(create("admin", "two", bson.A{"one", "backup"}, resource("cluster", true), "internal"))
	must(create("admin", "buckets", bson.A{}, resource("db", "", "system_buckets", ""), "remove"))
	must(create("admin", "all", bson.A{}, resource("anyResource", true), "find"))
	must(create("app", "here", bson.A{}, resource("db", "app", "collection", ""), "find"))
	wantCode(t, create("admin", "one", bson.A{}, roles, "insert"), 51002)
	wantCode(t, create("admin", "root", bson.A{}, roles, "insert"), 51002)
	wantCode(t, create("admin", "three", bson.A{"nobody"}, roles, "insert"), servererr.RoleNotFound)
	wantCode(t, create("app", "there", bson.A{}, roles, "insert"), servererr.BadValue)
	wantCode(t, create("app", "there", bson.A{}, resource("cluster", true), "internal"), servererr.BadValue)
	wantCode(t, create("admin", "none", bson.A{}, roles), servererr.FailedToParse)
	wantCode(t, create("admin", "none", bson.A{}, resource("db", "x"), "find"), servererr.FailedToParse)
	conn := loggedIn(m, "u")
	for _, c := range []struct {
		role        string
		can, cannot string
	}{
		{"one", "insert admin system.roles", "update admin system.roles"},
		{"two", "insert admin system.roles", "insert admin system.users"},
		{"two", "internal", "replSetConfigure"},
		{"two", "find app c", "insert app c"},
		{"buckets", "remove app system.buckets.c", "remove app c"},
		{"all", "find local replset.initialSyncId", "insert app c"},
	} {
		must(m.UpdateUser("admin", document(t, "updateUser", "u", "roles", bson.A{c.role})))
		check := func(what string) error {
			words := append(strings.Fields(what), "", "")
			return m.Check(conn, words[0], words[1], words[2], document(t, "x", 1, "$db", "d"))
		}
		if err := check(c.can); err != nil {
			t.Errorf("%s: %s: %v", c.role, c.can, err)
		}
		if check(c.cannot) == nil {
			t.Errorf("%s: %s is allowed", c.role, c.cannot)
		}
	}
	must(m.DropRole("admin", document(t, "dropRole", "one")))
	wantCode(t, m.DropRole("admin", document(t, "dropRole", "one")), servererr.RoleNotFound)
	wantCode(t, m.UpdateUser("admin", document(t, "updateUser", "u", "roles", bson.A{"two"})), servererr.RoleNotFound)
}
