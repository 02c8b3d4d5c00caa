package mongosim

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
)

// moody is a set with one mood, and a connection to its primary of the program, that
// meets it at the next command.
type moody struct {
	*Set
	t   *testing.T
	ctx context.Context
	*client
	// other is a connection of a test, that meets none.
	other *client
	lsid  bson.D
}

func newMoody(t *testing.T, name, dialect string, members int) *moody {
	t.Helper()
	m := &moody{t: t, ctx: within(t)}
	m.Set = quick(t, Options{Members: members, Dialect: dialect, Moods: Moods{OneIn: map[string]int{name: 1}, Seed: 1}})
	p := must[*Member](t)(m.AwaitPrimary(m.ctx))
	m.client, m.other = m.program(p), dial(t, p)
	m.lsid = bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}
	for i := range 20 {
		succeed(t, m.other.insert(m.ctx, int32(i), w(1)))
	}
	return m
}

// program connects as the program does.
func (m *moody) program(to *Member) *client {
	m.t.Helper()
	c := dial(m.t, to)
	c.run(m.ctx, "admin", bson.D{
		{Key: "hello", Value: 1},
		{Key: "helloOk", Value: true},
		{Key: "client", Value: bson.D{{Key: "application", Value: bson.D{{Key: "name", Value: program}}}}},
	})
	return c
}

// in sends a command of a transaction on a connection.
func (m *moody) in(c *client, cmd bson.D, first bool) (bson.Raw, error) {
	cmd = append(cmd, bson.E{Key: "lsid", Value: m.lsid}, bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "autocommit", Value: false})
	db := "app"
	if cmd[0].Key == "commitTransaction" {
		db = "admin"
	}
	if first {
		cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	}
	return c.call(m.ctx, db, cmd)
}

var (
	anUpdate = bson.D{
		{Key: "update", Value: "c"},
		{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}}}}}}},
	}
	anInsert = bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "new"}}}}}
	aFind    = bson.D{{Key: "find", Value: "c"}}
	aPing    = bson.D{{Key: "listCollections", Value: 1}}
)

func with(cmd bson.D, more ...bson.E) bson.D { return append(slices.Clone(cmd), more...) }

// statement is the first statement of a transaction; later one that is not.
func (m *moody) statement() (bson.Raw, error) { return m.in(m.client, slices.Clone(anUpdate), true) }

func (m *moody) later() (bson.Raw, error) {
	if _, err := m.in(m.other, slices.Clone(anUpdate), true); err != nil {
		m.t.Fatal(err)
	}
	return m.in(m.client, slices.Clone(anUpdate), false)
}

// more opens a cursor on one connection and asks for more on another one.
func (m *moody) more(cmd bson.D, from, to *client) (bson.Raw, error) {
	id := from.run(m.ctx, "app", cmd).Lookup("cursor", "id").Int64()
	return to.call(m.ctx, "app", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}})
}

func (m *moody) two() bson.D { return with(aFind, bson.E{Key: "batchSize", Value: int32(2)}) }

func wMajority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

