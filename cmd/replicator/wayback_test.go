package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// aSide is a cluster of a move forth and back, and the database that it has the data in.
type aSide struct {
	set *mongosim.Set
	db  string
}

func (s *aSide) docs(t *testing.T, coll string) (ids []string) {
	t.Helper()
	reply := tell(t, s.set, s.db, bson.D{{Key: "find", Value: coll}, {Key: "sort", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "batchSize", Value: 10000}})
	batch, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	values, err := batch.Values()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range values {
		ids = append(ids, v.String())
	}
	return ids
}

// age is the expireAfterSeconds of the index ttl, -1 for none.
func (s *aSide) age(t *testing.T) int64 {
	t.Helper()
	reply := tell(t, s.set, s.db, bson.D{{Key: "listIndexes", Value: "c"}})
	batch, _ := reply.Lookup("cursor", "firstBatch").ArrayOK()
	values, _ := batch.Values()
	for _, v := range values {
		if name, _ := v.Document().Lookup("name").StringValueOK(); name == "ttl" {
			if age, ok := v.Document().Lookup("expireAfterSeconds").AsInt64OK(); ok {
				return age
			}
		}
	}
	return -1
}

// cutOver cuts a link over as soon as it is ready: a busy machine may keep it from being steady for a
// while.
func cutOver(t *testing.T, from, to *mongosim.Set, link string) {
	t.Helper()
	args := []string{
		"cutover", "--writes-stopped", "--waive=verified,deferred-indexes", "--max-lag=1m", "--source=" + from.URI(), "--target=" + to.URI(), "--link=" + link,
	}
	awaitThat(t, func() bool {
		code, stdout, stderr := invoke(t, nil, args...)
		if code != cli.ExitOK && !strings.Contains(stderr, "not ready for a cutover") {
			t.Fatalf("code %d\n%s%s", code, stdout, stderr)
		}
		return code == cli.ExitOK
	}, "link %s is not ready for a cutover", link)
}

// saysBack checks that a link is said to be the way back of another one.
func saysBack(t *testing.T, target *mongosim.Set, link, of string) {
	t.Helper()
	on := []string{"--target=" + target.URI(), "--link=" + link}
	said(t, cli.ExitOK, `; the way back of link `+of+`, cut over at `, nil, "links", on[0])
	said(t, cli.ExitOK, `is the way back of link `+of+`, cut over at (.|\n)*asked 127`, nil, append([]string{"status"}, on...)...)
	if text := said(t, cli.ExitOK, "", nil, append([]string{"status", "--json"}, on...)...); strings.Count(text, `"back":{"link":"`+of+`"`) != 2 {
		t.Errorf("the process does not say that %s is the way back of %s: %s", link, of, text)
	}
}

// startedAgain checks that a process changes nothing which a supervisor starts as at the first time, after the link
// was itself cut over.
func startedAgain(t *testing.T, from, to *aSide, name string, start []string) {
	t.Helper()
	said(t, failure.ExitResync, `was cut over at`, nil, append([]string{
		"run", "--once", "--listen=none", "--source=" + from.set.URI(), "--target=" + to.set.URI(), "--link=" + name,
	}, start...)...)
	if age := to.age(t); age != 3600 {
		t.Errorf("started again, it makes documents expire after %d s", age)
	}
}

