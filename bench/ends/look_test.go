package ends

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/mongosim"
)

// A real server that was built by hand knows no git version and has no JavaScript, as
// one of 5.0.7 that was asked.
func TestBuilt(t *testing.T) {
	for _, c := range []struct {
		git, version, want string
	}{
		{"unknown", "5.0.7", "real 5.0.7"},
		{"", "5.0.7", "real 5.0.7"},
		{"b977129dc70eed766cbee7e412d901ee213acbda", "8.0.4-rc1", "real 8.0.4-rc1"},
		{mongosim.GitVersion, "5.0.7", "embedded 5.0"},
		{mongosim.GitVersion, "8.0", "embedded 8.0"},
	} {
		info, err := bson.Marshal(bson.D{{Key: "version", Value: c.version}, {Key: "gitVersion", Value: c.git}, {Key: "javascriptEngine", Value: "none"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := built(info).String(); got != c.want {
			t.Errorf("version %q of %q: %q, want %q", c.version, c.git, got, c.want)
		}
	}
}

// TestLook: the kind of a set is read from its servers, not from its start.
func TestLook(t *testing.T) {
	hidden := []mongosim.MemberOptions{{}, {}, {NonVoting: true, NoPriority: true, Hidden: true}}
	users := []mongosim.User{
		{Name: "all", Password: "x", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}},
		// It is not authorized to read the configuration.
		{Name: "some", Password: "x", Roles: []mongosim.Role{{Name: "readWriteAnyDatabase", DB: "admin"}}},
	}
	for name, c := range map[string]struct {
		opts       mongosim.Options
		user, want string
	}{
		"three members":            {mongosim.Options{Members: 3}, "", "embedded 5.0 (3 members)"},
		"one member of 4.4":        {mongosim.Options{Members: 1, Dialect: "4.4"}, "", "embedded 4.4 (1 member)"},
		"a hidden one":             {mongosim.Options{MemberOptions: hidden}, "", "embedded 5.0 (3 members)"},
		"with access control":      {mongosim.Options{Members: 2, Users: users}, "all", "embedded 5.0 (2 members)"},
		"without the right to ask": {mongosim.Options{MemberOptions: hidden, Users: users}, "some", "embedded 5.0 (2 members)"},
	} {
		t.Run(name, func(t *testing.T) {
			set := mongosim.StartTest(t, c.opts)
			uri := set.URI()
			if c.user != "" {
				uri = set.URIFor(c.user)
			}
			e, err := Open(t.Context(), uri)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if got := e.Is.String(); got != c.want {
				t.Errorf("it is %q, want %q", got, c.want)
			}
		})
	}
}

// TestStartedIs: sets that are started here have the members that were asked for.
func TestStartedIs(t *testing.T) {
	for members, want := range map[int]string{0: "embedded 5.0 (1 member)", 3: "embedded 5.0 (3 members)"} {
		e, _, err := Start(t.Context(), nil, What{Kind: Empty, Seed: 1, Members: members})
		if err != nil {
			t.Fatal(err)
		}
		if got := e.Is.String(); got != want {
			t.Errorf("it is %q, want %q", got, want)
		}
		e.Close()
	}
	null, err := StartNull(t.Context(), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if null.Is != (result.End{Kind: result.EndNull}) {
		t.Errorf("null is %q", null.Is)
	}
}
