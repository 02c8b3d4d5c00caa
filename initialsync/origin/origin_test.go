package origin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestOrder: the requests are those of the server's initial sync, in its order.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := &script{t: t, replies: []any{
		found(`{"ts": {"$timestamp": {"t": 100, "i": 1}}, "t": {"$numberLong": "2"}, "wall": {"$date": {"$numberLong": "1"}}}`),
		found(`{"_id": 1, "state": "inProgress", "startOpTime": {"ts": {"$timestamp": {"t": 90, "i": 7}}, "t": {"$numberLong": "1"}}}`),
		found(`{"ts": {"$timestamp": {"t": 100, "i": 3}}, "t": {"$numberLong": "2"}, "wall": {"$date": {"$numberLong": "1234"}}}`),
		found(`{"_id": "featureCompatibilityVersion", "version": "5.0"}`),
		found(`{"ts": {"$timestamp": {"t": 100, "i": 3}}, "t": {"$numberLong": "2"}}`),
	}}
	got, err := begin(t.Context(), s, time.Second)
	want := replset.Start{FetchFrom: oplog.NewOpTime(90, 7, 1), Begin: oplog.NewOpTime(100, 3, 2), Wall: 1234}
	if err != nil || got != want {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	newest := `local find "oplog.rs" sort {"$natural": {"$numberInt":"-1"}} readConcern {"level": "local"} maxTimeMS {"$numberLong":"60000"}`
	asked := []string{
		newest,
		`config find "transactions" filter {"state": {"$in": ["prepared","inProgress"]}} sort {"startOpTime": {"$numberInt":"1"}} ` +
			`readConcern {"level": "local","afterClusterTime": {"$timestamp":{"t":0,"i":1}}} maxTimeMS {"$numberLong":"60000"}`,
		newest,
		`admin find "system.version" filter {"_id": "featureCompatibilityVersion"} ` +
			`readConcern {"level": "local","afterClusterTime": {"$timestamp":{"t":100,"i":3}}} maxTimeMS {"$numberLong":"1000"}`,
		`local find "oplog.rs" filter {"ts": {"$gte": {"$timestamp":{"t":100,"i":3}},"$lte": {"$timestamp":{"t":100,"i":3}}}} ` +
			`readConcern {"level": "majority","afterClusterTime": {"$timestamp":{"t":100,"i":3}}} maxTimeMS {"$numberLong":"1000"}`,
	}
	if diff := cmp.Diff(asked, s.asked); diff != "" {
		t.Errorf("-want +asked:\n%s", diff)
	}
}

