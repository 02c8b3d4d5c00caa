package main

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

func TestMember(t *testing.T) {
	source, target := twoSets(t)
	flags := []string{"--source=" + source.URI(), "--host=127.0.0.1:1", "--selection-timeout=5s"}
	member := func(code int, verb string, args ...string) (string, string) {
		t.Helper()
		got, stdout, stderr := invoke(t, nil, append(append([]string{"member", verb}, flags...), args...)...)
		if got != code {
			t.Fatalf("%s: code %d, want %d\n%s%s", verb, got, code, stdout, stderr)
		}
		return stdout, stderr
	}
	members := func() int {
		config, _ := tell(t, source, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}}).Lookup("config").DocumentOK()
		return len(configMembers(config))
	}

	stdout, stderr := member(cli.ExitOK, "add", "--tag=mirror=test")
	if !strings.Contains(stdout, `"host": "127.0.0.1:1"`) || !strings.Contains(stderr, "Nothing was changed") || members() != 1 {
		t.Errorf("printed %s\n%s", stdout, stderr)
	}
	if err := bson.UnmarshalExtJSON([]byte(stdout), false, &bson.D{}); err != nil {
		t.Errorf("%v: %s", err, stdout)
	}
	stdout, _ = member(cli.ExitOK, "add", "--tag=mirror=test", "--apply")
	if !strings.Contains(stdout, `w: "mirror"`) || !strings.Contains(stdout, "--feedback-member=1") || members() != 2 {
		t.Errorf("%d members, printed %s", members(), stdout)
	}
	if _, stderr = member(cli.ExitUsage, "add", "--apply"); !strings.Contains(stderr, "it has a member 127.0.0.1:1, with _id 1") || !strings.Contains(stderr, "need not be added") || members() != 2 {
		t.Error(stderr)
	}

	// A link of that name finds it by itself, and a write can wait for it.
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	tell(t, source, "shop", bson.D{
		{Key: "insert", Value: "a"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "mirror"}, {Key: "wtimeout", Value: int32(far.Milliseconds())}}},
	})
	if n := countDocs(t, target, "shop", "a"); n != 1 {
		t.Errorf("the write was acknowledged, and the target has %d of it", n)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}

	flags[1] = "--host=127.0.0.1:2"
	if _, stderr = member(cli.ExitUsage, "remove"); !strings.Contains(stderr, "it has "+source.Member(0).Host()+", 127.0.0.1:1") {
		t.Error(stderr)
	}
	flags[1] = "--host=" + source.Member(0).Host()
	if _, stderr = member(cli.ExitUnexpected, "remove", "--apply"); !strings.Contains(stderr, "not a hidden member") || !strings.Contains(stderr, "rs.remove()") {
		t.Error(stderr)
	}
	flags[1] = "--host=127.0.0.1:1"
	if stdout, _ = member(cli.ExitOK, "remove", "--apply"); stdout != "Member 1, 127.0.0.1:1, is removed.\n" || members() != 1 {
		t.Errorf("%d members, printed %s", members(), stdout)
	}
}

func TestMirrorMember(t *testing.T) {
	m := func(id int, hidden bool, votes int, tag string) bson.D {
		return bson.D{{Key: "_id", Value: id}, {Key: "hidden", Value: hidden}, {Key: "votes", Value: votes}, {Key: "priority", Value: 0.0}, {Key: "tags", Value: bson.D{{Key: "mirror", Value: tag}}}}
	}
	for name, tt := range map[string]struct {
		members []any
		id      int
		ok      bool
	}{
		"none":         {nil, 0, false},
		"one":          {[]any{m(3, true, 0, "other"), m(4, true, 0, "l")}, 4, true},
		"two":          {[]any{m(3, true, 0, "l"), m(4, true, 0, "l")}, 0, false},
		"it votes":     {[]any{m(3, true, 1, "l")}, 0, false},
		"it is shown":  {[]any{m(3, false, 0, "l")}, 0, false},
		"another link": {[]any{m(3, true, 0, "l2")}, 0, false},
	} {
		config := must.Get(bson.Marshal(bson.D{{Key: "members", Value: bson.A(tt.members)}}))(t)
		if id, ok := mirrorMember(config, "l"); ok != tt.ok || ok && id != tt.id {
			t.Errorf("%s: got %d, %v", name, id, ok)
		}
	}
}
