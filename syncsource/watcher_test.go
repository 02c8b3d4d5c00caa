package syncsource

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func TestWatcherBeatsAndPings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
		must.Succeed(t, w.Ready(t.Context()))
		f.set(func() { f.members["b:1"].delay = 21 * time.Millisecond })
		pass(3 * time.Second)
		v := w.View()
		same(t, "members", describe(v), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1"})
		// The first answer is not a sample: 1 ms, then (4*1 + 21) / 5 = 5 ms.
		b, _ := v.find("b:1")
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
			"b:1 DOWN 100:1 t1: fails its heartbeat: no answer within 10 s",
		})
		same(t, "asked", sorted(f.asked[:4]), []string{"a:1@2002", "a:1@2003", "a:1@2004", "b:1@2002"})
		f.set(func() { f.members["a:1"].err, f.members["b:1"].delay = nil, time.Millisecond })
		pass(20 * time.Second)
		same(t, "members", describe(w.View()), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1"})
		same(t, "events", sorted(f.events), []string{
			"12002ms member unusable host=b:1 reason=fails its heartbeat: no answer within 10 s",
			"16012ms member up host=a:1",
			"16012ms primary of the source changed from= to=a:1",
			"2005ms member unusable host=a:1 reason=cannot be reached: connection refused",
			"2005ms primary of the source changed from=a:1 to=",
			"26003ms member up host=b:1",
		})
	})
}

// TestWatcherConfig: the configuration contains hidden members, and a newer one is
// read soon after a member reports it.
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

// TestWatcherHiddenSeed: without the configuration, a hidden member is known if it
// is a seed, but a seed under another name is not.
func TestWatcherHiddenSeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.members["h:1"] = &fakeMember{version: 1, hosts: []string{"a:1", "b:1"}, me: "h:1", setName: "rs0", extra: bson.D{{Key: "hidden", Value: true}}}
		f.members["alias:1"] = f.members["a:1"]
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"alias:1", "h:1"}})
		pass(time.Second)
		same(t, "members", describe(w.View()), []string{"a:1 PRIMARY 100:1 t1", "b:1 SECONDARY 100:1 t1", "h:1 SECONDARY 0:0 t0 hidden"})
		// While no member answers, the seeds are asked again: the set may have moved.
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
		// All members were replaced by others, which the seed leads to.
		f.set(func() {
			hosts := []string{"c:1", "d:1"}
			for i, host := range hosts {
				f.members[host] = &fakeMember{version: 2, hosts: hosts, me: host, setName: "rs0", primary: i == 0, applied: oplog.NewOpTime(200, 1, 2)}
			}
			f.members["alias:1"] = f.members["c:1"]
		})
		pass(10 * time.Second)
		same(t, "members after all were replaced", describe(w.View()), []string{
			"c:1 PRIMARY 200:1 t2", "d:1 SECONDARY 200:1 t2", "h:1 DOWN 0:0 t0 hidden: cannot be reached: gone",
		})
	})
}

// TestWatcherRefusesOthers: a host that is not a member of the set has a fault that
// says why.
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
		f.members["a:1"].extra = bson.D{{Key: "$replData", Value: bson.D{{Key: "replicaSetId", Value: bson.ObjectID{1}}}}}
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
		pass(time.Second)
		same(t, "members", describe(w.View()), []string{
			"a:1 PRIMARY 100:1 t1",
			`other:1 DOWN 100:1 t1: is a member of the set "rs1", not of "rs0"`,
			`copy:1 DOWN 100:1 t1: is a member of another set of the name "rs0": its id is {"$oid":"020000000000000000000000"}, not {"$oid":"010000000000000000000000"}`,
			"router:1 DOWN 0:0 t0: is a mongos, not a member of a replica set",
			"single:1 DOWN 0:0 t0: is not a member of a replica set, or has no valid configuration of one",
			"moved:1 DOWN 100:1 t1: is the address of another member: b:1",
			`broken:1 DOWN 0:0 t0: fails its heartbeat: read the reply to hello: the field "secondaryDelaySecs" is not a whole number but string`,
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

// TestWatcherHorizons: if the set has other names for this network, hidden members
// are asked under those.
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
	} {
		if _, err := NewWatcher(cfg, nil); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func recorded(t testing.TB, name string) bson.Raw {
	t.Helper()
	text := must.Get(os.ReadFile("../testdata/replies/" + name + ".json"))(t)
	var doc bson.Raw
	must.Succeed(t, bson.UnmarshalExtJSON(text, true, &doc))
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
	// One field at a time: minimizing large seeds would take most of the time.
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
	})
}
