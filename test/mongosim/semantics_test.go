package mongosim_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim"
)

// TestConcerns asks members that are cut off, and restarted ones.
func TestConcerns(t *testing.T) {
	t.Parallel()
	// It remains primary until it has answered everything while it is cut off.
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 24, ElectionTimeout: 5 * time.Second})
	p, n := primaryOf(t, set)
	c, sec := dial(t, p), dial(t, set.Member((n+1)%3))
	c.ok("app", insert("c", nil, idDoc(1)))
	sec.refused(13435, "app", find("c"))
	sec.ok("app", find("c", nearest))
	sec.ok("local", find("oplog.rs", arg("limit", 1)))

	set.Isolate(n)
	for w, code := range map[any]int32{2: 64, 3: 64, "majority": 64, 4: 100, "nope": 79} {
		r := c.try("app", insert("c", d{arg("writeConcern", d{arg("w", w), arg("wtimeout", 20)})}, d{}))
		e, _ := r.Lookup("writeConcernError").DocumentOK()
		if got, _ := e.Lookup("code").Int32OK(); got != code || r.Lookup("n").Int32() != 1 {
			t.Errorf("w: %v: %s", w, r)
		}
		if timedOut, _ := e.Lookup("errInfo", "wtimeout").BooleanOK(); timedOut != (code == 64) || code == 64 && e.Lookup("codeName").StringValue() != "WriteConcernFailed" {
			t.Errorf("w: %v: %s", w, e)
		}
	}
	c.ok("app", insert("c", d{arg("writeConcern", d{arg("w", 1), arg("j", true)})}, d{}))
	late := stamp(c.ok("app", insert("c", w1, idDoc("late"))), "opTime", "ts")
	short := arg("maxTimeMS", 30)
	if got := docs(t, c.ok("app", find("c", readConcern("majority", "", bson.Timestamp{})))); len(got) != 1 {
		t.Errorf("majority shows what is not committed: %v", got)
	}
	c.refused(50, "app", find("c", readConcern("majority", "afterClusterTime", late), short))
	c.refused(50, "app", find("c", readConcern("snapshot", "atClusterTime", late), short))
	never := bson.Timestamp{T: late.T + 100, I: 1}
	c.refused(72, "app", find("c", readConcern("snapshot", "atClusterTime", never)))
	c.refused(72, "app", find("c", readConcern("local", "afterClusterTime", never)))
	c.refused(205, "app", find("c", arg("$clusterTime", d{arg("clusterTime", bson.Timestamp{T: late.T + 2*365*86400, I: 1})})))
	sec.refused(50, "app", find("c", nearest, short, readConcern("local", "afterClusterTime", late), arg("$clusterTime", d{arg("clusterTime", late)})))
	set.Rejoin(n)
	if got := docs(t, sec.ok("app", find("c", nearest, readConcern("majority", "afterClusterTime", late)))); len(got) != 8 {
		t.Errorf("a causal read on the secondary: %v", got)
	}
	gone := insert("c", d{arg("writeConcern", d{arg("w", 0)}), arg("$db", "app")}, idDoc("w0"))
	if _, err := c.Send(t.Context(), wire.Request{NoReply: true, Body: must.Marshal(t, gone)}); err != nil {
		t.Fatal(err)
	}
	if got := docs(t, c.ok("app", find("c", arg("filter", idDoc("w0"))))); len(got) != 1 {
		t.Errorf("w: 0: %v", got)
	}
	restartAlone(t, set, p, n)
}

// restartAlone: a restarted member does not know the commit point until a majority
// is back.
func restartAlone(t *testing.T, set *mongosim.Set, p *mongosim.Member, n int) {
	t.Helper()
	for _, m := range set.Members() {
		must.Succeed(t, m.Kill())
	}
	must.Succeed(t, p.Start())
	c := dial(t, p)
	eventually(t, "readable", func() bool { v, _ := p.Status(); return v.State.Readable() })
	c.ok("app", find("c", nearest))
	c.refused(50, "app", find("c", nearest, arg("maxTimeMS", 30), readConcern("majority", "", bson.Timestamp{})))
	c.refused(246, "app", find("c", nearest, arg("maxTimeMS", 30), readConcern("snapshot", "", bson.Timestamp{})))
	must.Succeed(t, set.Member((n+1)%3).Start())
	c.ok("app", find("c", nearest, readConcern("majority", "", bson.Timestamp{})))
}