// TestAnswers checks the reactions to unusual replies.
func TestAnswers(t *testing.T) {
	t.Parallel()
	entry := func(second string) string {
		return found(`{"ts": {"$timestamp": {"t": ` + second + `, "i": 1}}, "t": {"$numberLong": "2"}}`)
	}
	version := found(`{"version": "5.0"}`)
	expired := servererr.New(servererr.MaxTimeMSExpired, "too long")
	lost := &mongo.LostError{Host: "m:1", Err: errors.New("reset")}
	isChanged := func(err error) bool {
		e, ok := errors.AsType[*ChangedError](err)
		return ok && e.Host == "m:1"
	}
	isFCV := func(err error) bool { _, ok := errors.AsType[*FCVError](err); return ok }
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for _, test := range []struct {
		name    string
		replies []any
		want    func(error) bool
		text    string
	}{
		{"an empty log", []any{found()}, is(replset.ErrEmptyOplog), "newest entry"},
		{"lost", []any{lost}, is(lost), "of m:1"},
		{"no cursor", []any{`{"ok": 1}`}, is(mongo.ErrNoBatch), ""},
		{"an element that is none", []any{found(`1`)}, is(mongo.ErrNoBatch), ""},
		{"no optime", []any{found(`{"a": 1}`)}, func(err error) bool { return err != nil }, "optime"},
		{"a null optime", []any{found(`{"ts": {"$timestamp": {"t": 0, "i": 0}}}`)}, func(err error) bool { return err != nil }, "optime"},
		{"a term that is none", []any{found(`{"ts": {"$timestamp": {"t": 1, "i": 0}}, "t": "x"}`)}, func(err error) bool { return err != nil }, "term"},
		{"transactions refused", []any{entry("10"), lost}, is(lost), "open transaction"},
		{"a transaction without a start", []any{entry("10"), found(`{"startOpTime": 1}`)}, func(err error) bool { return err != nil }, "startOpTime"},
		{"a log that goes back", []any{entry("10"), found(), entry("9")}, isChanged, "10:1 t2, then 9:1 t2"},
		{"no version document", []any{entry("10"), found(), entry("10"), found()}, isFCV, "there is none"},
		{"no version", []any{entry("10"), found(), entry("10"), found(`{"version": 5}`)}, isFCV, "no version"},
		{"upgrade", []any{entry("10"), found(), entry("10"), found(`{"version": "4.4", "targetVersion": "5.0"}`)}, isFCV, `targetVersion "5.0"`},
		{"downgrade", []any{entry("10"), found(), entry("10"), found(`{"version": "4.4", "previousVersion": "5.0"}`)}, isFCV, `previousVersion "5.0"`},
		{"a hole that stays", []any{entry("10"), found(), entry("10"), expired}, is(expired), "compatibility"},
		{"not committed", []any{entry("10"), found(), entry("10"), version, expired}, is(ErrUncommitted), "10:1 t2"},
		{"gone", []any{entry("10"), found(), entry("10"), version, found()}, isChanged, "10:1 t2 is gone"},
		{
			"another", []any{
				entry("10"), found(), entry("10"), version,
				found(`{"ts": {"$timestamp": {"t": 10, "i": 1}}, "t": {"$numberLong": "3"}}`),
			}, isChanged, "10:1 t3",
		},
		{"a transaction document without optime", []any{entry("10"), found(`{"_id": 1}`), entry("10"), version, entry("10")}, is(nil), ""},
	} {
		_, err := Begin(t.Context(), &script{t: t, replies: test.replies})
		if !test.want(err) || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	reply := found(`{"ts": {"$timestamp": {"t": 10, "i": 1}}, "t": {"$numberLong": "2"}}`)
	for begin, ok := range map[oplog.OpTime]bool{
		oplog.NewOpTime(10, 1, 2): true, oplog.NewOpTime(9, 5, 2): true, oplog.NewOpTime(99, 1, 1): true,
		oplog.NewOpTime(10, 2, 2): false, oplog.NewOpTime(1, 1, 3): false,
	} {
		at, err := Stop(t.Context(), &script{t: t, replies: []any{reply}}, begin)
		if _, changed := errors.AsType[*ChangedError](err); changed == ok || ok && at != oplog.NewOpTime(10, 1, 2) {
			t.Errorf("begun at %s: %s, %v", begin, at, err)
		}
	}
	if _, err := Stop(t.Context(), &script{t: t, replies: []any{found()}}, oplog.OpTime{}); !errors.Is(err, replset.ErrEmptyOplog) {
		t.Error(err)
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	const secondary = `{"ok": 1, "setName": "rs", "secondary": true}`
	const rbid = `, "$oplogQueryData": {"rbid": 3}, "ok": 1}`
	none := `{"cursor": {"firstBatch": []}` + rbid
	listed := found(`{"name": "replset.initialSyncId", "info": {"uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}}`)
	other := found(`{"name": "replset.initialSyncId", "info": {"uuid": {"$binary": {"base64": "AQAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}}}`)
	no := servererr.New(servererr.Unauthorized, "no")
	// mark adds the rollback id to a reply.
	mark := func(reply string) string { return strings.TrimSuffix(reply, "}") + `, "$oplogQueryData": {"rbid": 3}}` }
	id := func(n string) string { return `{"cursor": {"firstBatch": [{"_id": ` + n + `}]}` + rbid }
	was := Identity{Host: "m:1", RBID: 3, SyncID: must.Marshal(t, bson.D{{Key: "", Value: int32(1)}}).Lookup(""), SyncMark: strings.Repeat("0", 32)}
	blind := Identity{Host: "m:1", RBID: 3, Unread: true}
	if was.Blind() || !blind.Blind() {
		t.Error("which identity is blind")
	}
	for _, test := range []struct {
		name    string
		replies []any
		text    string // of the error, "" for none; a leading + for a *ChangedError
	}{
		{"same", []any{secondary, listed, id("1")}, ""},
		{"primary", []any{`{"setName": "rs", "isWritablePrimary": true, "secondary": false}`, listed, id("1")}, ""},
		{"old", []any{servererr.New(servererr.CommandNotFound, "x"), `{"setName": "rs", "ismaster": true}`, listed, id("1")}, ""},
		{"by command", []any{secondary, listed, found(`{"_id": 1}`), `{"rbid": 3}`}, ""},
		{"by command, rolled back", []any{secondary, listed, found(`{"_id": 1}`), `{"rbid": 4}`}, "+rollback id was 3 and is 4"},
		{"neither", []any{secondary, listed, found(`{"_id": 1}`), `{"ok": 1}`}, "rollback id"},
		{"other id", []any{secondary, listed, id("2")}, "+initial-sync id was"},
		{"other type", []any{secondary, listed, id(`{"$numberLong": "1"}`)}, "+initial-sync id was"},
		{"no id now", []any{secondary, listed, none}, "+and is none"},
		{"another collection, the same id", []any{secondary, other, id("1")}, ""},
		{"not to be listed", []any{secondary, no, id("1")}, ""},
		{"not to be read", []any{secondary, mark(listed), no}, ""},
		{"not to be read, rolled back", []any{secondary, listed, no, `{"rbid": 4}`}, "+rollback id was 3 and is 4"},
		{"not to be read, resynced", []any{secondary, mark(other), no}, "+copied again"},
		{"not to be read, without the collection", []any{secondary, mark(found()), no}, "+and is none"},
		{"neither to be listed nor read", []any{mark(secondary), no, no}, ""},
		{"neither to be listed nor read, rolled back", []any{secondary, no, no, `{"rbid": 4}`}, "+rollback id"},
		{"listed without a UUID", []any{secondary, found(`{"name": "replset.initialSyncId"}`)}, "without a UUID"},
		{"lost while listed", []any{secondary, errors.New("reset")}, "list its local"},
		{"recovering", []any{`{"setName": "rs", "secondary": false, "isWritablePrimary": false}`}, ErrState.Error()},
		{"standalone", []any{`{"isWritablePrimary": true}`}, "in no replica set"},
		{"a document without id", []any{secondary, listed, found(`{"a": 1}`)}, "without an _id"},
		{"lost while read", []any{secondary, listed, errors.New("reset")}, "initial-sync id: reset"},
		{"refused at once", []any{no}, "its state: no"},
	} {
		err := Check(t.Context(), &script{t: t, replies: test.replies}, was)
		want, isChange := strings.CutPrefix(test.text, "+")
		_, changed := errors.AsType[*ChangedError](err)
		if (err == nil) != (test.text == "") || err != nil && !strings.Contains(err.Error(), want) || changed != isChange {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestAnotherSet: a member of another set is one that has changed, even if neither its
// rollback id nor its initial-sync id shows it.
func TestAnotherSet(t *testing.T) {
	t.Parallel()
	no := servererr.New(servererr.Unauthorized, "no")
	set := func(n string) bson.RawValue {
		return bsongen.FromJSON(t, `{"": {"$oid": "`+strings.Repeat(n, 24)+`"}}`).Lookup("")
	}
	hello := func(n string) string {
		return `{"ok": 1, "setName": "rs", "secondary": true, "$replData": {"replicaSetId": {"$oid": "` + strings.Repeat(n, 24) + `"}}, "$oplogQueryData": {"rbid": 3}}`
	}
	const unknown = `{"ok": 1, "setName": "rs", "secondary": true, "$oplogQueryData": {"rbid": 3}}`
	for _, test := range []struct {
		reply   string
		was     bson.RawValue
		changed bool
	}{{hello("a"), set("a"), false}, {hello("b"), set("a"), true}, {unknown, set("a"), false}, {hello("b"), bson.RawValue{}, false}} {
		err := Check(t.Context(), &script{t: t, replies: []any{test.reply, no, no}}, Identity{Host: "m:1", Set: test.was, RBID: 3, Unread: true})
		if _, changed := errors.AsType[*ChangedError](err); changed != test.changed || err != nil && !changed {
			t.Errorf("%s, and it was %s: %v", test.reply, test.was, err)
		}
	}
}

// TestSet asks the members of a running set, with only the documented privileges.
func TestSet(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 31, Users: []mongosim.User{
		{Name: "mirror", Password: "pw", Roles: []mongosim.Role{{Name: "backup", DB: "admin"}, {Name: "clusterMonitor", DB: "admin"}}},
		{Name: "backup", Password: "pw", Roles: []mongosim.Role{{Name: "backup", DB: "admin"}}},
		{Name: "reader", Password: "pw", Roles: []mongosim.Role{{Name: "backup", DB: "admin"}}},
		{Name: "admin", Password: "pw", Roles: []mongosim.Role{{Name: "root", DB: "admin"}}},
	}})
	admin := open(t, set.URIFor("admin"))
	command(t, admin, "admin", `{"createRole": "id", "roles": [], "privileges": [{"resource": {"db": "local", "collection": "replset.initialSyncId"}, "actions": ["find"]}]}`)
	command(t, admin, "admin", `{"grantRolesToUser": "reader", "roles": ["id"]}`)
	for _, user := range []string{"mirror", "backup", "reader"} {
		source := open(t, set.URIFor(user))
		for _, m := range []*mongosim.Member{set.Primary(), secondary(t, set)} {
			member := source.Member(m.Host())
			command(t, admin, "db", `{"insert": "c", "documents": [{"a": 1}], "writeConcern": {"w": 3}}`)
			was, err := Identify(ctx, member, m.Host())
			if err != nil {
				t.Fatalf("%s: %v", user, err)
			}
			v, _ := m.Status()
			if was.RBID != int64(v.RollbackID) || was.Host != m.Host() || was.Unread != (user != "reader") || was.Blind() || was.SyncMark == noMark ||
				!was.Unread && was.SyncID.Type == 0 {
				t.Errorf("%s: %+v, rbid %d", user, was, v.RollbackID)
			}
			before := v.LastApplied
			p, err := Begin(ctx, member)
			if err != nil || p.Begin.Before(before) || p.FetchFrom.After(p.Begin) || time.Since(time.UnixMilli(p.Wall)) > time.Minute {
				t.Fatalf("%s: %+v, %v", user, p, err)
			}
			command(t, admin, "db", `{"insert": "c", "documents": [{"a": 2}], "writeConcern": {"w": 3}}`)
			stop, err := Stop(ctx, member, p.Begin)
			if err != nil || !stop.After(p.Begin) {
				t.Errorf("%s: stop %s, %v", user, stop, err)
			}
			if err := Check(ctx, member, was); err != nil {
				t.Errorf("%s: %v", user, err)
			}
			// A restart changes nothing that matters.
			if m != set.Primary() && user != "backup" {
				must.Succeed(t, m.Stop(ctx))
				if err := Check(ctx, member, was); err == nil {
					t.Error("a member that is down is as it was")
				}
				must.Succeed(t, m.Start())
				must.Succeed(t, set.AwaitSynced(ctx))
				eventually(t, "the member is as it was", func() bool {
					err := Check(ctx, member, was)
					if _, changed := errors.AsType[*ChangedError](err); changed {
						t.Fatal(err)
					}
					return err == nil
				})
				// A resynced member is another one.
				for _, do := range []func() error{func() error { return m.Stop(ctx) }, m.Wipe, m.Start, func() error { return set.AwaitReady(ctx) }} {
					must.Succeed(t, do())
				}
				eventually(t, "it is seen that the member was resynced", func() bool {
					err := Check(ctx, member, was)
					if err == nil {
						t.Fatal("a member that was resynced is as it was")
					}
					_, changed := errors.AsType[*ChangedError](err)
					return changed
				})
			}
		}
	}
}

// TestTransactions: reading begins with the oldest open transaction.
func TestTransactions(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	set := mongosim.StartTest(t, mongosim.Options{Seed: 32})
	source := open(t, set.URI())
	command(t, source, "db", `{"create": "c"}`)
	in := func(n, more string) string {
		return ` "lsid": {"id": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAA` + n + `==", "subType": "04"}}}, "txnNumber": {"$numberLong": "1"}, "autocommit": false` + more + `}`
	}
	insert := func(n string) {
		command(t, source, "db", `{"insert": "c", "documents": [{"a": 1}],`+in(n, `, "startTransaction": true`))
	}
	insert("A")
	p, err := Begin(ctx, source.Member(set.Primary().Host()))
	if err != nil || p.FetchFrom != p.Begin {
		t.Fatalf("a transaction that has no entries: %+v, %v", p, err)
	}
	insert("Q")
	command(t, source, "db", `{"insert": "c", "documents": [{"a": 2}]}`)
	command(t, source, "admin", `{"prepareTransaction": 1, "writeConcern": {"w": "majority"},`+in("A", ""))
	v, _ := set.Primary().Status()
	prepared := v.LastApplied
	command(t, source, "admin", `{"prepareTransaction": 1, "writeConcern": {"w": "majority"},`+in("Q", ""))
	command(t, source, "db", `{"insert": "c", "documents": [{"a": 3}]}`)
	p, err = Begin(ctx, source.Member(set.Primary().Host()))
	if err != nil || p.FetchFrom != prepared || !p.Begin.After(prepared) {
		t.Errorf("prepared at %s: %+v, %v", prepared, p, err)
	}
	command(t, source, "admin", `{"abortTransaction": 1,`+in("A", ""))
	command(t, source, "admin", `{"abortTransaction": 1,`+in("Q", ""))
	p, err = Begin(ctx, source.Member(set.Primary().Host()))
	if err != nil || p.FetchFrom != p.Begin {
		t.Errorf("after the aborts: %+v, %v", p, err)
	}
}

// TestVersionChange: a version that is being changed is refused, and the version
// afterwards is not.
func TestVersionChange(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	set := mongosim.StartTest(t, mongosim.Options{Seed: 33})
	source := open(t, set.URI())
	member := source.Member(set.Primary().Host())
	command(t, source, "admin", `{"configureFailPoint": "failDowngrading", "mode": "alwaysOn"}`)
	cmd := mongo.Command{DB: "admin", Body: bsongen.FromJSON(t, `{"setFeatureCompatibilityVersion": "4.4"}`)}
	if _, err := source.Call(ctx, cmd); err == nil {
		t.Fatal("the change was not held")
	}
	_, err := Begin(ctx, member)
	if e, ok := errors.AsType[*FCVError](err); !ok || !strings.Contains(e.Error(), "being changed") {
		t.Errorf("%v", err)
	}
	command(t, source, "admin", `{"configureFailPoint": "failDowngrading", "mode": "off"}`)
	command(t, source, "admin", `{"setFeatureCompatibilityVersion": "4.4"}`)
	if _, err := Begin(ctx, member); err != nil {
		t.Error(err)
	}
}

// telling announces each command with read concern majority.
type telling struct {
	mongo.Caller
	asked chan<- struct{}
}

func (t telling) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" {
		t.asked <- struct{}{}
	}
	return t.Caller.Call(ctx, cmd)
}

// TestUncommitted: an entry that only one member has is waited for, but not forever; if
// it is rolled back, no copy begins with it, and the member has changed.
func TestUncommitted(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	// It remains primary until it has been asked for what only it has.
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 34, HeartbeatInterval: 50 * time.Millisecond, ElectionTimeout: 5 * time.Second})
	old := set.Primary()
	member := open(t, set.URI()).Member(old.Host())
	command(t, member, "db", `{"insert": "c", "documents": [{"a": 1}], "writeConcern": {"w": 3}}`)
	must.Succeed(t, set.AwaitSynced(ctx))
	was, err := Identify(ctx, member, old.Host())
	if err != nil {
		t.Fatal(err)
	}
	set.Isolate(old.ID())
	command(t, member, "db", `{"insert": "c", "documents": [{"a": 2}], "writeConcern": {"w": 1}}`)
	v, _ := old.Status()
	lost := v.LastApplied
	if _, err := begin(ctx, member, 200*time.Millisecond); !errors.Is(err, ErrUncommitted) || codeOf(err) != servererr.MaxTimeMSExpired {
		t.Errorf("an entry that nobody else has: %v", err)
	}
	eventually(t, "the others have a primary", func() bool { p := set.Primary(); return p != nil && p != old })
	now := open(t, set.URI()).Member(set.Primary().Host())
	command(t, now, "db", `{"insert": "c", "documents": [{"a": 3}], "writeConcern": {"w": "majority"}}`)
	waits, asked := make(chan error, 1), make(chan struct{}, 10)
	go func() {
		_, err := begin(ctx, telling{member, asked}, waiting)
		waits <- err
	}()
	<-asked // the entry is what the copy would begin with
	set.HealAll()
	eventually(t, "the old primary has rolled back", func() bool { v, ok := old.Status(); return ok && int64(v.RollbackID) > was.RBID })
	if err := <-waits; err == nil {
		t.Error("a copy begins with an entry that was rolled back")
	}
	must.Succeed(t, set.AwaitSynced(ctx))
	// Its connections were broken, so the first request may fail.
	eventually(t, "it is seen that the member is not what it was", func() bool {
		err := Check(ctx, member, was)
		if err == nil {
			t.Fatal("a member that has rolled back is as it was")
		}
		_, changed := errors.AsType[*ChangedError](err)
		return changed
	})
	if stop, err := Stop(ctx, member, lost); err != nil || stop.Term <= lost.Term {
		t.Errorf("stop %s, %v", stop, err)
	}
}

// TestUnlogged: below the feature compatibility version 5.0 members trim capped
// collections by themselves.
func TestUnlogged(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"4.4": true, "5.0": false, "6.0": false, "10.1": false} {
		s := &script{t: t, replies: []any{found(`{"_id": "featureCompatibilityVersion", "version": "` + version + `"}`)}}
		if got, err := Unlogged(t.Context(), s, oplog.NewOpTime(100, 1, 1)); err != nil || got != want {
			t.Errorf("%s: %t, %v", version, got, err)
		}
	}
	s := &script{t: t, replies: []any{found(`{"_id": "featureCompatibilityVersion", "version": "next"}`)}}
	if _, err := Unlogged(t.Context(), s, oplog.NewOpTime(100, 1, 1)); err == nil {
		t.Error("a version that is no number is known")
	}
}
