package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
)

// sourceRole is what a link that copies is granted on the source, privilege by
// privilege, without those actions and reads that are named.
func sourceRole(without ...string) bson.A {
	var list bson.A
	grant := func(on bson.D, prefix string, actions ...string) {
		var may bson.A
		for _, a := range actions {
			if !slices.Contains(without, prefix+a) {
				may = append(may, a)
			}
		}
		if len(may) > 0 {
			list = append(list, bson.D{{Key: "resource", Value: on}, {Key: "actions", Value: may}})
		}
	}
	coll := func(db, name string) bson.D { return bson.D{{Key: "db", Value: db}, {Key: "collection", Value: name}} }
	grant(bson.D{{Key: "cluster", Value: true}}, "", "replSetGetConfig", "replSetGetStatus", "serverStatus", "getParameter", "useUUID", "listDatabases")
	grant(coll("", ""), "", "find", "listCollections", "listIndexes", "collStats")
	grant(coll("", "system.js"), "", "find", "listIndexes", "collStats")
	grant(coll("", "system.views"), "", "find", "listIndexes", "collStats")
	grant(bson.D{{Key: "system_buckets", Value: ""}}, "", "find", "listCollections", "listIndexes", "collStats")
	grant(coll("local", "oplog.rs"), "", "find")
	grant(coll("local", ""), "local ", "listCollections")
	grant(coll("config", "transactions"), "config.transactions ", "find")
	grant(coll("admin", "system.version"), "", "find")
	return list
}

// TestWithoutOptionalReads: each optional read of the source may be refused: the link
// copies and follows, and the check names the missing privileges.
func TestWithoutOptionalReads(t *testing.T) {
	users := []mongosim.User{{Name: "root", Password: "r", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}}}
	source := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1, Users: users})
	fill(t, source, "shop", "c", 20)
	tell(t, source, "shop", bson.D{{Key: "create", Value: "w"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}}}})
	insert(t, source, "shop", "w", bson.D{{Key: "at", Value: bson.NewDateTimeFromTime(time.Now())}})
	for _, tt := range []struct {
		name    string
		without []string
		says    string // what the check warns of
	}{
		{"nothing", nil, ""},
		{"config", []string{"replSetGetConfig"}, "hidden members, tags, votes and delays are not known"},
		{"status", []string{"replSetGetStatus"}, "less can be shown of the members"},
		{"parameters", []string{"getParameter"}, "source feature compatibility version: not known"},
		{"pressure", []string{"serverStatus"}, "may not run serverStatus"},
		{"sizes", []string{"collStats"}, "may not run collStats"},
		{"members", []string{"local listCollections"}, "local.replset.initialSyncId can be neither listed nor read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user := "mirror-" + tt.name
			tell(t, source, "admin", bson.D{{Key: "createRole", Value: user}, {Key: "privileges", Value: sourceRole(tt.without...)}, {Key: "roles", Value: bson.A{}}})
			tell(t, source, "admin", bson.D{{Key: "createUser", Value: user}, {Key: "pwd", Value: "sesame"}, {Key: "roles", Value: bson.A{user}}})
			target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
			flags, _ := copies(t, source, target, "--source-username="+user, "--source-password-file="+write(t, "sesame"))
			code, stdout, stderr := invoke(t, nil, append([]string{"run", "--check"}, flags...)...)
			warned := strings.ReplaceAll(stdout, "WARN source oplog window", "")
			if code != cli.ExitOK || strings.Contains(warned, "WARN") != (tt.says != "") || !strings.Contains(stdout, tt.says) {
				t.Errorf("code %d, want %q in\n%s%s", code, tt.says, stdout, stderr)
			}
			l := startLink(t, flags...)
			awaitLink(l)
			insert(t, source, "shop", "after-"+tt.name, bson.D{{Key: "_id", Value: 1}})
			awaitCount(t, target, "shop", "after-"+tt.name, 1)
			if n, m := countDocs(t, target, "shop", "c"), countDocs(t, target, "shop", "w"); n != 20 || m != 1 {
				t.Errorf("copied are %d documents and %d measurements", n, m)
			}
			l.drain()
			if code := l.end(); code != cli.ExitOK {
				t.Errorf("code %d\n%s", code, &l.log)
			}
		})
	}
}