// TestForthAndBack: a link is cut over and goes back without a copy, again and again, with its filters
// and names inverted, over versions; each time both sides are equal, all that either has
// acknowledged is there, and nothing circulates.
func TestForthAndBack(t *testing.T) {
	a := &aSide{mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "a", Seed: 1, Dialect: "5.0"}), "shop"}
	b := &aSide{mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "b", Seed: 2, Dialect: "7.0"}), "store"}
	from, to, name, other := a, b, "dr", "back"
	tell(t, a.set, "shop", bson.D{{Key: "create", Value: "ring"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	tell(t, a.set, "shop", bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "v", Value: 2}, {Key: "name", Value: "u"}, {Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "unique", Value: true}},
		bson.D{{Key: "v", Value: 2}, {Key: "name", Value: "ttl"}, {Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "expireAfterSeconds", Value: 3600}},
	}}})
	tell(t, a.set, "shop", bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	insert(t, a.set, "other", "c", bson.D{{Key: "_id", Value: 1}}) // not mirrored
	start, want := []string{"--include=shop", "--map=shop=store"}, map[string]int{"c": 0, "ring": 0}
	for round := range 6 {
		l := startLink(t, append([]string{
			"--source=" + from.set.URI(), "--target=" + to.set.URI(), "--link=" + name, "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0",
		}, start...)...)
		awaitLink(l)
		if text := l.log.String(); round > 0 && (strings.Contains(text, "copy") && strings.Contains(text, `"documents":`) || !strings.Contains(text, "the link begins as a way back")) {
			t.Errorf("round %d: it began with a copy:\n%s", round, text)
		}
		if round == 1 && a.age(t) != 1_600_000_000 { // the most that a server of that version accepts, nearly
			t.Errorf("the old side expires documents itself, after %d s", a.age(t))
		}
		for i := range 20 {
			id := fmt.Sprintf("%d-%02d", round, i)
			insert(t, from.set, from.db, "c", bson.D{{Key: "_id", Value: id}, {Key: "u", Value: id}})
			insert(t, from.set, from.db, "ring", bson.D{{Key: "_id", Value: id}})
			want["c"]++
			want["ring"]++
		}
		// A unique value moves from one document to another.
		for i, u := range []string{"x", fmt.Sprintf("%d-00", round)} {
			tell(t, from.set, from.db, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: fmt.Sprintf("%d-%02d", round, i)}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: u + fmt.Sprint(round, i)}}}}},
			}}}})
		}
		tell(t, from.set, from.db, bson.D{{Key: "create", Value: fmt.Sprintf("made%d", round)}})
		insert(t, from.set, from.db, fmt.Sprintf("made%d", round), bson.D{{Key: "_id", Value: 1}})
		want[fmt.Sprintf("made%d", round)] = 1
		if round > 0 {
			ends := []string{"--source=" + from.set.URI(), "--target=" + to.set.URI(), "--link=" + name}
			said(t, cli.ExitOK, `equal`, nil, append([]string{"verify"}, ends...)...)
			saysBack(t, to.set, name, other)
		}
		cutOver(t, from.set, to.set, name)
		if code := l.end(); code != failure.ExitResync {
			t.Fatalf("round %d: code %d\n%s", round, code, &l.log)
		}
		if age := to.age(t); age != 3600 {
			t.Errorf("round %d: the new side expires documents after %d s", round, age)
		}
		if round == 1 {
			startedAgain(t, from, to, name, start)
		}
		for coll, n := range want {
			x, y := from.docs(t, coll), to.docs(t, coll)
			if diff := cmp.Diff(x, y); diff != "" || len(x) != n {
				t.Fatalf("round %d: %s has %d and %d documents, want %d: %s", round, coll, len(x), len(y), n, diff)
			}
		}
		start = []string{"--start-at=cutover:" + name}
		from, to, name, other = to, from, other, name
	}
	if n := countDocs(t, b.set, "other", "c") + countDocs(t, a.set, "store", "c") + countDocs(t, b.set, "shop", "c"); n != 0 {
		t.Errorf("%d documents where nothing is mirrored", n)
	}
}

// TestWayBackRefused: a way back does not begin on a side that was written to since it stood still,
// nor where none was armed; and only once for one cutover.
func TestWayBackRefused(t *testing.T) {
	a, b := twoSets(t)
	back := []string{"run", "--once", "--listen=none", "--source=" + b.URI(), "--target=" + a.URI(), "--link=back", "--await=100ms", "--start-at=cutover"}
	said(t, cli.ExitCheck, `there would be no way back: (.|\n)*Nothing was written`, nil, back...)
	l := startLink(t, append(uris(a, b), "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0")...)
	awaitLink(l)
	insert(t, a, "shop", "c", bson.D{{Key: "_id", Value: 1}})
	cutOver(t, a, b, "test")
	l.end()
	said(t, cli.ExitOK, `the way back of link test, cut over at`, nil, append(back, "--check")...)
	said(t, cli.ExitUsage, `link back is a way back: what it mirrors follows from the link that was cut over`, nil, append(slices.Clip(back), "--include=shop")...)
	insert(t, a, "shop", "c", bson.D{{Key: "_id", Value: 2}})
	said(t, cli.ExitCheck, `the target is not what it was at the cutover: since (.|\n)*--drop-existing`, nil, back...)
	said(t, cli.ExitCheck, `no link nobody from the target`, nil, append(back[:len(back)-1:len(back)-1], "--start-at=cutover:nobody")...)
}

