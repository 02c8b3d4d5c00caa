package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// The users of the live test, besides admin.
const (
	mirrorUser = "mirror"
	writerUser = "writer"
)

// liveTimes are how long things take with one kind of server.
type liveTimes struct {
	// total is for how long the sets are written to and hurt.
	total time.Duration
	// between is the mean time between two injuries, down that for which a killed
	// member stays away.
	between, down time.Duration
	// limit is how long anything may take before it counts as stuck.
	limit time.Duration
}

func timesOf(t *testing.T, p provider) liveTimes {
	if p.real {
		return liveTimes{
			total:   time.Duration(number(t, envLiveSeconds, 60)) * time.Second,
			between: 4 * time.Second, down: 5 * time.Second, limit: 3 * time.Minute,
		}
	}
	usual := int64(15)
	switch {
	case testing.Short():
		usual = 4
	case race.Enabled:
		usual = 6
	}
	return liveTimes{
		total:   time.Duration(number(t, envLiveSeconds, usual)) * time.Second,
		between: 700 * time.Millisecond, down: 700 * time.Millisecond, limit: 3 * time.Minute,
	}
}

// TestLive mirrors one set into another while many clients write to the source,
// and while members of both are made to step down and killed, and the mirror
// itself is ended and started again. At the end both hold the same. All of that
// with access control, and with the roles that docs/privileges.md gives.
//
// LIVE_SECONDS, LIVE_SEED and LIVE_DIALECTS (5.0,7.0 or all) choose another run.
func TestLive(t *testing.T) {
	seed := number(t, envLiveSeed, time.Now().UnixNano()&0xffffff)
	eachProvider(t, liveDialects("7.0", "5.0"), func(t *testing.T, p provider) {
		t.Logf("%s=%d", envLiveSeed, seed)
		l := openLive(t, p, seed, clusterOptions{expires: expiry})
		l.run(t)
	})
}

// liveDialects is dialects, of which only the first is played with the race detector.
func liveDialects(some ...string) []string {
	if race.Enabled {
		some = some[:1]
	}
	return dialects(some...)
}

// live is one run of the live test.
type live struct {
	provider
	liveTimes
	rnd            *rand.Rand
	source, target cluster
	mirror         *mirror
	// anyFieldOrder says that documents may have their fields in another order.
	anyFieldOrder bool
	// users says that users and roles are mirrored too.
	users bool
}

// expiry is how often the embedded sets delete expired documents.
const expiry = 300 * time.Millisecond

// openLive opens both sets. Both have the expiry of the options, and the source the moods.
func openLive(t *testing.T, p provider, seed int64, of clusterOptions) *live {
	l := &live{provider: p, liveTimes: timesOf(t, p), rnd: rand.New(rand.NewPCG(uint64(seed), 1))}
	onSource, onTarget := rolesOnPage(t)
	user := func(name string, roles ...string) mongotest.User {
		return mongotest.User{Name: name, Password: "pass:word/" + name, Roles: roles}
	}
	l.source = p.open(t, clusterOptions{
		name: "source", members: 3, seed: seed, expires: of.expires, moods: of.moods,
		users: []mongotest.User{user(mirrorUser, onSource...), user(writerUser, "root", "__system")},
	})
	l.target = p.open(t, clusterOptions{name: "target", members: 3, seed: seed + 1, expires: of.expires, users: []mongotest.User{user(mirrorUser, onTarget...)}})
	if p.real {
		l.major = majorOf(t, l.source)
	}
	if l.users = !p.real && seed%5 < 2; l.users { // on real servers there are those that the sets are reached by
		grantOnPage(t, connect(t, l.target.uriFor(admin)), mirrorUser)
	}
	everything := must.Get(scope.New(scope.Config{UsersAndRoles: l.users}))(t)
	unique := ddl.Relaxed
	if seed%2 == 0 {
		unique = ddl.Serialized
	}
	l.mirror = &mirror{
		t: t, source: l.source.uriFor(mirrorUser), target: l.target.uriFor(mirrorUser),
		cfg: pipeline.Config{
			Link: "live", Scope: everything, UniqueIndexes: unique, Relaxed: seed%3 == 0,
			Await: time.Second, RetryMax: 2 * time.Second,
		},
	}
	return l
}