// refusals are the moods that reply with an error: how they are met, and whether
// the command has its effect. The code and the text are those of the list.
var refusals = map[string]struct {
	dialect string
	meet    func(m *moody) (bson.Raw, error)
	labels  []string
	done    bool
}{
	"ticket-timeout": {meet: (*moody).statement, labels: transientLabel},
	"lock-timeout":   {meet: (*moody).statement, labels: transientLabel},
	"write-conflict": {meet: (*moody).statement, labels: transientLabel},
	"stale-catalog":  {meet: (*moody).later, labels: transientLabel},
	"old-snapshot": {meet: func(m *moody) (bson.Raw, error) {
		return m.in(m.client, with(aFind, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}}}), true)
	}, labels: transientLabel},
	"txn-expired":         {meet: (*moody).later},
	"txn-too-large":       {dialect: "7.0", meet: (*moody).statement},
	"interrupted":         {meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", anInsert) }},
	"killed-by-step-down": {meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", aFind) }},
	"not-primary": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(anInsert, bson.E{Key: "lsid", Value: m.lsid}, bson.E{Key: "txnNumber", Value: int64(1)}))
	}, labels: []string{"RetryableWriteError"}},
	"no-committed-snapshot": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(aFind, bson.E{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}}))
	}},
	"out-of-time": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(aFind, bson.E{Key: "maxTimeMS", Value: 60000}))
	}},
	"too-many-sessions": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(aFind, bson.E{Key: "lsid", Value: m.lsid}))
	}},
	"too-busy":             {dialect: "6.0", meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", anInsert) }},
	"concern-stepped-down": {meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", with(anInsert, wMajority())) }, done: true},
	"concern-interrupted":  {meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", with(anInsert, wMajority())) }, done: true},
	"concern-shutdown":     {meet: func(m *moody) (bson.Raw, error) { return m.call(m.ctx, "app", with(anInsert, wMajority())) }, done: true},
	"concern-timeout": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(anInsert, bson.E{Key: "writeConcern", Value: majority}))
	}, done: true},
	"cursor-killed": {meet: func(m *moody) (bson.Raw, error) { return m.more(m.two(), m.client, m.client) }},
	"build-aborted": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}},
		}}})
	}},
	"build-canceled": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}},
		}}})
	}},
	"unreachable": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", with(anInsert, bson.E{Key: "lsid", Value: m.lsid}, bson.E{Key: "txnNumber", Value: int64(1)}))
	}, labels: []string{"RetryableWriteError"}},
	"build-in-the-way": {meet: func(m *moody) (bson.Raw, error) {
		return m.call(m.ctx, "app", bson.D{{Key: "collMod", Value: "c"}, {Key: "validationLevel", Value: "off"}})
	}},
	"cursor-in-use": {meet: func(m *moody) (bson.Raw, error) {
		return m.more(m.two(), m.client, m.program(m.Primary()))
	}},
}

var transientLabel = []string{"TransientTransactionError"}

// TestRefusingMoods: each mood that is an error is answered as the list says, with
// the server's labels, to the program alone, and does what it says to the data.
func TestRefusingMoods(t *testing.T) {
	t.Parallel()
	for _, listed := range mood.All() {
		c, ok := refusals[listed.Name]
		if !ok {
			continue
		}
		t.Run(listed.Name, func(t *testing.T) {
			t.Parallel()
			m := newMoody(t, listed.Name, c.dialect, 1)
			_, err := c.meet(m)
			wantCode(t, listed.Name, err, listed.Code)
			if e, ok := err.(*servererr.Error); ok { //nolint:errorlint // never wrapped
				if diff := cmp.Diff(c.labels, e.Labels); diff != "" || e.Message != listed.Text {
					t.Errorf("%s, labels %s", e.Message, diff)
				}
			}
			if diff := cmp.Diff(map[string]int{listed.Name: 1}, m.Moods()); diff != "" {
				t.Errorf("occurred: %s", diff)
			}
			if strings.Contains(listed.Where, "transaction") && listed.Kind == mood.Refuse { // which is its end
				_, err := m.in(m.other, slices.Clone(anUpdate), false)
				wantCode(t, "the statement after it", err, servererr.NoSuchTransaction)
			}
			n := len(m.other.find(m.ctx, "app", "c", bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: "new"}}}))
			if n == 1 != c.done {
				t.Errorf("%d documents of what was refused", n)
			}
		})
	}
}