// TestRowsOfPrivileges: what docs/privileges.md gives for feedback, for the source's
// configuration, and for the commands that only use the metadata, is enough, and
// without it that is refused.
func TestRowsOfPrivileges(t *testing.T) {
	in := func(db string, roles ...string) (list []mongosim.Role) {
		for _, r := range roles {
			list = append(list, mongosim.Role{Name: r, DB: db})
		}
		return list
	}
	user := func(name string, roles ...mongosim.Role) mongosim.User {
		return mongosim.User{Name: name, Password: "sesame", Roles: roles}
	}
	source := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1, Users: []mongosim.User{
		user("root", in("admin", "root")...),
		user("plain", in("admin", "backup", "clusterMonitor")...),
		user("document", append(in("admin", "backup", "clusterMonitor"), in("replicator", "readWrite")...)...),
		user("manager", in("admin", "clusterManager")...),
	}})
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2, Users: []mongosim.User{
		user("root", in("admin", "root")...),
		user("mirror", in("admin", "readWriteAnyDatabase", "dbAdminAnyDatabase", "restore", "clusterMonitor")...),
		user("operator", in("replicator", "readWrite")...),
		user("viewer", in("replicator", "read")...),
	}})
	tell(t, source, "admin", bson.D{{Key: "createRole", Value: "reporter"}, {Key: "roles", Value: bson.A{}}, {Key: "privileges", Value: bson.A{
		bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"internal"}}},
	}}})
	tell(t, source, "admin", bson.D{{Key: "createUser", Value: "member"}, {Key: "pwd", Value: "sesame"}, {Key: "roles", Value: bson.A{"reporter", "backup", "clusterMonitor"}}})
	password := write(t, "sesame")
	asSource := func(name string) []string {
		return []string{"--source-username=" + name, "--source-password-file=" + password}
	}
	asTarget := func(name string) []string {
		return []string{"--target-username=" + name, "--target-password-file=" + password}
	}
	command := func(code int, says string, args ...string) {
		t.Helper()
		got, stdout, stderr := invoke(t, nil, args...)
		if got != code || !strings.Contains(stdout+stderr, says) {
			t.Errorf("%s: code %d, want %d and %q in\n%s%s", args[0], got, code, says, stdout, stderr)
		}
	}
	flags, _ := copies(t, source, target, asTarget("mirror")...)
	with := func(of []string, more ...string) []string {
		return append(append(append([]string{}, flags...), of...), more...)
	}

	add := append([]string{"member", "add", "--source=" + source.URI(), "--host=127.0.0.1:1", "--tag=mirror=test", "--apply"}, asSource("manager")...)
	command(cli.ExitOK, `w: "mirror"`, add...)

	check := append([]string{"run", "--check"}, with(asSource("plain"), "--feedback=document")...)
	command(cli.ExitConnect, "FAIL source privilege to write positions", check...)
	check = append([]string{"run", "--check"}, with(asSource("plain"), "--feedback=member", "--feedback-member=1")...)
	command(cli.ExitConnect, "FAIL source privilege to report as a member", check...)

	l := startLink(t, with(asSource("document"), "--feedback=document")...)
	awaitLink(l)
	awaitCount(t, source, "replicator", "positions", 1)
	on := "--target=" + target.URI()
	command(cli.ExitOK, "consistent", append([]string{"links", on}, asTarget("viewer")...)...)
	command(cli.ExitConnect, "not authorized", append([]string{"throttle", on, "--link=test", "--max-ops-per-second=5"}, asTarget("viewer")...)...)
	command(cli.ExitOK, "at most 5 documents", append([]string{"throttle", on, "--link=test", "--max-ops-per-second=5"}, asTarget("operator")...)...)
	command(cli.ExitConnect, "not authorized", append([]string{"resync", on, "--link=test", "--namespace=shop.a"}, asTarget("viewer")...)...)
	command(cli.ExitOK, "the same as the source's again", append([]string{"resync", on, "--link=test", "--namespace=shop.a"}, asTarget("operator")...)...)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}

	l = startLink(t, with(asSource("member"), "--feedback=member", "--feedback-member=1")...)
	awaitLink(l)
	tell(t, source, "shop", bson.D{
		{Key: "insert", Value: "b"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: int32(far.Milliseconds())}}},
	})
	if n := countDocs(t, target, "shop", "b"); n != 1 {
		t.Errorf("the write was acknowledged, and the target has %d of it", n)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
