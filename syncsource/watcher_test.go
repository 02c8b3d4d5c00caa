package syncsource

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// fakeSet is a set whose members answer hello and replSetGetConfig.
type fakeSet struct {
	mu      sync.Mutex
	members map[string]*fakeMember
	config  bson.D
	refuse  error // of replSetGetConfig
	start   time.Time
	events  []string
	asked   []string // HOST@SECONDS of each hello
}

// fakeMember says extra beside what all members say.
type fakeMember struct {
	extra   bson.D
	delay   time.Duration
	err     error
	version int32
	hosts   []string
	me      string
	setName string
	primary bool
	applied oplog.OpTime
}

func newFakeSet(hosts ...string) *fakeSet {
	f := &fakeSet{members: map[string]*fakeMember{}, start: time.Now()}
	for i, host := range hosts {
		f.members[host] = &fakeMember{
			version: 1, hosts: hosts, me: host, setName: "rs0", primary: i == 0, delay: time.Millisecond,
			applied: oplog.NewOpTime(100, 1, 1),
		}
	}
	f.refuse = servererr.New(servererr.Unauthorized, "not authorized")
	return f
}

// set changes the set.
func (f *fakeSet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeSet) Member(host string) (mongo.Caller, error) { return fakeCaller{f, host}, nil }

type fakeCaller struct {
	set  *fakeSet
	host string
}

func (c fakeCaller) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.set.mu.Lock()
	m := c.set.members[c.host]
	name := cmd.Body.Index(0).Key()
	var delay time.Duration
	if m != nil {
		delay = m.delay
	}
	if name != "replSetGetConfig" {
		c.set.asked = append(c.set.asked, fmt.Sprintf("%s@%d", c.host, time.Since(c.set.start).Milliseconds()))
	}
	c.set.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	switch {
	case m == nil:
		return nil, &mongo.LostError{Host: c.host, Err: errors.New("no such host")}
	case m.err != nil:
		return nil, m.err
	case name == "replSetGetConfig" && c.set.refuse != nil:
		return nil, c.set.refuse
	case name == "replSetGetConfig":
		return bson.Marshal(bson.D{{Key: "config", Value: c.set.config}, {Key: "ok", Value: 1}})
	case cmd.Body.Lookup("$replData").Type == 0 || cmd.DB != "admin":
		return nil, errors.New("not the hello that was wanted")
	}
	optime := bson.D{{Key: "ts", Value: m.applied.TS}, {Key: "t", Value: m.applied.Term}}
	doc := slices.Concat(bson.D{}, m.extra)
	if m.setName != "" {
		doc = append(doc, bson.D{
			{Key: "setName", Value: m.setName},
			{Key: "hosts", Value: m.hosts},
			{Key: "me", Value: m.me},
			{Key: "setVersion", Value: m.version},
			{Key: "isWritablePrimary", Value: m.primary},
			{Key: "secondary", Value: !m.primary},
			{Key: "lastWrite", Value: bson.D{{Key: "opTime", Value: optime}, {Key: "majorityOpTime", Value: optime}}},
		}...)
	}
	return bson.Marshal(append(doc, bson.E{Key: "ok", Value: 1}))
}

func (f *fakeSet) observe(e event.Event) {
	f.events = append(f.events, fmt.Sprintf("%dms %s", time.Since(f.start).Milliseconds(), eventText(e)))
}

// watchFake runs a Watcher on a fake set until the test ends.
func watchFake(t *testing.T, f *fakeSet, cfg WatcherConfig) *Watcher {
	t.Helper()
	cfg.Observer = f.observe
	w, err := NewWatcher(cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	over := errors.New("the test is over")
	var group sync.WaitGroup
	group.Go(func() {
		if err := w.Run(ctx); !errors.Is(err, over) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() {
		cancel(over)
		group.Wait()
	})
	return w
}

// pass lets time go by, until all is quiet.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func describe(v View) []string {
	var lines []string
	for i := range v.Members {
		m := &v.Members[i]
		words := []string{m.Host, m.State.String(), m.Applied.String()}
		for _, word := range []struct {
			text string
			on   bool
		}{{"hidden", m.Hidden}, {"nonvoting", m.NonVoting}, {"stranger", m.Stranger}, {"unasked", !m.Asked}} {
			if word.on {
				words = append(words, word.text)
			}
		}
		line := strings.Join(words, " ")
		if m.Fault != "" {
			line += ": " + m.Fault
		}
		lines = append(lines, line)
	}
	return lines
}

// sorted is a list without its order, for what happens at one time.
func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func member(id int, host string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "_id", Value: int32(id)}, {Key: "host", Value: host}, {Key: "votes", Value: int32(1)}, {Key: "priority", Value: 1.0}}, more...)
}

