package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// cluster is a replica set that can be hurt, embedded or real. What a test does
// with it is the same for both.
type cluster interface {
	// uriFor is the connection string for a user; admin may do everything.
	uriFor(user string) string
	size() int
	// primary waits until there is one.
	primary(ctx context.Context) (int, error)
	// stepDown returns when another one was elected.
	stepDown(ctx context.Context) error
	// kill ends a member as kill -9 does; start starts it again with its data.
	kill(ctx context.Context, member int) error
	start(ctx context.Context, member int) error
	// ready waits until all members serve.
	ready(ctx context.Context) error
}

// admin is the user who may do everything.
const admin = "mongotest"

// clusterOptions say what set a test wants.
type clusterOptions struct {
	name    string
	members int
	// users switch access control on; admin is added.
	users []mongotest.User
	seed  int64
	// history is for how long an embedded set can be read as of an earlier time.
	history time.Duration
	// elects is the election timeout of an embedded set.
	elects time.Duration
	// expires is how often an embedded set deletes documents that have expired; by default it does not.
	expires time.Duration
	// moods are those of an embedded set, by default all.
	moods mongosim.Moods
}

// provider makes sets of one server version.
type provider struct {
	name string
	// real are those of a real server: slower, and not what we wrote.
	real  bool
	major int
	// targetMajor is that of the target where it is another one, otherwise 0.
	targetMajor int
	open        func(t *testing.T, o clusterOptions) cluster
}

// Environment variables of the live test.
const (
	envLiveSeconds  = "LIVE_SECONDS"
	envLiveSeed     = "LIVE_SEED"
	envLiveDialects = "LIVE_DIALECTS"
)

// eachProvider calls run in a subtest for the embedded set's dialects and, below
// "server", for each real server at hand.
func eachProvider(t *testing.T, dialects []string, run func(t *testing.T, p provider)) {
	for _, dialect := range dialects {
		t.Run("embedded "+dialect, func(t *testing.T) {
			t.Parallel()
			major, err := strconv.Atoi(strings.SplitN(dialect, ".", 2)[0])
			if err != nil {
				t.Fatalf("read the dialect %q: %v", dialect, err)
			}
			run(t, provider{name: dialect, major: major, open: func(t *testing.T, o clusterOptions) cluster {
				return openEmbedded(t, dialect, o)
			}})
		})
	}
	t.Run("server", func(t *testing.T) { eachServer(t, run) })
}

// serverOptions are those of all sets of real servers. Recordings hold documents
// that have expired since.
var serverOptions = mongotest.Options{
	OplogMB: 1024, ElectionTimeout: 5 * time.Second, Parameters: map[string]string{"ttlMonitorEnabled": "false"},
}

// eachServer calls run in a subtest for each real server at hand.
func eachServer(t *testing.T, run func(t *testing.T, p provider)) {
	mongotest.EachVersion(t, serverOptions, func(t *testing.T, opts mongotest.Options) {
		p := provider{name: t.Name(), real: true}
		p.open = func(t *testing.T, o clusterOptions) cluster {
			opts := opts
			opts.SetName, opts.Members, opts.Users = o.name, o.members, o.users
			return server{mongotest.Start(t, opts)}
		}
		run(t, p)
	})
}

// dialects are those of the embedded set that a test runs with: some, or those
// that the environment names.
func dialects(some ...string) []string {
	switch list := os.Getenv(envLiveDialects); list {
	case "":
		return some
	case "all":
		return mongosim.Dialects()
	default:
		return strings.Split(list, ",")
	}
}

// server is a set of real servers.
type server struct{ *mongotest.ReplicaSet }

func (c server) uriFor(user string) string {
	if user == admin {
		return c.AdminURI()
	}
	return c.URIFor(user)
}
func (c server) size() int                                   { return len(c.Members()) }
func (c server) primary(ctx context.Context) (int, error)    { return c.Primary(ctx) }
func (c server) stepDown(ctx context.Context) error          { return c.StepDown(ctx) }
func (c server) kill(ctx context.Context, member int) error  { return c.Kill(ctx, member) }
func (c server) start(ctx context.Context, member int) error { return c.Start(ctx, member) }
func (c server) ready(ctx context.Context) error             { return c.AwaitReady(ctx) }

// embedded is a set inside of this process.
type embedded struct {
	*mongosim.Set
	users bool
}

func openEmbedded(t *testing.T, dialect string, o clusterOptions) cluster {
	opts := mongosim.Options{SetName: o.name, Members: o.members, Dialect: dialect, Seed: o.seed, TTLInterval: cmp.Or(o.expires, -1), OplogBytes: 1 << 30, Moods: o.moods, SnapshotHistory: o.history, ElectionTimeout: o.elects}
	users := slices.Clone(o.users)
	if len(users) > 0 {
		users = append(users, mongotest.User{Name: admin, Password: admin, Roles: []string{"root", "__system"}})
	}
	for _, u := range users {
		user := mongosim.User{Name: u.Name, Password: u.Password}
		for _, role := range u.Roles {
			user.Roles = append(user.Roles, mongosim.Role{Name: role, DB: "admin"})
		}
		opts.Users = append(opts.Users, user)
	}
	return embedded{mongosim.StartTest(t, opts), len(users) > 0}
}

func (c embedded) uriFor(user string) string {
	if !c.users {
		return c.URI()
	}
	return c.URIFor(user)
}
func (c embedded) size() int { return len(c.Members()) }
func (c embedded) primary(ctx context.Context) (int, error) {
	m, err := c.AwaitPrimary(ctx)
	if err != nil {
		return 0, err
	}
	return m.ID(), nil
}
func (c embedded) stepDown(ctx context.Context) error       { return c.StepDown(ctx) }
func (c embedded) kill(_ context.Context, member int) error { return c.Member(member).Kill() }
func (c embedded) start(_ context.Context, member int) error {
	return c.Member(member).Start() //nolint:contextcheck // a member lives longer than this call
}

func (c embedded) ready(ctx context.Context) error {
	if _, err := c.AwaitPrimary(ctx); err != nil {
		return err
	}
	return c.AwaitReady(ctx)
}

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return n
}

// rolesOnPage reads from docs/privileges.md with which roles it makes a user, on
// the source first, then on the target.
func rolesOnPage(t *testing.T) (source, target []string) {
	t.Helper()
	page := must.Get(os.ReadFile("../../docs/privileges.md"))(t)
	var lists [][]string
	for _, text := range strings.Split(string(page), "createUser(")[1:] {
		_, text, _ = strings.Cut(text, "roles: [")
		text, _, ok := strings.Cut(text, "]")
		if !ok {
			break
		}
		var list []string
		for role := range strings.SplitSeq(text, ",") {
			list = append(list, strings.Trim(role, " \n\""))
		}
		lists = append(lists, list)
	}
	if len(lists) != 2 || !slices.Contains(lists[0], "clusterMonitor") {
		t.Fatal(fmt.Errorf("docs/privileges.md makes the users %q; want one for the source, one for the target", lists))
	}
	return lists[0], lists[1]
}