// others are the moods that are more than an error.
var otherMoods = map[string]func(m *moody){
	"txn-gone": func(m *moody) {
		_, err := m.later()
		wantCode(m.t, "a statement", err, servererr.NoSuchTransaction)
		if e, ok := err.(*servererr.Error); !ok || !slices.Equal(e.Labels, transientLabel) { //nolint:errorlint // never wrapped
			m.t.Errorf("%v has no label", err)
		}
	},
	"recovering": func(m *moody) {
		to := others(m.Set, m.Primary())[0]
		c := m.program(to)
		_, err := c.call(m.ctx, "app", with(aFind, nearest))
		wantCode(m.t, "a read on a secondary", err, servererr.NotPrimaryOrSecondary)
	},
	"shutdown": func(m *moody) { m.shuts(servererr.InterruptedAtShutdown) },
	"quiesce":  func(m *moody) { m.shuts(servererr.ShutdownInProgress) },
	"slow-majority": func(m *moody) {
		m.run(m.ctx, "app", with(anInsert, wMajority()))
	},
	"short-batch": func(m *moody) {
		reply := m.run(m.ctx, "app", aFind)
		n, id := len(batch(m.t, reply, "firstBatch")), reply.Lookup("cursor", "id").Int64()
		if n < 1 || n > 7 || id == 0 {
			m.t.Fatalf("%d documents at first, cursor %d", n, id)
		}
		for id != 0 { // nothing is lost by it
			reply = m.run(m.ctx, "app", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}})
			n += len(batch(m.t, reply, "nextBatch"))
			id = reply.Lookup("cursor", "id").Int64()
		}
		if n != 20 {
			m.t.Errorf("%d documents of 20", n)
		}
		// A batch that ends with the last document does not say that it is the last.
		empty := false
		for range 100 {
			reply := m.run(m.ctx, "app", with(aFind, bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 3}}}}}))
			if id := reply.Lookup("cursor", "id").Int64(); id != 0 {
				reply = m.run(m.ctx, "app", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "c"}})
				empty = len(batch(m.t, reply, "nextBatch")) == 0 && reply.Lookup("cursor", "id").Int64() == 0
			}
			if empty {
				break
			}
		}
		if !empty {
			m.t.Error("no batch was empty")
		}
	},
	"no-config":      func(m *moody) { m.never("admin", bson.D{{Key: "replSetGetConfig", Value: 1}}) },
	"no-status":      func(m *moody) { m.never("admin", bson.D{{Key: "serverStatus", Value: 1}}) },
	"no-sync-id":     func(m *moody) { m.never("local", bson.D{{Key: "find", Value: "replset.initialSyncId"}}) },
	"no-local-lists": func(m *moody) { m.never("local", aPing) },
	"early-return": func(m *moody) {
		oplog := bson.D{
			{Key: "find", Value: "oplog.rs"},
			{Key: "tailable", Value: true},
			{Key: "awaitData", Value: true},
			{Key: "filter", Value: bson.D{{Key: "ts", Value: bson.D{{Key: "$gte", Value: view(m.t, m.Primary()).Applied.TS}}}}},
		}
		id := m.other.run(m.ctx, "local", oplog).Lookup("cursor", "id").Int64()
		start := time.Now()
		reply := m.run(m.ctx, "local", bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: "oplog.rs"}, {Key: "maxTimeMS", Value: int64(60000)}})
		if n, took := len(batch(m.t, reply, "nextBatch")), time.Since(start); n != 0 || took > 40*time.Second || reply.Lookup("cursor", "id").Int64() == 0 {
			m.t.Errorf("%d entries after %s", n, took)
		}
	},
	"cursor-gone": func(m *moody) {
		_, err := m.more(m.two(), m.other, m.client)
		wantCode(m.t, "getMore", err, servererr.CursorNotFound)
		if _, err = m.more(m.two(), m.other, m.client); err != nil { // only once: the next ones are spared
			m.t.Error(err)
		}
	},
	"reply-lost": func(m *moody) { m.hangsUp(anInsert, 1) },
	"hang-up":    func(m *moody) { m.hangsUp(anInsert, 0) },
	"connections-dropped": func(m *moody) {
		second := m.program(m.Primary())
		m.run(m.ctx, "app", aPing) // the one that meets it is still answered
		for _, c := range []*client{m.client, second} {
			if _, err := c.call(m.ctx, "app", aPing); err == nil {
				m.t.Error("an old connection is answered")
			}
		}
		m.program(m.Primary()).run(m.ctx, "app", aPing)
		m.other.run(m.ctx, "app", aPing)
	},
	"election": func(m *moody) {
		before := view(m.t, m.Primary()).Term
		m.run(m.ctx, "app", aPing)
		eventually(m.ctx, m.t, "another one is elected", func() bool {
			p := m.Primary()
			return p != nil && view(m.t, p).Term > before
		})
	},
}

// never: the program is refused a command each time, and nothing else; a test is not.
func (m *moody) never(db string, cmd bson.D) {
	for range 3 {
		_, err := m.call(m.ctx, db, cmd)
		wantCode(m.t, "a command without its privilege", err, servererr.Unauthorized)
	}
	m.run(m.ctx, "app", aPing)
	m.run(m.ctx, "local", bson.D{{Key: "find", Value: "oplog.rs"}, {Key: "limit", Value: 1}})
	m.other.run(m.ctx, db, cmd)
}

// hangsUp: a command is answered by the end of the connection, and done or not.
func (m *moody) hangsUp(cmd bson.D, done int) {
	if _, err := m.call(m.ctx, "app", cmd); err == nil {
		m.t.Error("there was a reply")
	}
	n := len(m.other.find(m.ctx, "app", "c", bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: "new"}}}))
	if n != done {
		m.t.Errorf("it was done %d times, want %d", n, done)
	}
}

