package guard_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// passed is a Passing and the number of the entry that it is asked about next.
type passed struct {
	t *testing.T
	*guard.Passing
	n uint32
}

var here, elsewhere = bson.ObjectID{1}, bson.ObjectID{2}

// aLink is the document of a link from a set.
func aLink(name, instance string, from bson.ObjectID, over bool) bson.D {
	d := bson.D{{Key: "_id", Value: name}, {Key: "instance", Value: instance}, {Key: "source", Value: bson.D{{Key: "id", Value: from}, {Key: "set", Value: "a"}}}}
	if over {
		d = append(d, bson.E{Key: "over", Value: bson.D{{Key: "by", Value: "ann"}}})
	}
	return d
}

func newPassed(t *testing.T, links, commands []bson.D) *passed {
	t.Helper()
	var docs [2][]bson.Raw
	for i, list := range [][]bson.D{links, commands} {
		for _, d := range list {
			docs[i] = append(docs[i], must.Get(bson.Marshal(d))(t))
		}
	}
	raw := bson.RawValue{Type: bson.TypeObjectID, Value: here[:]}
	p := must.Get(guard.NewPassing(guard.PassingConfig{MetaDB: "replicator", Target: raw, Sessions: sessions}, docs[0], docs[1]))(t)
	return &passed{t: t, Passing: p, n: 1}
}

func (p *passed) expect(want bool, fields bson.D) {
	p.t.Helper()
	p.n++
	doc := append(append(bson.D{}, fields...), bson.E{Key: "ts", Value: bson.Timestamp{T: 100, I: p.n}}, bson.E{Key: "t", Value: int64(1)},
		bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: bson.DateTime(1_700_000_000_000)})
	e := must.Get(oplog.ParseEntry(must.Get(bson.Marshal(doc))(p.t)))(p.t)
	if got := must.Get(p.Over(&e))(p.t); got != want {
		p.t.Errorf("%v: passed over %v, want %v", fields, got, want)
	}
}

// metaOp is an entry of a link's document.
func metaOp(kind string, o bson.D, id string) bson.D {
	return bson.D{{Key: "op", Value: kind}, {Key: "ns", Value: "replicator.links"}, {Key: "o", Value: o}, {Key: "o2", Value: bson.D{{Key: "_id", Value: id}}}}
}

// partOf makes a part of a transaction of several entries of an applyOps.
func partOf(d bson.D) bson.D {
	for i := range d {
		if d[i].Key == "o" {
			d[i].Value = append(d[i].Value.(bson.D), bson.E{Key: "partialTxn", Value: true}) //nolint:forcetypeassert // applyOps makes it
		}
	}
	return append(d, bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}})
}

// TestPassOverSessions: whatever a link from the target has written in its sessions is passed over,
// whether it has ended or not, and nothing else is.
func TestPassOverSessions(t *testing.T) {
	t.Parallel()
	p := newPassed(t, []bson.D{aLink("dr", "I", here, true), aLink("on", "I", here, false), aLink("third", "I", elsewhere, false)}, nil)
	for _, link := range []string{"dr", "on"} {
		own := sessions(link, "I")[0]
		p.expect(true, in(own, crud("i", "shop.a", 1)))
		p.expect(true, in(own, crud("u", "shop.a", 1)))
		p.expect(true, in(own, crud("d", "shop.a", 1)))
		p.expect(true, in(own, applyOps(crud("u", "replicator.lanes", "dr/0"), crud("i", "shop.a", 1))))
		p.expect(true, in(own, applyOps(crud("i", "shop.a", 1))))
		p.expect(true, in(own, partOf(applyOps(crud("i", "shop.a", 1)))))
		p.expect(false, in(sessions(link, "J")[0], crud("i", "shop.a", 1))) // of another instance
	}
	for _, other := range []bson.Raw{mongo.SessionID("somebody"), sessions("third", "I")[0]} {
		p.expect(false, in(other, crud("i", "shop.a", 1)))
		p.expect(false, in(other, applyOps(crud("i", "shop.a", 1), crud("d", "shop.b", 2))))
	}
	p.expect(false, crud("i", "shop.a", 1))
	p.expect(false, crud("d", "shop.a", 1))
	p.expect(false, applyOps(crud("d", "shop.a", 1)))
	p.expect(false, command("shop", bson.D{{Key: "drop", Value: "a"}}))
}

