package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestLoginLost: a source that refuses the link's login from some time on is said to do so, with what to do, and the
// link continues once it accepts the login again.
func TestLoginLost(t *testing.T) {
	users := []mongosim.User{{Name: "root", Password: "r", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}}}
	source := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1, Users: users})
	fill(t, source, "shop", "c", 20)
	create := func() {
		tell(t, source, "admin", bson.D{{Key: "createUser", Value: "mirror"}, {Key: "pwd", Value: "sesame"}, {Key: "roles", Value: bson.A{"root"}}})
	}
	create()
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
	flags, _ := copies(t, source, target, "--source-username=mirror", "--source-password-file="+write(t, "sesame"))
	l := startLink(t, flags...)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	tell(t, source, "admin", bson.D{{Key: "dropUser", Value: "mirror"}})
	for _, m := range source.Members() { // its connections end
		must.Succeed(t, m.Kill())
		must.Succeed(t, m.Start())
	}
	line := l.await("verdict", "to", "source-silent")
	sentence, _ := line["sentence"].(string)
	next, _ := line["next"].(string)
	if !strings.HasPrefix(sentence, "The source refuses the login") || !strings.Contains(next, "password") {
		t.Errorf("%s\n%s", sentence, next)
	}
	create()
	l.await("verdict", "to", "steady")
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
