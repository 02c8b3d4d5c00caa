package auth

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

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
	insert := func() error { return m.Check(conn, "insert", "app", "c", document(t, "insert", "c")) }
	wantCode(t, insert(), servererr.Unauthorized)
	must(m.GrantRoles("app", document(t, "grantRolesToUser", "bob", "roles", bson.A{"readWrite"})))
	must(insert())
	wantCode(t, m.GrantRoles("app", document(t, "grantRolesToUser", "eve", "roles", bson.A{"read"})), servererr.UserNotFound)

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
	m := manager(t, Config{})
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
	for i, c := range []struct {
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
		user := strconv.Itoa(i)
		must(m.CreateUser("admin", document(t, "createUser", user, "pwd", "p", "roles", bson.A{c.role})))
		conn := loggedIn(m, user)
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
}