func TestWatcherBeatsAndPings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
		if err := w.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.set(func() { f.members["b:1"].delay = 21 * time.Millisecond })
		pass(3 * time.Second)
		v := w.View()
		same(t, "members", describe(v), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1"})
		// The first answer is no sample: 1 ms, then (4*1 + 21) / 5 = 5 ms.
		b, _ := v.Find("b:1")
		same(t, "ping", b.Ping, 5*time.Millisecond)
		same(t, "pings", b.Pings, 2)
		same(t, "asked", sorted(f.asked), []string{"a:1@0", "a:1@1", "a:1@2002", "b:1@1", "b:1@2", "b:1@2003"})
		w.Seek(true)
		pass(time.Second)
		same(t, "asked while seeking", sorted(f.asked[6:]), []string{"a:1@3003", "a:1@3504", "b:1@3003", "b:1@3524"})
		w.Seek(false)
		same(t, "events", sorted(f.events), []string{
			"1ms member up host=a:1",
			"1ms primary of the source changed from= to=a:1",
			"2ms member up host=b:1",
			"2ms the source's configuration cannot be read reason=not authorized (Unauthorized, code 13)",
		})
	})
}

func TestWatcherMemberDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1", "b:1"}})
		pass(time.Second)
		f.events, f.asked = nil, nil
		f.set(func() { f.members["a:1"].err = &mongo.LostError{Host: "a:1", Err: errors.New("connection refused")} })
		f.set(func() { f.members["b:1"].delay = time.Hour })
		pass(14 * time.Second)
		same(t, "members", describe(w.View()), []string{
			"a:1 DOWN 100:1 t1: cannot be reached: connection refused",
			"b:1 DOWN 100:1 t1: cannot be asked: no answer within 10 s",
		})
		same(t, "asked", sorted(f.asked[:4]), []string{"a:1@2002", "a:1@2003", "a:1@2004", "b:1@2002"})
		f.set(func() { f.members["a:1"].err, f.members["b:1"].delay = nil, time.Millisecond })
		pass(20 * time.Second)
		same(t, "members", describe(w.View()), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1"})
		same(t, "events", sorted(f.events), []string{
			"12002ms member at fault host=b:1 reason=cannot be asked: no answer within 10 s",
			"16012ms member up host=a:1",
			"16012ms primary of the source changed from= to=a:1",
			"2005ms member at fault host=a:1 reason=cannot be reached: connection refused",
			"2005ms primary of the source changed from=a:1 to=",
			"26003ms member up host=b:1",
		})
	})
}

// TestWatcherConfig: the configuration shows hidden members, and a newer one is read
// soon after a member spoke of it.
func TestWatcherConfig(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1", "c:1")
		for _, m := range f.members {
			m.hosts = []string{"a:1", "b:1"}
		}
		f.refuse = nil
		hidden := bson.D{{Key: "hidden", Value: true}, {Key: "votes", Value: int32(0)}, {Key: "tags", Value: bson.D{{Key: "dc", Value: "x"}}}}
		f.config = bson.D{
			{Key: "_id", Value: "rs0"},
			{Key: "version", Value: int32(1)},
			{Key: "members", Value: bson.A{member(0, "a:1"), member(7, "c:1", hidden...), member(1, "b:1", bson.E{Key: "secondaryDelaySecs", Value: int64(5)})}},
			{Key: "settings", Value: bson.D{{Key: "chainingAllowed", Value: false}, {Key: "replicaSetId", Value: bson.ObjectID{1}}}},
		}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"b:1"}})
		pass(time.Second)
		v := w.View()
		same(t, "members", describe(v), []string{"a:1 PRIMARY 100:1 t1", "c:1 SECONDARY 100:1 t1 hidden nonvoting", "b:1 SECONDARY 100:1 t1"})
		c, b := v.Members[1], v.Members[2]
		if !v.NoChaining || c.ID != 7 || c.Tags["dc"] != "x" || b.Delay != 5*time.Second || v.ReplicaSetID.ObjectID() != (bson.ObjectID{1}) || v.ConfigFault != "" {
			t.Errorf("%+v", v)
		}
		f.set(func() {
			f.config[1].Value = int32(2)
			f.config[2].Value = bson.A{member(0, "a:1"), member(1, "b:1")}
			f.members["a:1"].version = 2
			f.members["c:1"].setName = ""
		})
		pass(3 * time.Second)
		v = w.View()
		same(t, "members", describe(v), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1"})
		f.set(func() { f.asked = nil })
		pass(10 * time.Second)
		if slices.ContainsFunc(f.asked, func(s string) bool { return strings.HasPrefix(s, "c:1") }) {
			t.Errorf("a member that was removed is asked: %v", f.asked)
		}
		if v.ConfigVersion != 2 || v.Answers == 0 || v.Answers > 6 {
			t.Errorf("version %d, %d answers", v.ConfigVersion, v.Answers)
		}
	})
}

