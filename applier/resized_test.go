package applier

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// letters is a document with texts in the fields a, b, c, …: updates move letters between them.
func letters(id int, texts ...string) bson.D {
	d := bson.D{{Key: "_id", Value: id}}
	for i, text := range texts {
		d = append(d, bson.E{Key: "abcde"[i : i+1], Value: text})
	}
	return d
}

// TestCappedResized: an earlier update meets a newer document of a capped collection, and the result would have another size, which
// servers before 5.3 refuse. The source never had such a document: it is set aside until it fits.
func TestCappedResized(t *testing.T) {
	t.Parallel()
	both := func(a, b string, v, w any) bson.D {
		return deltaOp("db.p", 1, bson.D{{Key: "u", Value: bson.D{{Key: a, Value: v}, {Key: b, Value: w}}}})
	}
	first, second := both("a", "b", "xx", "y"), both("b", "c", "yy", "") // of x, yy, z
	copied, other := letters(1, "xx", "yy", ""), letters(2, "p", "q", "r")
	met := letters(1, "u", "ss", "t", "vv")
	for _, tt := range []struct {
		name  string
		there bson.D
		log   []bson.D
		want  []bson.D
	}{
		// The first one fits by chance: of the document in the target, without the second one, the third would have another size, too.
		{"fits, does not, fits", met, []bson.D{both("a", "b", "pp", "q"), both("b", "c", "ss", "t"), both("a", "d", "u", "vv")}, []bson.D{met, other}},
		{"fits again", copied, []bson.D{first, second}, []bson.D{copied, other}},
		{"goes on", copied, []bson.D{first, second, both("a", "c", "x", "z")}, []bson.D{letters(1, "x", "yy", "z"), other}},
		{"trimmed", copied, []bson.D{first, insertOp("db.p", letters(3, "3", "", "")), insertOp("db.p", letters(4, "4", "", ""))}, []bson.D{other, letters(3, "3", "", ""), letters(4, "4", "", "")}},
		{
			"made again", copied,
			[]bson.D{first, insertOp("db.p", letters(3, "3", "", "")), insertOp("db.p", letters(4, "4", "", "")), insertOp("db.p", letters(1, "new", "", "c")), both("a", "b", "ne", "w")},
			[]bson.D{letters(3, "3", "", ""), letters(4, "4", "", ""), letters(1, "ne", "w", "c")},
		},
	} {
		for restart := range len(tt.log) + 1 {
			t.Run(fmt.Sprintf("%s restart=%d", tt.name, restart), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "5.0"})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "p"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 3}})
				r.target.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{tt.there, other}}})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "q"}})
				l := newLog(t)
				for i, op := range tt.log {
					l.add(op)
					if i+1 == restart {
						l.end()
					}
				}
				until := l.optime()
				l.end()
				l.add(insertOp("db.q", bson.D{{Key: "_id", Value: 2}}))
				for i, batches := 0, l.batches(); i < len(batches); i++ {
					a := must.Get(r.begin(t.Context(), func(c *Config) {
						r.commanded(t, c, nil)
						c.CopiedUntil = until
					}))(t)
					must.Succeed(t, a.run(t.Context(), batches[i:i+1], 0))
				}
				wantDocs(t, r.target, "db.p", tt.want...)
				if left := r.target.documents(t, "replicator.oversized"); len(left) > 0 {
					t.Errorf("%s is left", left)
				}
			})
		}
	}
}

// TestCappedResizedRandom: the same for any updates, with attempts that end at any command, executed or not: in a copy that is
// newer than the log, and where a part is applied again.
func TestCappedResizedRandom(t *testing.T) {
	t.Parallel()
	seeds := 150
	if testing.Short() || race.Enabled {
		seeds = 20
	}
	target := &simTarget{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Dialect: "5.0"})}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 2))
		r := rigOn(t, target, fmt.Sprintf("link%d", seed), 1+rng.IntN(3))
		r.db = fmt.Sprintf("db%d", seed)
		ns := r.db + ".c"
		target.run(t, r.db, bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
		docs := [][5]string{{"vv", "ww", "xx", "yy", "zz"}, {"vvv", "w", "x", "", "z"}}
		all := func() (list bson.A) {
			for i, d := range docs {
				list = append(list, letters(i, d[:]...))
			}
			return list
		}
		l := newLog(t)
		there := all()
		copied, updates := rng.IntN(2) == 0, 2+rng.IntN(30)
		at := rng.IntN(updates)
		for n := range updates {
			i := rng.IntN(1 + seed%2)
			d := &docs[i]
			from, to := rng.IntN(5), rng.IntN(5)
			if from == to || d[from] == "" {
				continue
			}
			k := 1 + rng.IntN(min(2, len(d[from])))
			d[to] += strings.Repeat(string(rune('a'+rng.IntN(26))), k)
			d[from] = d[from][k:]
			change := bson.D{{Key: "abcde"[from : from+1], Value: d[from]}, {Key: "abcde"[to : to+1], Value: d[to]}}
			l.add(deltaOp(ns, i, bson.D{{Key: "u", Value: change}}))
			if rng.IntN(2) == 0 {
				l.end()
			}
			if copied && n == at {
				there = all()
			}
		}
		target.run(t, r.db, bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: there}})
		if !runCut(t, r, l, rng, copied) {
			t.Fatalf("seed %d", seed)
		}
		var want []bson.Raw
		for _, d := range all() {
			want = append(want, must.Marshal(t, d.(bson.D)))
		}
		if diff := cmp.Diff(texts(want), texts(target.documents(t, oplog.Namespace(ns)))); diff != "" {
			t.Fatalf("seed %d, copied %t (-want +got):\n%s", seed, copied, diff)
		}
		left := slices.DeleteFunc(target.documents(t, "replicator.oversized"), func(d bson.Raw) bool { return d.Lookup("_id", "link").StringValue() != fmt.Sprintf("link%d", seed) })
		if len(left) > 0 {
			t.Fatalf("seed %d: %s is left", seed, left)
		}
	}
}
