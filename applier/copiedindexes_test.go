package applier

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/scope"
)

// commanded gives an attempt the production commands.
func (r *rig) commanded(t testing.TB, c *Config, observe event.Observer) {
	t.Helper()
	sc := must.Get(scope.New(scope.Config{}))(t)
	c.Commands = must.Get(ddl.New(ddl.Config{
		Target: r.target, Fence: c.Checkpoint, Catalog: r.catalog, Scope: sc, Link: r.link, Placed: true, Observer: observe,
	}))(t)
	c.Link, c.Observer = r.link, observe
}

func deltaOp(ns string, id any, diff bson.D) bson.D {
	return bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: ns},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}},
	}
}

func set(name string, v any) bson.D { return bson.D{{Key: "u", Value: bson.D{{Key: name, Value: v}}}} }

func indexNames(t testing.TB, target *simTarget, ns oplog.Namespace) []string {
	t.Helper()
	specs := must.Get(catalog.Indexes(t.Context(), target, ns))(t)
	var names []string
	for _, spec := range specs {
		names = append(names, spec.Lookup("name").StringValue())
	}
	slices.Sort(names)
	return names
}

// An earlier entry meets a newer document, and the result violates an index, which never
// happened at the source: the index is deferred, and built when the copy is consistent.
// Indexes of other kinds stay.
func TestCopiedIndexRefuses(t *testing.T) {
	t.Parallel()
	big := bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{1, 2}}}
	for _, tt := range []struct {
		name          string
		key           bson.D
		copied        bson.D
		first, second bson.D // deltas; the result of the second is the copied document
	}{
		{
			"parallel arrays",
			bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 5}, {Key: "b", Value: bson.A{7, 8}}},
			set("a", bson.A{1, 2}),
			set("a", 5),
		},
		{
			"hashed array",
			bson.D{{Key: "a.x", Value: "hashed"}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "x", Value: 1}}}},
			set("a", bson.A{1}),
			set("a", bson.D{{Key: "x", Value: 1}}),
		},
		{
			"2dsphere",
			bson.D{{Key: "a", Value: "2dsphere"}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: big}},
			bson.D{{Key: "sa", Value: set("type", "None")}},
			bson.D{{Key: "sa", Value: set("type", "Point")}},
		},
		{
			"2d",
			bson.D{{Key: "a", Value: "2d"}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.A{1, 2}}},
			set("a", bson.A{1000, 2}),
			set("a", bson.A{1, 2}),
		},
		{
			"text",
			bson.D{{Key: "a", Value: "text"}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: "words"}, {Key: "language", Value: "german"}},
			set("language", 7),
			set("language", "german"),
		},
		{
			"numbered field",
			bson.D{{Key: "a.0", Value: 1}},
			bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 5}},
			set("a", bson.A{bson.D{{Key: "0", Value: 1}}}),
			set("a", 5),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2, mongosim.Options{Members: 1})
			tg := r.target
			tg.run(t, "db", bson.D{{Key: "create", Value: "p"}})
			tg.run(t, "db", bson.D{{Key: "createIndexes", Value: "p"}, {Key: "indexes", Value: bson.A{
				bson.D{{Key: "key", Value: tt.key}, {Key: "name", Value: "refuses"}},
				bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "takes"}},
			}}})
			tg.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{tt.copied}}})
			l := newLog(t)
			l.add(deltaOp("db.p", 1, tt.first))
			l.end()
			half := len(l.batches())
			l.add(deltaOp("db.p", 1, tt.second))
			until := l.optime()
			l.add(insertOp("db.p", bson.D{{Key: "_id", Value: 2}}))
			var told []string
			begin := func() *attempt {
				return must.Get(r.begin(t.Context(), func(c *Config) {
					r.commanded(t, c, func(e event.Event) {
						switch index := event.Attr(e, keyIndex).String(); e.Message() {
						case indexDeferred:
							told = append(told, "deferred "+index)
						case indexBuilt:
							told = append(told, "built "+index)
						}
					})
					c.CopiedUntil = until
				}))(t)
			}
			a := begin()
			must.Succeed(t, a.run(t.Context(), l.batches()[:half], 0))
			if diff := cmp.Diff([]string{"_id_", "takes"}, indexNames(t, tg, "db.p")); diff != "" {
				t.Errorf("in between: %s", diff)
			}
			// Another process continues.
			a = begin()
			must.Succeed(t, a.run(t.Context(), l.batches()[half:], 0))
			if diff := cmp.Diff([]string{"_id_", "refuses", "takes"}, indexNames(t, tg, "db.p")); diff != "" {
				t.Errorf("in the end: %s", diff)
			}
			if diff := cmp.Diff([]string{"deferred refuses", "built refuses"}, told); diff != "" {
				t.Error(diff)
			}
			if deferred := must.Get(ddl.ReadDeferred(t.Context(), tg, "replicator", "link"))(t); len(deferred) > 0 {
				t.Errorf("still deferred: %v", deferred)
			}
			if diff := cmp.Diff(texts([]bson.Raw{must.Marshal(t, tt.copied), must.Marshal(t, bson.D{{Key: "_id", Value: 2}})}), texts(tg.documents(t, "db.p"))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The same, where the result is larger than a document may be: it is oversized, in the
// metadata, until it fits.
func TestCopiedTooLarge(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves documents of 9 MiB in 17 ways")
	big := strings.Repeat("x", 17<<19)
	small := bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 1}}
	large := bson.D{{Key: "_id", Value: 1}, {Key: "y", Value: big}}
	ins := func(name string, v any) bson.D { return bson.D{{Key: "i", Value: bson.D{{Key: name, Value: v}}}} }
	del := func(name string) bson.D { return bson.D{{Key: "d", Value: bson.D{{Key: name, Value: false}}}} }
	for _, tt := range []struct {
		name   string
		copied bson.D
		log    []bson.D
		want   []bson.D
	}{
		{
			"fits again", large,
			[]bson.D{
				deltaOp("db.p", 1, ins("x", big)),
				deltaOp("db.p", 1, ins("a", 1)),
				deltaOp("db.p", 1, del("x")),
				deltaOp("db.p", 1, ins("y", big)),
			},
			[]bson.D{{{Key: "_id", Value: 1}, {Key: "a", Value: 1}, {Key: "y", Value: big}}},
		},
		{
			"what an entry in between sets is not lost",
			bson.D{{Key: "_id", Value: 1}, {Key: "v", Value: 3}, {Key: "y", Value: big}},
			[]bson.D{
				deltaOp("db.p", 1, set("v", 1)),
				deltaOp("db.p", 1, bson.D{{Key: "u", Value: bson.D{{Key: "v", Value: 3}}}, {Key: "i", Value: bson.D{{Key: "x", Value: big}}}}),
				deltaOp("db.p", 1, del("y")),
			},
			[]bson.D{{{Key: "_id", Value: 1}, {Key: "v", Value: 3}, {Key: "x", Value: big}}},
		},
		{
			"deleted", large,
			[]bson.D{deltaOp("db.p", 1, ins("x", big)), deleteOp("db.p", 1)},
			nil,
		},
		{
			"deleted and made again", large,
			[]bson.D{deltaOp("db.p", 1, ins("x", big)), deleteOp("db.p", 1), insertOp("db.p", small)},
			[]bson.D{small},
		},
		{
			"replaced", large,
			[]bson.D{deltaOp("db.p", 1, ins("x", big)), {
				{Key: "op", Value: "u"},
				{Key: "ns", Value: "db.p"},
				{Key: "o", Value: small},
				{Key: "o2", Value: bson.D{{Key: "_id", Value: 1}}},
			}},
			[]bson.D{small},
		},
	} {
		for restart := range len(tt.log) {
			t.Run(fmt.Sprintf("%s restart=%d", tt.name, restart), func(t *testing.T) {
				r := newRig(t, 2, mongosim.Options{Members: 1})
				tg := r.target
				tg.run(t, "db", bson.D{{Key: "create", Value: "p"}})
				tg.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{tt.copied}}})
				l := newLog(t)
				for i, op := range tt.log {
					l.add(op)
					if i+1 == restart {
						l.end()
					}
				}
				until := l.optime()
				l.end()
				l.add(insertOp("db.p", bson.D{{Key: "_id", Value: 2}}))
				begin := func() *attempt {
					return must.Get(r.begin(t.Context(), func(c *Config) {
						r.commanded(t, c, nil)
						c.CopiedUntil = until
					}))(t)
				}
				batches := l.batches()
				if restart > 0 {
					must.Succeed(t, begin().run(t.Context(), batches[:1], 0))
					batches = batches[1:]
				}
				must.Succeed(t, begin().run(t.Context(), batches, 0))
				var want []bson.Raw
				for _, d := range append(slices.Clone(tt.want), bson.D{{Key: "_id", Value: 2}}) {
					want = append(want, must.Marshal(t, d))
				}
				if got := tg.documents(t, "db.p"); !slices.EqualFunc(want, got, func(a, b bson.Raw) bool { return string(a) == string(b) }) {
					t.Errorf("%d documents, or others than %d", len(got), len(want))
				}
				if left := tg.documents(t, "replicator.oversized"); len(left) > 0 {
					t.Errorf("%d pieces are left", len(left))
				}
			})
		}
	}
}