// TestWatcherHiddenSeed: without the configuration a hidden member is known if it is
// a seed, and a seed by another name is not.
func TestWatcherHiddenSeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.members["h:1"] = &fakeMember{version: 1, hosts: []string{"a:1", "b:1"}, me: "h:1", setName: "rs0", extra: bson.D{{Key: "hidden", Value: true}}}
		f.members["alias:1"] = f.members["a:1"]
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"alias:1", "h:1"}, SetName: "rs0"})
		pass(time.Second)
		same(t, "members", describe(w.View()), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1", "h:1 SECONDARY 0:0 t0 hidden"})
		// While no member answers the seeds are asked again: the set may have moved.
		f.set(func() {
			lost := &mongo.LostError{Err: errors.New("gone")}
			f.members["a:1"] = &fakeMember{err: lost}
			f.members["b:1"], f.members["h:1"] = f.members["a:1"], f.members["a:1"]
		})
		pass(10 * time.Second)
		got := describe(w.View())
		same(t, "members while the seeds are asked again", got, []string{
			"a:1 DOWN 100:1 t1: cannot be reached: gone", "b:1 DOWN 100:1 t1: cannot be reached: gone",
			"h:1 DOWN 0:0 t0 hidden: cannot be reached: gone", "alias:1 PRIMARY 100:1 t1 stranger",
		})
	})
}

// TestWatcherRefusesOthers: whoever is no member of the set is at fault, with why.
func TestWatcherRefusesOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := []string{"a:1", "other:1", "copy:1", "router:1", "single:1", "moved:1", "broken:1"}
		f := newFakeSet(hosts...)
		f.members["other:1"].setName = "rs1"
		f.members["copy:1"].extra = bson.D{{Key: "$replData", Value: bson.D{{Key: "replicaSetId", Value: bson.ObjectID{2}}}}}
		f.members["router:1"].setName, f.members["router:1"].extra = "", bson.D{{Key: "msg", Value: "isdbgrid"}}
		f.members["single:1"].setName = ""
		f.members["moved:1"].me = "b:1"
		f.members["broken:1"].extra = bson.D{{Key: "secondaryDelaySecs", Value: "x"}}
		id := bson.RawValue{Type: bson.TypeObjectID, Value: append([]byte{1}, make([]byte, 11)...)}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}, ReplicaSetID: id})
		pass(time.Second)
		same(t, "members", describe(w.View()), []string{
			"a:1 PRIMARY 100:1 t1",
			`other:1 DOWN 100:1 t1: is a member of the set "rs1", not of "rs0"`,
			`copy:1 DOWN 100:1 t1: is a member of another set of the name "rs0": its id is {"$oid":"020000000000000000000000"}, not {"$oid":"010000000000000000000000"}`,
			"router:1 DOWN 0:0 t0: is a mongos, not a member of a replica set",
			"single:1 DOWN 0:0 t0: is not a member of a replica set, or has no valid configuration of one",
			"moved:1 DOWN 100:1 t1: is not who answers at that address: that is b:1",
			`broken:1 DOWN 0:0 t0: cannot be asked: read the reply to hello: the field "secondaryDelaySecs" is not a whole number but string`,
		})
	})
}

func TestWatcherDirect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.members["tunnel:1"] = f.members["b:1"]
		f.refuse = nil
		f.config = bson.D{{Key: "_id", Value: "rs0"}, {Key: "version", Value: int32(1)}, {Key: "members", Value: bson.A{
			member(0, "a:1"), member(5, "b:1", bson.E{Key: "hidden", Value: true}),
		}}}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"tunnel:1"}, Direct: true})
		pass(time.Second)
		v := w.View()
		same(t, "members", describe(v), []string{"tunnel:1 SECONDARY 100:1 t1 hidden"})
		same(t, "id", v.Members[0].ID, 5)
	})
}

