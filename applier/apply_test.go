package applier

import (
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func wantDocs(t fataler, g *simTarget, ns oplog.Namespace, want ...bson.D) {
	t.Helper()
	var docs []bson.Raw
	for _, d := range want {
		docs = append(docs, must.Get(bson.Marshal(d))(t))
	}
	got := texts(g.documents(t, ns))
	expect := texts(docs)
	slices.Sort(got)
	slices.Sort(expect)
	if diff := cmp.Diff(expect, got); diff != "" {
		t.Fatalf("documents of %s (-want +got):\n%s", ns, diff)
	}
}

func TestApply(t *testing.T) {
	for _, writers := range []int{1, 4, 16} {
		t.Run(strconv.Itoa(writers), func(t *testing.T) {
			r := newRig(t, writers, mongosim.Options{Members: 1})
			l := newLog(t)
			l.alone(commandOp("db", bson.D{{Key: "create", Value: "a"}}))
			var want []bson.D
			for i := range 50 {
				l.add(insertOp("db.a", doc(i, 0)))
				want = append(want, doc(i, i*10))
			}
			l.end()
			for i := range 50 {
				l.add(setOp("db.a", i, i*10))
			}
			l.add(insertOp("out.x", doc(1, 1)))
			l.add(bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
			l.end()
			l.add(l.transactionOp(insertOp("db.a", doc("x", 1)), insertOp("db.a", doc("y", 1)), setOp("db.a", "x", 2)))
			l.add(l.transactionOp(setOp("db.a", "x", 3), deleteOp("db.a", "y"), deleteOp("db.a", 3)))
			l.add(groupOp(insertOp("db.a", doc(4, 44))))
			want[4] = doc(4, 44)
			want = append(slices.Delete(want, 3, 4), doc("x", 3))
			a := r.apply(t, l.batches(), nil)
			wantDocs(t, r.target, "db.a", want...)
			last := a.seen[len(a.seen)-1]
			if last.Applied != l.optime() || last.FetchFrom != l.optime() || last.AppliedWall != int64(l.optime().TS.T)*1000 || last.Ops != 108 {
				t.Errorf("watermark %+v, want %s and 108 operations", last, l.optime())
			}
			if n := a.released.Load(); n != 400 {
				t.Errorf("released %d bytes, want 400", n)
			}
			if s := a.Stats(); s.WindowBytes != 0 || s.Commands != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}