// shuts: a command is refused, and the connection closed at the next one.
func (m *moody) shuts(code servererr.Code) {
	_, err := m.call(m.ctx, "app", anInsert)
	wantCode(m.t, "a command", err, code)
	if _, err := m.call(m.ctx, "app", aPing); err == nil {
		m.t.Error("the connection is still open")
	}
}

// TestOtherMoods: and so are the rest of them.
func TestOtherMoods(t *testing.T) {
	t.Parallel()
	known := slices.Sorted(maps.Keys(refusals))
	for name, meet := range otherMoods {
		known = append(known, name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoody(t, name, "", map[bool]int{true: 3, false: 1}[name == "election" || name == "recovering"])
			meet(m)
			if m.Moods()[name] == 0 {
				t.Errorf("it has not occurred: %v", m.Moods())
			}
		})
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(mood.Names())), slices.Sorted(slices.Values(known))); diff != "" {
		t.Errorf("moods of the list without a test, or the other way round: %s", diff)
	}
}

// TestWhoMeetsMoods: connections with another name meet none, and a set has all of
// them if a test says nothing.
func TestWhoMeetsMoods(t *testing.T) {
	t.Parallel()
	m := newMoody(t, "interrupted", "", 1)
	for range 30 {
		m.other.run(m.ctx, "app", aPing)
	}
	if len(m.Moods()) > 0 {
		t.Errorf("a test met %v", m.Moods())
	}
	for name, c := range map[string]struct {
		tb    TB
		moods bool
	}{"a test": {t, true}, "a benchmark": {benchmark{t}, false}} {
		if set := StartTest(c.tb, Options{}); set.temper != nil != c.moods && os.Getenv(envMoods) == "" {
			t.Errorf("%s has moods: %t", name, set.temper != nil)
		}
	}
}

// benchmark is taken for one.
type benchmark struct{ *testing.T }

func (benchmark) Loop() bool { return false }

// TestTold: a test that has failed shows the seed, and what occurred.
func TestTold(t *testing.T) {
	t.Parallel()
	m := newMoody(t, "interrupted", "", 1)
	_, err := m.call(m.ctx, "app", aPing)
	wantCode(t, "a command", err, servererr.Interrupted)
	for failed, want := range map[bool]string{true: "REPLICATOR_SEED=1; there were: interrupted 1", false: ""} {
		log := &failing{T: t, failed: failed}
		m.tell(log)
		if !strings.HasSuffix(log.said, want) || failed != (log.said != "") {
			t.Errorf("a test that failed (%t) says %q", failed, log.said)
		}
	}
}

// failing is a test that has failed, or not.
type failing struct {
	*testing.T
	failed bool
	said   string
}

func (f *failing) Failed() bool { return f.failed }

func (f *failing) Logf(format string, args ...any) { f.said += fmt.Sprintf(format, args...) }

// TestMoodsOfOptions: the moods of a test, as changed by the environment.
func TestMoodsOfOptions(t *testing.T) {
	all := mood.Names()
	for name, c := range map[string]struct {
		m    Moods
		env  string
		want []string
	}{
		"nothing":        {Moods{}, "", nil},
		"nothing, all":   {Moods{}, "all", all},
		"all":            {Moods{All: true}, "", all},
		"all, off":       {Moods{All: true}, "off", nil},
		"none":           {NoMoods("a reason"), "all", nil},
		"without":        {MoodsWithout(all[0], "a reason").But(all[1], "another"), "", all[2:]},
		"without, named": {MoodsWithout(all[0], "a reason"), all[0] + "," + all[1] + "=3", all[1:2]},
		"minus":          {Moods{}, "-" + all[0] + ",-" + all[2], append([]string{all[1]}, all[3:]...)},
		"gentle":         {GentleMoods("a reason"), "all", []string{"slow-majority", "short-batch", "early-return"}},
	} {
		t.Setenv(envMoods, c.env)
		t.Setenv(envSeed, "7")
		if err := c.m.fromEnvironment(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		temper, err := c.m.temper(func() {})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := temper.Moods(); !slices.Equal(got, c.want) || c.m.Seed != 7 {
			t.Errorf("%s: %v, want %v; seed %d", name, got, c.want, c.m.Seed)
		}
	}
	for env, value := range map[string]string{envMoods: "nonsense", envSeed: "x"} {
		t.Setenv(envMoods, "")
		t.Setenv(envSeed, "7")
		t.Setenv(env, value)
		if _, err := TestMoods(); err == nil {
			t.Errorf("%s=%s is taken", env, value)
		}
	}
}
