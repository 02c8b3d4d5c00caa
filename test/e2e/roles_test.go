package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// bareKeys are the names of fields as the shell takes them.
var bareKeys = regexp.MustCompile(`([{,]\s*)(\w+):`)

// shellRole reads the argument of a createRole in the shell's words and makes the
// command of it.
func shellRole(t *testing.T, text string) bson.D {
	t.Helper()
	_, text, ok := strings.Cut(text, "createRole(")
	text, _, end := strings.Cut(text, "})")
	if !ok || !end {
		t.Fatalf("no createRole in %q", text)
	}
	var doc bson.D
	if err := bson.UnmarshalExtJSON([]byte(bareKeys.ReplaceAllString(text+"}", `$1"$2":`)), false, &doc); err != nil {
		t.Fatalf("read %s: %v", text, err)
	}
	if doc[0].Key != "role" {
		t.Fatalf("the first field of %s is not the role", text)
	}
	doc[0].Key = "createRole"
	return doc
}

// grantOnPage makes the role of docs/privileges.md that may write users and roles, and
// grants it.
func grantOnPage(t *testing.T, c mongo.Caller, user string) {
	t.Helper()
	page := must.Get(os.ReadFile("../../docs/privileges.md"))(t)
	role := shellRole(t, string(page))
	if !strings.Contains(string(page), "grantRolesToUser(\"mirror\", [\""+role[0].Value.(string)+"\"])") {
		t.Fatal("docs/privileges.md makes a role that it does not grant")
	}
	command(t, c, "admin", role)
	command(t, c, "admin", bson.D{{Key: "grantRolesToUser", Value: user}, {Key: "roles", Value: bson.A{role[0].Value}}})
}

// intoUser is the link's user on the target of TestRolesOnPage: no user of the source
// has its name, as docs/privileges.md says.
const intoUser = "into"

// TestRolesOnPage copies and mirrors with exactly the roles that docs/privileges.md
// gives on each side, users and roles included.
func TestRolesOnPage(t *testing.T) {
	onSource, onTarget := rolesOnPage(t)
	eachProvider(t, dialects("4.4", "5.0", "8.0"), func(t *testing.T, p provider) {
		source := p.open(t, clusterOptions{name: "source", members: 1, users: []mongotest.User{{Name: mirrorUser, Password: "p", Roles: onSource}}})
		target := p.open(t, clusterOptions{name: "target", members: 1, users: []mongotest.User{{Name: intoUser, Password: "p", Roles: onTarget}}})
		from, to := connect(t, source.uriFor(admin)), connect(t, target.uriFor(admin))
		if p.real {
			p.major = majorOf(t, source)
		}
		grantOnPage(t, to, intoUser)
		command(t, from, "admin", shellRole(t, origin.GrantSyncID))
		// These are no users that anybody logs in as.
		put := func(c mongo.Caller, coll, id string) {
			command(t, c, "admin", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{
				{Key: "_id", Value: "app." + id},
				{Key: strings.TrimSuffix(strings.TrimPrefix(coll, "system."), "s"), Value: id},
				{Key: "db", Value: "app"},
				{Key: "privileges", Value: bson.A{}},
				{Key: "roles", Value: bson.A{}},
			}}}})
		}
		put(from, "system.users", "copied")
		put(from, "system.roles", "copied")
		put(from, "system.users", "both")
		put(to, "system.users", "both") // as the administrator of two sets is in both
		command(t, from, "shop", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
		if p.major >= 5 && (p.real || p.major < 8) { // the embedded set has no compressed buckets
			command(t, from, "shop", bson.D{{Key: "create", Value: "s"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
			command(t, from, "shop", bson.D{{Key: "insert", Value: "s"}, {Key: "documents", Value: bson.A{bson.D{{Key: "t", Value: time.Now()}}}}})
		}
		all := must.Get(scope.New(scope.Config{UsersAndRoles: true}))(t)
		m := &mirror{t: t, source: source.uriFor(mirrorUser), target: target.uriFor(intoUser), cfg: pipeline.Config{
			Link: "roles", Scope: all, Await: 200 * time.Millisecond, Copy: initialsync.Options{Wanted: true, SpoolDir: t.TempDir(), MaxCopies: 1},
		}}
		m.begin()
		defer m.end(errEnd)
		m.await(time.Minute, "it is steady", func(s monitor.Snapshot) bool { return s.State == monitor.Steady })
		put(from, "system.users", "followed")
		put(from, "system.roles", "followed")
		command(t, from, "admin", bson.D{{Key: "update", Value: "system.users"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "app.copied"}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "read"}, {Key: "db", Value: "app"}}}}}}}},
		}}}})
		command(t, from, "admin", bson.D{{Key: "delete", Value: "system.roles"}, {Key: "deletes", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "app.copied"}}}, {Key: "limit", Value: 1},
		}}}})
		reply := command(t, from, "shop", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 2}}}}})
		seconds, i, _ := reply.Lookup("operationTime").TimestampOK()
		m.drain(time.Minute, bson.Timestamp{T: seconds, I: i})
		for _, coll := range []string{"system.users", "system.roles"} {
			want, got := idsOf(t, from, coll), idsOf(t, to, coll)
			if strings.Join(want, " ") != strings.Join(got, " ") {
				t.Errorf("%s: the source has %q, the target %q", coll, want, got)
			}
		}
	})
}

