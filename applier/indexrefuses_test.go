package applier

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestIndexRefuses: an index of the target that cannot contain a document of the source, which another version of the server
// accepts, is left out, and listed as lacking: the document would be refused in every attempt. Indexes of other types stay.
func TestIndexRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key    bson.D
		fields bson.D
	}{
		"2d":       {bson.D{{Key: "a", Value: "2d"}}, bson.D{{Key: "a", Value: bson.A{500, 500}}}},
		"2dsphere": {bson.D{{Key: "a", Value: "2dsphere"}}, bson.D{{Key: "a", Value: bson.D{{Key: "type", Value: "None"}, {Key: "coordinates", Value: bson.A{1, 2}}}}}},
		"text":     {bson.D{{Key: "a", Value: "text"}}, bson.D{{Key: "a", Value: "words"}, {Key: "language", Value: 7}}},
	} {
		for _, capped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s capped=%v", name, capped), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1})
				options := bson.D{{Key: "create", Value: "p"}}
				if capped {
					options = append(options, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 1 << 20})
				}
				r.target.run(t, "db", options)
				r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "p"}, {Key: "indexes", Value: bson.A{
					bson.D{{Key: "key", Value: tt.key}, {Key: "name", Value: "refuses"}},
					bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}, {Key: "w", Value: 1}}}, {Key: "name", Value: "takes"}},
					bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: "2d"}}}, {Key: "name", Value: "flat"}},
				}}})
				l := newLog(t)
				for i := range 5 {
					l.add(insertOp("db.p", append(bson.D{{Key: "_id", Value: i}}, tt.fields...)))
				}
				told := 0
				a := must.Get(r.begin(t.Context(), func(c *Config) {
					r.commanded(t, c, func(e event.Event) {
						if e.Message() == "index that refuses a document of the source is left out" && event.Attr(e, keyIndex).String() == "refuses" {
							told++
						}
					})
				}))(t)
				must.Succeed(t, a.run(t.Context(), l.batches(), 0))
				want := []string{"_id_", "flat", "takes"}
				if name == "2d" { // "flat" is of the same type
					want = []string{"_id_", "takes"}
				}
				if diff := cmp.Diff(want, indexNames(t, r.target, "db.p")); diff != "" {
					t.Error(diff)
				}
				lacking := must.Get(ddl.ReadLacking(t.Context(), r.target, "replicator", r.link))(t)
				if told != 1 || len(lacking.Indexes) != 4-len(want) {
					t.Errorf("told %d times, lacking %v", told, lacking.Indexes)
				}
				if n := len(r.target.documents(t, "db.p")); n != 5 {
					t.Errorf("%d documents", n)
				}
			})
		}
	}
}

// TestIndexRefusesModify: so is one that refuses an update that is applied by reading the document, as a target before 5.0 needs for a
// name with a dot.
func TestIndexRefusesModify(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "4.4"})
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "p"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: "2d"}}}, {Key: "name", Value: "refuses"}},
	}}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
	l := newLog(t)
	l.add(deltaOp("db.p", 1, bson.D{{Key: "i", Value: bson.D{{Key: "x.y", Value: 1}, {Key: "a", Value: bson.A{500, 500}}}}}))
	a := must.Get(r.begin(t.Context(), func(c *Config) {
		r.commanded(t, c, func(event.Event) {})
		c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
	}))(t)
	must.Succeed(t, a.run(t.Context(), l.batches(), 0))
	if diff := cmp.Diff([]string{"_id_"}, indexNames(t, r.target, "db.p")); diff != "" {
		t.Error(diff)
	}
}
