package applier

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// fields creates ready indexes of db.a, which are called like their first fields.
func (g *simTarget) fields(t testing.TB, keys ...bson.D) {
	t.Helper()
	g.hang(t, false)
	specs := bson.A{}
	for _, key := range keys {
		specs = append(specs, bson.D{{Key: "key", Value: key}, {Key: "name", Value: key[0].Key}})
	}
	g.run(t, "db", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: specs}})
}

// arrays is a document that an index on both fields refuses.
func arrays(id int, a, b string) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: a, Value: bson.A{1}}, {Key: b, Value: bson.A{1}}}
}

// While the source builds an index on several fields, it accepts documents that the index
// refuses. No committed index of the target pays for them, and nothing builds the index
// before its commit.
func TestRefusedUntilCommit(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.fields(t, bson.D{{Key: "z", Value: 1}})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x+y"))
	l.alone(buildOp("startIndexBuild", 2, "p+q"))
	l.alone(buildOp("commitIndexBuild", 2, "p+q"))
	l.add(insertOp("db.a", arrays(100, "x", "y")))
	l.alone(commandOp("db", bson.D{{Key: "dropIndexes", Value: "a"}, {Key: "index", Value: "z"}}))
	l.add(deleteOp("db.a", 100))
	a.send(l, start)
	a.reaches(l.optime())
	r.target.hasIndexes(t, "p+q")
	after := l.optime()
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t, "p+q", "x+y")
	if docs := r.target.documents(t, "replicator.deferred"); len(docs) > 0 {
		t.Errorf("deferred: %v", docs)
	}
}

// A document that an index refuses although the source builds none is a divergence: it ends
// the link, and costs no index.
func TestRefusalEnds(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.fields(t, bson.D{{Key: "p", Value: 1}, {Key: "q", Value: 1}}, bson.D{{Key: "r", Value: 1}, {Key: "s", Value: 1}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 7}, {Key: "p", Value: bson.A{1}}}}}})
	a := r.live(t, nil)
	l.add(deltaOp("db.a", 7, set("q", bson.A{1})))
	a.send(l, start)
	err := <-a.done
	if refused, ok := errors.AsType[*servererr.Error](err); !ok || refused.Code != 171 {
		t.Errorf("ended with %v", err)
	}
	r.target.hasIndexes(t, "p", "r")
}