// TestFirstRole follows a source that had no users and roles of its own when the link began: with its first ones the target gets the
// collections that they are in, by the roles that docs/privileges.md gives; those that it has already stay.
func TestFirstRole(t *testing.T) {
	onSource, onTarget := rolesOnPage(t)
	for _, dialect := range dialects("5.0", "8.0") { // a real server has at least its administrator
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			source := openEmbedded(t, dialect, clusterOptions{name: "source", members: 1, users: []mongotest.User{{Name: mirrorUser, Password: "p", Roles: onSource}}})
			target := openEmbedded(t, dialect, clusterOptions{name: "target", members: 1, users: []mongotest.User{{Name: intoUser, Password: "p", Roles: onTarget}}})
			from, to := connect(t, source.uriFor(admin)), connect(t, target.uriFor(admin))
			grantOnPage(t, to, intoUser)
			put := func(c mongo.Caller, coll, id string) bson.Raw {
				return command(t, c, "admin", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{
					bson.D{{Key: "_id", Value: "app." + id}, {Key: "db", Value: "app"}, {Key: "roles", Value: bson.A{}}},
				}}})
			}
			put(to, "system.users", "own")
			m := &mirror{t: t, source: source.uriFor(mirrorUser), target: target.uriFor(intoUser), cfg: pipeline.Config{
				Link: "roles", Scope: must.Get(scope.New(scope.Config{UsersAndRoles: true}))(t), Await: 200 * time.Millisecond,
			}}
			m.begin()
			defer m.end(errEnd)
			m.await(time.Minute, "it is steady", func(s monitor.Snapshot) bool { return s.State == monitor.Steady })
			put(from, "system.roles", "first")
			reply := put(from, "system.users", "first")
			seconds, i, _ := reply.Lookup("operationTime").TimestampOK()
			m.drain(time.Minute, bson.Timestamp{T: seconds, I: i})
			got := strings.Join(idsOf(t, to, "system.roles"), " ") + "; " + strings.Join(idsOf(t, to, "system.users"), " ")
			if want := "app.first[]; app.first[] app.own[]"; got != want {
				t.Errorf("the target has %s\nwant %s", got, want)
			}
		})
	}
}

// idsOf returns the users or roles of the database app, with the number of the roles
// of each.
func idsOf(t *testing.T, c mongo.Caller, coll string) []string {
	t.Helper()
	reply := command(t, c, "admin", bson.D{
		{Key: "find", Value: coll}, {Key: "filter", Value: bson.D{{Key: "db", Value: "app"}}}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}},
	})
	batch := must.Get(mongo.ReadBatch(reply))(t)
	ids := make([]string, 0, len(batch.Docs))
	for _, doc := range batch.Docs {
		ids = append(ids, doc.Lookup("_id").StringValue()+doc.Lookup("roles").Array().String())
	}
	if len(ids) == 0 {
		t.Errorf("no documents in admin.%s", coll)
	}
	return ids
}