// TestWatcherHorizons: where the set has other names for this network, hidden
// members are asked under theirs.
func TestWatcherHorizons(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a.out:1", "b.out:1")
		f.members["h.out:1"] = &fakeMember{version: 1, hosts: []string{"a.out:1", "b.out:1"}, me: "h.out:1", setName: "rs0"}
		f.refuse = nil
		horizon := func(host string) bson.E {
			return bson.E{Key: "horizons", Value: bson.D{{Key: "out", Value: host}}}
		}
		f.config = bson.D{{Key: "_id", Value: "rs0"}, {Key: "version", Value: int32(1)}, {Key: "members", Value: bson.A{
			member(0, "a.in:1", horizon("a.out:1")), member(1, "b.in:1", horizon("b.out:1")),
			member(2, "h.in:1", horizon("h.out:1"), bson.E{Key: "hidden", Value: true}),
		}}}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a.out:1"}})
		pass(time.Second)
		same(t, "members", describe(w.View()), []string{"a.out:1 PRIMARY 100:1 t1", "b.out:1 SECONDARY 100:1 t1", "h.out:1 SECONDARY 0:0 t0 hidden"})
	})
}

func TestWatcherConfigChecked(t *testing.T) {
	t.Parallel()
	for _, cfg := range []WatcherConfig{
		{},
		{Seeds: []string{"a", "a"}},
		{Seeds: []string{""}},
		{Seeds: []string{"a"}, HeartbeatInterval: time.Millisecond},
		{Seeds: []string{"a"}, HeartbeatTimeout: -1},
		{Seeds: []string{"a"}, ConfigInterval: time.Second},
	} {
		if _, err := NewWatcher(cfg, nil); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
	// Two on one registry share what they count.
	reg := prometheus.NewRegistry()
	for range 2 {
		if _, err := NewWatcher(WatcherConfig{Seeds: []string{"a"}, Registry: reg}, nil); err != nil {
			t.Error(err)
		}
		if _, err := NewResolver(ResolverConfig{Registry: reg}, nil, nil); err != nil {
			t.Error(err)
		}
	}
}

func recorded(t testing.TB, name string) bson.Raw {
	t.Helper()
	text, err := os.ReadFile("testdata/replies/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var doc bson.Raw
	if err := bson.UnmarshalExtJSON(text, true, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestParseRecorded(t *testing.T) {
	t.Parallel()
	h, err := parseHello(recorded(t, "hello-metadata"))
	if err != nil {
		t.Fatal(err)
	}
	newest := oplog.NewOpTime(1795168891, 2, 5)
	same(t, "member", h.member, Member{
		ID: -1, Priority: 1, State: oplog.MemberPrimary, Term: 5, Applied: newest, Committed: newest, RBID: 1,
	})
	same(t, "id", h.replicaSetID.ObjectID().Hex(), "6b001781c0c527dd725a870c")
	same(t, "hosts", h.hosts, []string{"127.0.0.1:27311", "127.0.0.1:27312", "127.0.0.1:27313"})
	if h.setName != "tgt" || h.configTerm != 5 || h.configVersion != 3 || h.me != "127.0.0.1:27311" || h.fault != "" {
		t.Errorf("%+v", h)
	}
	if h, err = parseHello(recorded(t, "hello-secondary")); err != nil || h.member.State != oplog.MemberSecondary || h.member.RBID != -1 {
		t.Errorf("%+v, %v", h, err)
	}
	c, err := parseConfig(recorded(t, "replSetGetConfig"))
	if err != nil {
		t.Fatal(err)
	}
	if c.name != "tgt" || c.term != 5 || c.version != 3 || len(c.members) != 3 || c.members[0].Priority != 2 || c.noChaining || c.members[2].NonVoting {
		t.Errorf("%+v", c)
	}
}

func FuzzParse(f *testing.F) {
	// One field at a time: large seeds are only made smaller all the time.
	for _, name := range []string{"hello-metadata", "hello-secondary", "replSetGetConfig"} {
		elems, err := recorded(f, name).Elements()
		if err != nil {
			f.Fatal(err)
		}
		for _, e := range elems {
			doc := append(make([]byte, 4), append([]byte(e), 0)...)
			binary.LittleEndian.PutUint32(doc, uint32(len(doc)))
			f.Add(doc)
		}
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		if h, err := parseHello(data); err == nil && h == nil {
			panic("neither a hello nor an error")
		}
		if c, err := parseConfig(data); err == nil && len(c.members) == 0 {
			panic("a configuration without members")
		}
		if o, problem := entryTime(data); problem == "" && o.IsNull() {
			panic("a null entry")
		}
		_ = rollbackID(data)
	})
}

// TestResolveCancelled: the end of the context ends Resolve, wherever it is, and
// nothing is held against a member for it.
func TestResolveCancelled(t *testing.T) {
	t.Parallel()
	over := errors.New("enough")
	for _, silent := range []string{"> h1 oldest=silent", "> h1 oldest=4:1@1 has=silent", ""} {
		synctest.Test(t, func(t *testing.T) {
			s := &scenario{hosts: map[string]*fakeOplog{}}
			if words := strings.Fields(silent); len(words) > 0 {
				s.hosts["h1"] = &fakeOplog{words: words[2:]}
			}
			views := &fixedViews{view: View{Answers: 2, Members: []Member{parseMember(t, "h1 secondary 10:1@1")}}}
			r, err := NewResolver(ResolverConfig{}, views, s)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			if silent == "" {
				cancel(over)
			}
			defer time.AfterFunc(time.Second, func() { cancel(over) }).Stop()
			_, err = r.Resolve(ctx, oplog.NewOpTime(5, 1, 1), oplog.NewOpTime(8, 1, 1))
			if !errors.Is(err, over) {
				t.Errorf("%q: %v", silent, err)
			}
			if denied := r.Status().Denied; len(denied) != 0 {
				t.Errorf("%q: denied %v", silent, denied)
			}
			cancel(nil)
		})
	}
}

// TestResolverRemembers: force, deny and history last from one Resolve to the next.
func TestResolverRemembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scenario{hosts: map[string]*fakeOplog{"h1": {words: []string{"oldest=1:1@1"}}, "h2": {words: []string{"oldest=1:1@1"}}}}
		views := &fixedViews{view: View{Answers: 10, Members: []Member{
			parseMember(t, "h1 secondary 10:1@1 ping=30ms"), parseMember(t, "h2 secondary 10:1@1 ping=1ms"),
		}}}
		r, err := NewResolver(ResolverConfig{}, views, s)
		if err != nil {
			t.Fatal(err)
		}
		last := oplog.NewOpTime(5, 1, 1)
		resolve := func(want string) {
			t.Helper()
			source, err := r.Resolve(t.Context(), last, oplog.OpTime{})
			if err != nil || source.Host != want || r.Status().Current != want {
				t.Fatalf("%s, %v, not %s", source.Host, err, want)
			}
		}
		said := Said{Applied: last, HasSource: true}
		stay := func(want bool) {
			t.Helper()
			if v := r.OnReply(last, said); v.Change == want {
				t.Fatalf("%+v", v)
			}
		}
		resolve("h2")
		r.Deny("h2", DenyFetched, "has no oplog")
		stay(false)
		resolve("h1")
		stay(true)
		pass(time.Minute)
		// The denial has ended, and the source was changed twice: h2 is nearer.
		stay(false)
		resolve("h2")
		r.Deny("h2", DenyNetwork, "did not answer")
		resolve("h1")
		pass(time.Minute)
		stay(true) // three changes within the hour
		if _, err := r.Force("h3", last); !errors.Is(err, ErrForce) {
			t.Fatal(err)
		}
		if _, err := r.Force("h2", last); err != nil {
			t.Fatal(err)
		}
		stay(false)
		resolve("h2")
		if !r.Status().Forced {
			t.Fatal("not known to be forced")
		}
		resolve("h2")
		r.DenyStale("h1", oplog.NewOpTime(9, 1, 1))
		r.Deny("h2", DenyNetwork, "did not answer")
		_, err = r.Resolve(t.Context(), last, oplog.OpTime{})
		if stale, ok := errors.AsType[*TooStaleError](err); !ok || stale.Earliest != oplog.NewOpTime(9, 1, 1) {
			t.Fatal(err)
		}
		// What was fetched since is behind it no more.
		last = oplog.NewOpTime(9, 1, 1)
		if _, err = r.Resolve(t.Context(), last, oplog.OpTime{}); !errors.Is(err, ErrNoSource) {
			t.Fatal(err)
		}
	})
}

func TestFaultOf(t *testing.T) {
	inner := errors.New("inner")
	for want, err := range map[string]error{
		"refuses to answer: inner (Unauthorized, code 13)": servererr.New(servererr.Unauthorized, "inner"),
		"cannot be reached: inner":                         &mongo.LostError{Host: "a:1", Err: inner},
		"does not let us in: inner":                        &mongo.LostError{Host: "a:1", Err: inner, Refused: true},
		"cannot be asked: inner":                           inner,
	} {
		same(t, "fault", faultOf(err), want)
	}
}