// TestSnapshots reads the past, in cursors and in transactions, while others write.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 25})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	many := make([]any, 300)
	for i := range many {
		many[i] = idDoc(i)
	}
	c.ok("app", insert("c", nil, many...))
	snapshot := readConcern("snapshot", "", bson.Timestamp{})
	r := c.ok("app", find("c", snapshot, arg("batchSize", 10)))
	at := stamp(r, "cursor", "atClusterTime")
	all := d{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{d{arg("q", d{}), arg("limit", 0)}}}}
	c.ok("app", all)
	if got := docs(t, c.ok("app", d{arg("getMore", cursorID(r)), arg("collection", "c")})); len(got) != 290 {
		t.Errorf("the cursor has %d more, want 290", len(got))
	}
	count := d{arg("aggregate", "c"), arg("pipeline", bson.A{d{arg("$count", "n")}}), arg("cursor", d{}), readConcern("snapshot", "atClusterTime", at)}
	if got := docs(t, c.ok("app", count)); len(got) != 1 || got[0].Lookup("n").Int32() != 300 {
		t.Errorf("aggregate at %v: %v", at, got)
	}
	c.refused(239, "app", find("c", readConcern("snapshot", "atClusterTime", bson.Timestamp{T: at.T - 1000, I: 1})))

	c.ok("app", insert("c", nil, idDoc(1)))
	c.ok("app", find("other", append(inTxn(1, 1, true), snapshot)...))
	c.ok("app", insert("c", nil, idDoc(2)))
	if got := docs(t, c.ok("app", find("c", inTxn(1, 1, false)...))); len(got) != 1 {
		t.Errorf("the transaction sees %v", got)
	}
	c.ok("app", all)
	c.refused(112, "app", update("c", idDoc(1), d{{Key: "$set", Value: d{{Key: "x", Value: 1}}}}, inTxn(1, 1, false)...))
}

// TestUniqueInTransactions: open transactions conflict over a key, committed ones
// have it.
func TestUniqueInTransactions(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 26})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	with := func(id, u int) d { return d{{Key: "_id", Value: id}, {Key: "u", Value: u}} }
	c.ok("app", uniqueIndex("q"))
	c.ok("app", insert("q", inTxn(1, 1, true), with(1, 1)))
	c.refused(112, "app", insert("q", inTxn(2, 1, true), with(2, 1)))
	c.refused(50, "app", insert("q", d{arg("maxTimeMS", 20)}, with(2, 1)))
	c.ok("admin", commit(1, 1))
	if r := c.try("app", insert("q", nil, with(2, 1))); writeError(r) != 11000 {
		t.Errorf("after the commit: %s", r)
	}
	c.ok("app", find("q", inTxn(3, 1, true)...))
	c.ok("app", insert("q", nil, with(7, 7)))
	c.refused(112, "app", insert("q", inTxn(3, 1, false), with(8, 7)))
	c.ok("app", append(d{{Key: "delete", Value: "q"}, {Key: "deletes", Value: bson.A{d{arg("q", idDoc(7)), arg("limit", 1)}}}}, inTxn(4, 1, true)...))
	c.ok("app", insert("q", inTxn(4, 1, false), with(9, 7)))
	c.ok("admin", commit(4, 1))
}

func uniqueIndex(coll string) d {
	return d{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
		d{{Key: "key", Value: d{{Key: "u", Value: 1}}}, {Key: "name", Value: "u_1"}, {Key: "unique", Value: true}},
	}}}
}