// TestPassOverLearns: links that begin, end and go away meanwhile are known from the log.
func TestPassOverLearns(t *testing.T) {
	t.Parallel()
	p := newPassed(t, nil, nil)
	own, create := sessions("dr", "I")[0], command("shop", bson.D{{Key: "create", Value: "a"}})
	p.expect(false, in(own, crud("i", "shop.a", 1)))
	p.expect(false, in(mongo.SessionID("create"), applyOps(metaOp("i", aLink("dr", "I", here, false), "dr"), crud("i", "replicator.lanes", "dr/0"))))
	p.expect(true, in(own, crud("i", "shop.a", 1)))
	p.expect(false, create)
	p.expect(false, announced("dr", "create", "shop.a", "", 1))
	p.expect(true, create)
	// Checkpoints of it are no end of it.
	p.expect(false, metaOp("u", bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "wall", Value: 7}}}}}}, "dr"))
	p.expect(true, create)
	p.expect(false, metaOp("u", bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "over", Value: bson.D{}}}}}}}, "dr"))
	p.expect(false, create)
	p.expect(true, in(own, crud("i", "shop.a", 1)))

	p.expect(false, metaOp("i", aLink("next", "N", here, false), "next"))
	p.expect(false, announced("next", "create", "shop.a", "", 2))
	p.expect(true, create)
	p.expect(false, crud("d", "replicator.links", "next"))
	p.expect(false, create)
	p.expect(true, in(sessions("next", "N")[0], crud("i", "shop.a", 1)))
}

// TestPassOverCommands: a command is passed over while a link that goes on has announced it, before
// this began or since, and not after its answer.
func TestPassOverCommands(t *testing.T) {
	t.Parallel()
	said := func(link, command, ns string, n int) bson.D {
		return announced(link, command, ns, "", n)[2].Value.(bson.D) //nolint:forcetypeassert // it is the document
	}
	links := []bson.D{aLink("dr", "I", here, true), aLink("on", "I", here, false), aLink("third", "I", elsewhere, false)}
	p := newPassed(t, links, []bson.D{said("on", "create", "shop.a", 1), said("dr", "create", "shop.b", 2), said("third", "create", "shop.c", 3)})
	create := func(name string) bson.D { return command("shop", bson.D{{Key: "create", Value: name}}) }
	p.expect(true, create("a"))
	p.expect(false, create("b")) // by one that has ended
	p.expect(false, create("c")) // by one from elsewhere: it is not on the target
	p.expect(false, command("shop", bson.D{{Key: "drop", Value: "a"}}))
	p.expect(false, in(mongo.SessionID("somebody"), crud("i", "shop.a", 1)))
	p.expect(false, answered("on", 1))
	p.expect(false, create("a"))
	p.expect(false, announced("on", "create", "shop.v", "", 4))
	p.expect(true, crud("i", "shop.system.views", "shop.v"))
	p.expect(false, crud("i", "shop.system.views", "shop.w"))
	p.expect(false, announced("on", "delete", "shop.ring", "", 5))
	p.expect(true, applyOps(crud("d", "shop.ring", 1), crud("d", "shop.ring", 2)))
	p.expect(false, announced("on", "renameCollection", "shop.a", "shop.z", 6))
	rename := func(to string) bson.D {
		return command("shop", bson.D{{Key: "renameCollection", Value: "shop.a"}, {Key: "to", Value: "shop." + to}})
	}
	p.expect(true, rename("z"))
	p.expect(false, rename("y"))
	p.expect(false, command("shop", bson.D{{Key: "dropDatabase", Value: 1}})) // no link sends it
	p.expect(false, bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{{Key: "msg", Value: "periodic noop"}}}})
}