func majorOf(t *testing.T, c cluster) int {
	conn := connect(t, c.uriFor(admin))
	reply := command(t, conn, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	major, _ := reply.Lookup("versionArray", "0").AsInt64OK()
	return int(major)
}

func (l *live) run(t *testing.T) {
	l.mirror.begin()
	defer l.mirror.end(errEnd)
	l.mirror.await(l.limit, "the link exists", func(s monitor.Snapshot) bool { return s.Attempts > 0 })

	end := l.write(t, traffic.Config{})
	l.hurt(t, func() (string, error) { return l.injury(t) })
	end()
	l.whole(t)
	l.mirror.drain(l.limit, l.last(t))
	l.same(t)
	l.rarities(t)
}

// write has many clients write to the source until end is called, which waits for
// them. What cfg says of their pauses is kept.
func (l *live) write(t *testing.T, cfg traffic.Config) (end func()) {
	t.Helper()
	cfg.Cluster, cfg.DB, cfg.Seed = connect(t, l.source.uriFor(writerUser)), "live", l.rnd.Uint64()
	cfg.Keys, cfg.ChainBytes = 200, 20<<20
	cfg.Rare, cfg.Embedded = true, !l.real
	cfg.Between(l.major, cmp.Or(l.targetMajor, l.major))
	load, err := traffic.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	soft, enough := context.WithCancelCause(ctx)
	written := make(chan error, 1)
	var writing sync.WaitGroup
	t.Cleanup(func() {
		cancel(nil)
		writing.Wait()
	})
	writing.Go(func() { written <- load.Run(ctx, soft) })
	return func() {
		t.Helper()
		enough(nil)
		select {
		case err := <-written:
			if err != nil {
				t.Fatalf("write to the source: %v", err)
			}
		case <-time.After(l.limit):
			cancel(errEnd)
			t.Fatalf("the clients do not end; they have done %+v", load.Stats())
		}
		t.Logf("written: %+v", load.Stats())
	}
}

// whole waits until all members of both sets serve.
func (l *live) whole(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), l.limit)
	defer cancel()
	if err := errors.Join(l.source.ready(ctx), l.target.ready(ctx)); err != nil {
		t.Fatalf("wait for the sets: %v", err)
	}
}