// A document that is too large at the end of the copy is one that the source cannot have;
// one of a dropped collection is ignored.
func TestCopiedTooLargeInTheEnd(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves documents of 17 MiB")
	for _, dropped := range []bool{false, true} {
		r := newRig(t, 2, mongosim.Options{Members: 1})
		tg := r.target
		big := strings.Repeat("x", 17<<19)
		tg.run(t, "db", bson.D{{Key: "create", Value: "p"}})
		tg.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "y", Value: big}}}}})
		l := newLog(t)
		l.add(deltaOp("db.p", 1, bson.D{{Key: "i", Value: bson.D{{Key: "x", Value: big}}}}))
		if dropped {
			l.alone(commandOp("db", bson.D{{Key: "drop", Value: "p"}}))
		}
		until := l.optime()
		l.end()
		a := must.Get(r.begin(t.Context(), func(c *Config) {
			r.commanded(t, c, nil)
			c.CopiedUntil = until
		}))(t)
		err := a.run(t.Context(), l.batches(), 0)
		if _, diverged := errors.AsType[*DivergenceError](err); diverged == dropped || !dropped && !strings.Contains(err.Error(), "db.p, _id 1") {
			t.Errorf("dropped=%v: %v", dropped, err)
		}
		count := tg.run(t, "replicator", bson.D{{Key: "count", Value: "oversized"}, {Key: "query", Value: bson.D{}}})
		if left := count.Lookup("n").AsInt64(); left > 0 == dropped {
			t.Errorf("dropped=%v: %d pieces are left", dropped, left)
		}
	}
}