// TestNothingCirculates: while a link goes each way, what the one has written does not go back by the
// other, be it documents or commands; and what applications write goes both ways.
func TestNothingCirculates(t *testing.T) {
	a, b := twoSets(t)
	run := func(from, to *mongosim.Set, name string, more ...string) *runLink {
		l := startLink(t, append([]string{
			"--source=" + from.URI(), "--target=" + to.URI(), "--link=" + name, "--await=100ms", "--cut-interval=100ms", "--listen=127.0.0.1:0",
		}, more...)...)
		awaitLink(l)
		return l
	}
	end := func(l *runLink, want int) {
		t.Helper()
		if code := l.end(); code != want {
			t.Fatalf("code %d, want %d\n%s", code, want, &l.log)
		}
	}
	drain := func(l *runLink) {
		t.Helper()
		l.drain()
		end(l, cli.ExitOK)
	}
	marker := func(from, to *mongosim.Set, id string) {
		t.Helper()
		insert(t, from, "shop", "marks", bson.D{{Key: "_id", Value: id}})
		awaitThat(t, func() bool {
			return strings.Contains(strings.Join((&aSide{to, "shop"}).docs(t, "marks"), " "), id)
		}, "mark %s has not come", id)
	}
	first := run(a, b, "dr", "--include=shop", "--start-at=now")
	marker(a, b, "0")
	cutOver(t, a, b, "dr")
	end(first, failure.ExitResync)
	drain(run(b, a, "back", "--start-at=cutover"))

	// A second link forth writes to the source of the way back, which does not run at that time.
	forth := run(a, b, "again", "--include=shop", "--allow-existing", "--start-at=now")
	insert(t, a, "shop", "c", bson.D{{Key: "_id", Value: 1}})
	tell(t, a, "shop", bson.D{{Key: "create", Value: "made"}})
	insert(t, a, "shop", "made", bson.D{{Key: "_id", Value: 1}})
	marker(a, b, "1")
	drain(forth)
	// So that it shows if that comes back, the old side has no such things any more.
	tell(t, a, "shop", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{}}, {Key: "limit", Value: 0}}}}})
	tell(t, a, "shop", bson.D{{Key: "drop", Value: "made"}})
	back := run(b, a, "back")
	marker(b, a, "2")
	if list := tell(t, a, "shop", bson.D{{Key: "listCollections", Value: 1}}).String(); countDocs(t, a, "shop", "c") != 0 || strings.Contains(list, `"made"`) {
		t.Errorf("it has gone back: %d documents, collections %s", countDocs(t, a, "shop", "c"), list)
	}
	// Both at once: each side has all in the end.
	forth = run(a, b, "again", "--include=shop")
	marker(a, b, "3")
	marker(b, a, "4")
	if n := countDocs(t, b, "shop", "c"); n != 0 {
		t.Errorf("the other side has %d documents", n)
	}
	drain(forth)
	drain(back)
}

// TestBackCommand: the command for the way back has the known settings of both sides, and no password.
func TestBackCommand(t *testing.T) {
	t.Parallel()
	c := cutoverCommand{Source: "mongodb://ann:hunter2@a:1,b:2/admin?replicaSet=src&authMechanism=SCRAM-SHA-256&tls=true", linkFlags: linkFlags{Link: "dr"}}
	c.Target, c.MetadataDB = "mongodb+srv://c.example.com/", "meta db"
	c.TargetLogin = loginFlags{Username: "it's", PasswordFile: "/no/file", HostMap: []hostAddress{{name: "x", address: "y:1"}}}
	want := "The way back, without a copy: replicator run --source … --source-username 'it'\\''s' --source-password-file /no/file" +
		" --source-host-map x=y:1 --target 'mongodb://a:1,b:2/?replicaSet=src&tls=true' --link dr-back --start-at=cutover:dr --metadata-db 'meta db'"
	if diff := cmp.Diff(want, c.backOf(true, nil)); diff != "" {
		t.Error(diff)
	}
	c.TargetLogin = loginFlags{}
	if text := c.backOf(true, &checkpoint.Back{Link: "forth"}); !strings.Contains(text, "--source mongodb+srv://c.example.com/ --target ") || !strings.Contains(text, " --link forth ") {
		t.Error(text)
	}
	if c.Link = strings.Repeat("x", 64); !strings.Contains(c.backOf(true, nil), " --link NAME ") || strings.Contains(c.backOf(false, nil), "run") {
		t.Error(c.backOf(true, nil), c.backOf(false, nil))
	}
}