// last writes a last entry to the source and returns its time.
func (l *live) last(t *testing.T) bson.Timestamp {
	t.Helper()
	source := connect(t, l.source.uriFor(writerUser))
	body, err := bson.Marshal(bson.D{
		{Key: "insert", Value: "last"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "the end"}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var reply bson.Raw
	err = client.ThroughElections(t.Context(), func() (err error) { // one is likely in a set that has just come together
		if reply, err = source.Call(t.Context(), mongo.Command{DB: "live", Body: body}); err != nil {
			return err
		}
		if e := mongo.ConcernError(reply); e != nil {
			return e
		}
		return nil
	})
	if err != nil {
		t.Fatalf("write the last entry: %v", err)
	}
	refused, err := mongo.WriteErrors(reply)
	if err != nil || len(refused) > 0 && refused[0].Code != servererr.DuplicateKey {
		t.Fatalf("write the last entry: %s", reply)
	}
	seconds, i, ok := reply.Lookup("operationTime").TimestampOK()
	if !ok {
		t.Fatalf("write the last entry: no operationTime in %s", reply)
	}
	return bson.Timestamp{T: seconds, I: i}
}

// hurt does one injury after the other for as long as the test is to last. Each is
// called by the name that injure returns.
func (l *live) hurt(t *testing.T, injure func() (string, error)) {
	t.Helper()
	end := time.NewTimer(l.total)
	defer end.Stop()
	done := map[string]int{}
	defer func() { t.Logf("done: %v", done) }()
	for {
		pause := time.NewTimer(l.about(l.between))
		select {
		case <-end.C:
			pause.Stop()
			return
		case err := <-l.mirror.ended:
			l.mirror.ended <- err
			l.mirror.fatal("the mirror has ended: %v", err)
		case <-pause.C:
		}
		name, err := injure()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		done[name]++
	}
}

func (l *live) about(d time.Duration) time.Duration {
	return d/2 + time.Duration(l.rnd.Int64N(int64(d)))
}

// injury does something to one of the sets or to the mirror, and waits until the
// sets are whole again; the mirror need not have noticed by then.
func (l *live) injury(t *testing.T) (string, error) {
	if l.rnd.IntN(3) > 0 {
		return l.injureSet(t)
	}
	l.mirror.end(errEnd)
	l.mirror.cfg.Writers = []int{16, 16, 5}[l.rnd.IntN(3)]
	l.mirror.begin()
	return "restart the mirror", nil
}

// injureSet does something to one of the sets.
func (l *live) injureSet(t *testing.T) (string, error) {
	set, name := l.side()
	ctx, cancel := context.WithTimeout(t.Context(), l.limit)
	defer cancel()
	switch l.rnd.IntN(4) {
	case 0, 1:
		return "step down " + name, set.stepDown(ctx)
	case 2:
		primary, err := set.primary(ctx)
		if err != nil {
			return "look for the primary of " + name, err
		}
		return "kill the primary of " + name, l.kill(ctx, set, primary)
	default:
		return "kill a member of " + name, l.kill(ctx, set, l.rnd.IntN(set.size()))
	}
}

// side chooses one of the sets.
func (l *live) side() (cluster, string) {
	if l.rnd.IntN(2) == 0 {
		return l.target, "target"
	}
	return l.source, "source"
}

// kill kills a member and starts it again.
func (l *live) kill(ctx context.Context, set cluster, member int) error {
	if err := set.kill(ctx, member); err != nil {
		return err
	}
	away := time.NewTimer(l.about(l.down))
	defer away.Stop()
	select {
	case <-away.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := set.start(ctx, member); err != nil {
		return err
	}
	return set.ready(ctx)
}

// same compares the sets: by what they show, and by the hashes that they make of
// their databases themselves.
func (l *live) same(t *testing.T) {
	t.Helper()
	from, to := connect(t, l.source.uriFor(admin)), connect(t, l.target.uriFor(admin))
	report, err := compare.Compare(t.Context(), compare.Cluster(from), compare.Cluster(to), compare.Options{
		Deferred: deferredOf(t, to, l.mirror.cfg.Link), AnyFieldOrder: l.anyFieldOrder,
	})
	if err != nil {
		t.Fatal(err)
	}
	trimmed := map[string]bool{}
	if l.real {
		trimmed = l.trimmed(t, from, to)
		report.Differences = slices.DeleteFunc(report.Differences, func(d compare.Difference) bool {
			return trimmed[string(d.NS)] && strings.Contains(d.What, " in natural order: ")
		})
		if len(trimmed) > 0 && len(report.Differences) == 0 {
			report.More = 0 // of the same collections
		}
	}
	t.Log(report.String())
	if !report.Equal() {
		t.Error("the target differs from the source")
	}
	databases := databasesOf(t, from)
	if there := databasesOf(t, to); !slices.Equal(databases, there) {
		t.Errorf("the target has the databases %q, want %q", there, databases)
	}
	for _, db := range databases {
		if l.anyFieldOrder {
			break // the hashes know no other
		}
		want, got := hashes(t, from, db, trimmed), hashes(t, to, db, trimmed)
		if want != got {
			t.Errorf("dbHash of %s is\n%s\nwant\n%s", db, got, want)
		}
	}
}

// trimmed returns the capped collections of which one side has less than the other,
// by name. A server that was killed does not know any more how large a capped
// collection is, and trims it too soon or too late; so one that is the end of the
// other is what can be asked for.
func (l *live) trimmed(t *testing.T, from, to mongo.Caller) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, db := range databasesOf(t, from) {
		for _, coll := range cappedOf(t, from, db) {
			want, got := natural(t, from, db, coll), natural(t, to, db, coll)
			if slices.Equal(want, got) {
				continue
			}
			n := min(len(want), len(got))
			if n == 0 || !slices.Equal(want[len(want)-n:], got[len(got)-n:]) {
				t.Errorf("%s.%s: of %d documents and %d the last ones are not the same", db, coll, len(want), len(got))
				continue
			}
			found[db+"."+coll] = true
			t.Logf("%s.%s is trimmed to %d documents, at the source to %d", db, coll, len(got), len(want))
		}
	}
	return found
}

func cappedOf(t *testing.T, c mongo.Caller, db string) (names []string) {
	t.Helper()
	reply := command(t, c, db, bson.D{
		{Key: "listCollections", Value: 1},
		{Key: "filter", Value: bson.D{{Key: "options.capped", Value: true}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 1000}}},
	})
	for _, doc := range batch(t, reply) {
		names = append(names, doc.Lookup("name").StringValue())
	}
	return names
}

// natural returns the documents of a small collection in natural order.
func natural(t *testing.T, c mongo.Caller, db, coll string) (docs []string) {
	t.Helper()
	reply := command(t, c, db, bson.D{{Key: "find", Value: coll}, {Key: "batchSize", Value: 100_000}})
	for _, doc := range batch(t, reply) {
		docs = append(docs, string(doc))
	}
	return docs
}

func batch(t *testing.T, reply bson.Raw) (docs []bson.Raw) {
	t.Helper()
	values, err := reply.Lookup("cursor", "firstBatch").Array().Values()
	if err != nil {
		t.Fatalf("read %s: %v", reply, err)
	}
	for _, v := range values {
		docs = append(docs, v.Document())
	}
	return docs
}

// databasesOf returns the names of the databases that are mirrored and not empty.
func databasesOf(t *testing.T, c mongo.Caller) (names []string) {
	t.Helper()
	reply := command(t, c, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	values := must.Get(reply.Lookup("databases").Array().Values())(t)
	for _, v := range values {
		switch name := v.Document().Lookup("name").StringValue(); name {
		case "admin", "config", "local", scope.DefaultMetaDB:
		default:
			if hashes(t, c, name, nil) != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// hashes returns the hash of each collection of a database, by lines. A system.views
// without a view may be there or not.
func hashes(t *testing.T, c mongo.Caller, db string, without map[string]bool) string {
	t.Helper()
	const ofNothing = "d41d8cd98f00b204e9800998ecf8427e"
	reply := command(t, c, db, bson.D{{Key: "dbHash", Value: 1}})
	elems, err := reply.Lookup("collections").Document().Elements()
	if err != nil {
		t.Fatalf("read dbHash of %s: %v", db, err)
	}
	var lines []string
	for _, e := range elems {
		name, hash := e.Key(), e.Value().StringValue()
		if without[db+"."+name] || name == "system.views" && hash == ofNothing {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s", name, hash))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