// One of a collection that is left out for a resync is copied there.
func TestCopiedTooLargeLeftOut(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves documents of 17 MiB")
	r := newRig(t, 2, mongosim.Options{Members: 1})
	tg := r.target
	big := strings.Repeat("x", 17<<19)
	tg.run(t, "db", bson.D{{Key: "create", Value: "p"}})
	tg.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "y", Value: big}}}}})
	l := newLog(t)
	l.add(deltaOp("db.p", 1, bson.D{{Key: "i", Value: bson.D{{Key: "x", Value: big}}}}))
	l.end()
	l.add(insertOp("db.q", doc(1, 1)))
	until := l.optime()
	l.end()
	without := must.Get(scope.New(scope.Config{Exclude: []string{"db.p"}}))(t)
	for i, b := range l.batches() {
		a := must.Get(r.begin(t.Context(), func(c *Config) {
			r.commanded(t, c, nil)
			c.CopiedUntil = until
			if i > 0 {
				c.Scope = without
			}
		}))(t)
		must.Succeed(t, a.run(t.Context(), []batch.Batch{b}, 0))
	}
	if left := tg.documents(t, "replicator.oversized"); len(left) > 0 {
		t.Errorf("%d pieces are left", len(left))
	}
}

// Where the refusal has another cause, it is returned, and the indexes on one field stay.
func TestCopiedRefusedForAnotherReason(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1})
	tg := r.target
	tg.run(t, "db", bson.D{{Key: "create", Value: "p"}})
	tg.run(t, "db", bson.D{{Key: "createIndexes", Value: "p"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "a"}},
	}}})
	l := newLog(t)
	l.add(insertOp("db.p", doc(1, 1)))
	refusal := servererr.New(12345, "no")
	tg.intercept(func(cmd mongo.Command) (error, bool) {
		if cmd.DB == "db" && simcaller.Name(cmd) == "update" {
			return refusal, false
		}
		return nil, false
	})
	a := must.Get(r.begin(t.Context(), func(c *Config) {
		r.commanded(t, c, nil)
		c.CopiedUntil = l.optime()
	}))(t)
	err := a.run(t.Context(), l.batches(), 0)
	if _, ok := errors.AsType[*OpError](err); !ok || !errors.Is(err, refusal) {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff([]string{"_id_", "a"}, indexNames(t, tg, "db.p")); diff != "" {
		t.Error(diff)
	}
}