// TestCopy reads a collection as a copying client does, while it is renamed and
// dropped.
func TestCopy(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Seed: 34})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	mixed := []any{idDoc(nil), idDoc(bson.MinKey{}), idDoc(bson.MaxKey{}), idDoc(true), idDoc(1.5), idDoc(bson.Timestamp{T: 1, I: 1})}
	for i := range 200 {
		mixed = append(mixed, idDoc(i), idDoc(fmt.Sprint("s", i)), idDoc(d{{Key: "a", Value: i}}), idDoc(bson.NewObjectID()), idDoc(bson.DateTime(i)))
	}
	c.ok("app", insert("c", nil, mixed...))
	info := docs(t, c.ok("app", d{arg("listCollections", 1), arg("filter", d{arg("name", "c")})}))[0]
	subtype, data := info.Lookup("info", "uuid").Binary()
	uuid := bson.Binary{Subtype: subtype, Data: slices.Clone(data)}
	natural := []bson.E{arg("hint", d{arg("$natural", 1)}), arg("$_requestResumeToken", true), arg("batchSize", 300)}
	scan := func(token bson.Raw) bson.Raw {
		more := natural
		if token != nil {
			more = append(slices.Clip(natural), arg("$_resumeAfter", token))
		}
		return c.ok("app", find(uuid, more...))
	}
	token := func(r bson.Raw) bson.Raw { return r.Lookup("cursor", "postBatchResumeToken").Document() }
	r := scan(nil)
	n := len(docs(t, r))
	r = scan(token(r))
	n += len(docs(t, r))
	c.ok("admin", d{arg("renameCollection", "app.c"), arg("to", "app.e")})
	c.refused(175, "app", d{arg("getMore", cursorID(r)), arg("collection", "c")})
	for len(docs(t, r)) > 0 {
		r = scan(token(r))
		n += len(docs(t, r))
	}
	if ns := r.Lookup("cursor", "ns").StringValue(); n != len(mixed) || ns != "app.e" {
		t.Errorf("%d documents of %s, want %d of app.e", n, ns, len(mixed))
	}
	for filter, want := range map[string]d{"to MaxKey": {arg("$lte", bson.MaxKey{})}, "from MinKey": {arg("$gte", bson.MinKey{})}} {
		if got := docs(t, c.ok("app", find("e", arg("filter", idDoc(want)), arg("batchSize", 2000)))); len(got) != len(mixed) {
			t.Errorf("%s are %d", filter, len(got))
		}
	}
	if got := docs(t, c.ok("app", find("e", arg("filter", idDoc(d{arg("$gte", 10)})), arg("batchSize", 2000)))); len(got) != 190 {
		t.Errorf("a number bounds numbers only: %d", len(got))
	}
	r = c.ok("app", find("e", append(slices.Clip(natural[:2]), arg("batchSize", 3))...))
	c.ok("app", d{{Key: "delete", Value: "e"}, {Key: "deletes", Value: bson.A{d{arg("q", d{arg("_id", docs(t, r)[2].Lookup("_id"))}), arg("limit", 1)}}}})
	c.refused(211, "app", find("e", append(slices.Clip(natural), arg("$_resumeAfter", token(r)))...))
	c.ok("app", d{arg("drop", "e")})
	c.refused(175, "app", d{arg("getMore", cursorID(r)), arg("collection", "e")})
	c.refused(26, "app", find(uuid))
	c.refused(26, "app", d{arg("listIndexes", "e")})
}

// TestCapped: every member holds the same, in the order of insertion.
func TestCapped(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 35})
	p, _ := primaryOf(t, set)
	c := dial(t, p)
	c.ok("app", d{arg("create", "cap"), arg("capped", true), arg("size", 4096), arg("max", 5)})
	c.ok("app", insert("cap", nil, idDoc(0)))
	id := cursorID(c.ok("app", find("cap", arg("tailable", true), arg("awaitData", true))))
	c.ok("app", insert("cap", nil, idDoc(1), idDoc(2)))
	next := d{arg("getMore", id), arg("collection", "cap"), arg("maxTimeMS", 100)}
	if got := docs(t, c.ok("app", next)); len(got) != 2 {
		t.Errorf("the tailable cursor gives %v", got)
	}
	if r := c.try("app", insert("cap", inTxn(1, 1, true), idDoc(50))); writeError(r) != 263 {
		t.Errorf("in a transaction: %s", r)
	}
	for i := 3; i < 20; i++ {
		c.ok("app", insert("cap", nil, idDoc(i)))
	}
	c.refused(136, "app", next)
	settled(t, set)
	for _, m := range set.Members() {
		var ids []string
		for _, doc := range docs(t, dial(t, m).ok("app", find("cap", nearest))) {
			ids = append(ids, strconv.Itoa(int(doc.Lookup("_id").Int32())))
		}
		if got := strings.Join(ids, " "); got != "15 16 17 18 19" {
			t.Errorf("%s has %s", m.Host(), got)
		}
	}
}
