package traffic

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// step is one thing that a client does.
func (c *client) step(ctx context.Context) error {
	if c.no == 0 && c.cfg.ChainBytes > 0 && !c.chained {
		c.chained = true
		return c.chain(ctx)
	}
	switch n := c.rnd.IntN(100); {
	case n < 22:
		return c.insert(ctx)
	case n < 58:
		return c.update(ctx)
	case n < 68:
		return c.remove(ctx)
	case n < 78:
		return c.heat(ctx)
	case n < 84:
		return c.findAndModify(ctx)
	case n < 88:
		return c.append(ctx)
	case n < 90:
		return c.measure(ctx)
	case n < 99:
		return c.transaction(ctx, 2+c.rnd.IntN(15))
	}
	return c.transaction(ctx, 100+c.rnd.IntN(500))
}

// write runs a write command and counts its statements.
func (c *client) write(ctx context.Context, cmd bson.D, statements int) error {
	if c.rnd.IntN(4) == 0 {
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: int32(1)}}})
	}
	if c.rnd.IntN(3) == 0 { // retryable: it is logged with its statements' numbers, and is not repeated if it was carried out
		if c.last++; c.lsid == nil {
			c.lsid = c.sessionID("retryable")
		}
		cmd = append(cmd, bson.E{Key: "lsid", Value: c.lsid}, bson.E{Key: "txnNumber", Value: c.last})
	}
	ok, err := c.try(ctx, c.cfg.DB, cmd)
	if ok {
		c.w.stats.writes.Add(int64(statements))
	}
	return err
}

func (c *client) insert(ctx context.Context) error {
	docs := bson.A{}
	for range 1 + c.rnd.IntN(20) {
		docs = append(docs, c.document(c.key()))
	}
	return c.write(ctx, bson.D{
		{Key: "insert", Value: c.ordinary()}, {Key: "documents", Value: docs}, {Key: "ordered", Value: false},
	}, len(docs))
}

func (c *client) update(ctx context.Context) error {
	list := bson.A{}
	for range 1 + c.rnd.IntN(4) {
		list = append(list, c.statement())
	}
	return c.write(ctx, bson.D{
		{Key: "update", Value: c.ordinary()}, {Key: "updates", Value: list}, {Key: "ordered", Value: false},
	}, len(list))
}

// statement is one update: mostly of one document, by its key.
func (c *client) statement() bson.D {
	key := c.key()
	id := c.id(key)
	if c.rnd.IntN(12) == 0 {
		return bson.D{
			{Key: "q", Value: bson.D{{Key: "k", Value: bson.D{{Key: "$gte", Value: int32(key)}, {Key: "$lt", Value: int32(key + 20)}}}}},
			{Key: "u", Value: c.modifier(key)},
			{Key: "multi", Value: true},
		}
	}
	s := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}}
	switch c.rnd.IntN(10) {
	case 0:
		d := c.document(key)
		d[0].Value = id
		if _, text := id.(string); text {
			d = d[1:] // one that is equal by the collation only is refused
		}
		s = append(s, bson.E{Key: "u", Value: d}, bson.E{Key: "upsert", Value: c.rnd.IntN(2) == 0})
	case 1:
		s = append(s, bson.E{Key: "u", Value: c.pipeline()})
	default:
		s = append(s, bson.E{Key: "u", Value: c.modifier(key)}, bson.E{Key: "upsert", Value: c.rnd.IntN(5) == 0})
	}
	return s
}

// one is a document of one field.
func one(key string, value any) bson.D { return bson.D{{Key: key, Value: value}} }

// modifier is an update by operators.
func (c *client) modifier(key int) bson.D {
	f := fmt.Sprintf("f%d", c.rnd.IntN(8))
	switch c.rnd.IntN(20) {
	case 0:
		return bson.D{
			{Key: "$set", Value: bson.D{{Key: f, Value: c.value()}, {Key: "n.x", Value: c.number()}}},
			{Key: "$unset", Value: one("pad", "")},
		}
	case 1:
		return one("$set", one("n.y.z", c.number()))
	case 2:
		return one("$set", one("n.y."+f, c.value()))
	case 3:
		return one("$unset", bson.D{{Key: f, Value: ""}, {Key: "n.y.s", Value: ""}})
	case 4:
		return bson.D{{Key: "$inc", Value: one("n.x", c.number())}, {Key: "$currentDate", Value: one("at", true)}}
	case 5:
		return one("$push", one("tags", bson.D{{Key: "$each", Value: c.tags()}, {Key: "$slice", Value: int32(-8)}}))
	case 6:
		return one("$pull", one("tags", pick[any](c, "red", "blue", nil)))
	case 7:
		return one("$set", one(fmt.Sprintf("list.%d.v", c.rnd.IntN(4)), c.number()))
	case 8:
		return one("$unset", one(fmt.Sprintf("list.%d.w", c.rnd.IntN(4)), ""))
	case 9:
		return one("$rename", one(f, fmt.Sprintf("r%d", c.rnd.IntN(4))))
	case 10:
		return one("$addToSet", one("tags", c.number()))
	case 11:
		return bson.D{{Key: "$max", Value: one("n.x", c.number())}, {Key: "$setOnInsert", Value: one("k", int32(key))}}
	case 12:
		return one("$pop", one("list", int32(1)))
	case 13:
		return one("$set", bson.D{{Key: "pad", Value: c.text(600)}, {Key: f, Value: c.value()}, {Key: "n.y.s", Value: c.text(9)}})
	case 14:
		return one("$mul", one("n.y.z", int32(3)))
	case 15: // an array is cut, and what stays of it is changed
		return bson.D{
			{Key: "$push", Value: one("tags", bson.D{{Key: "$each", Value: c.tags()}, {Key: "$slice", Value: int32(c.rnd.IntN(3))}})},
			{Key: "$set", Value: one("list.0.v", c.number())},
		}
	case 16:
		return one("$push", one("list", bson.D{{Key: "$each", Value: c.list()}, {Key: "$position", Value: int32(c.rnd.IntN(3))}, {Key: "$slice", Value: int32(6)}}))
	case 17: // nulls are put in between
		return one("$set", one(fmt.Sprintf("tags.%d", c.rnd.IntN(9)), c.value()))
	case 18:
		return one("$set", one("query", one(pick(c, "$gt", "$lt"), c.number())))
	}
	return one("$set", one("list", c.list()))
}

// pipeline is an update by stages of an aggregation. Some put a field in front of
// _id, or leave _id out: the server logs that, and stores _id in front.
func (c *client) pipeline() bson.A {
	front := pick(c, "pad", "list", "email")
	return pick(c,
		bson.A{one("$replaceWith", one("$mergeObjects", bson.A{one(front, "$"+front), "$$ROOT"}))},
		bson.A{one("$replaceWith", one("$mergeObjects", bson.A{one("first", c.number()), "$$ROOT"}))},
		bson.A{one("$unset", bson.A{"_id", "f1"})},
		bson.A{one("$set", one("n.sum", one("$add", bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$n.x", int32(0)}}}, int32(1)})))},
		bson.A{one("$set", one("copy", "$tags")), one("$unset", bson.A{"email"})},
		bson.A{one("$set", one("list", one("$cond", bson.A{one("$isArray", "$list"), one("$slice", bson.A{"$list", int32(1 + c.rnd.IntN(3))}), "$list"})))},
		bson.A{one("$replaceWith", one("$mergeObjects", bson.A{"$$ROOT", bson.D{{Key: "merged", Value: c.number()}}}))},
	)
}

func (c *client) remove(ctx context.Context) error {
	key := c.key()
	s := bson.D{{Key: "q", Value: one("_id", c.id(key))}, {Key: "limit", Value: int32(1)}}
	if c.rnd.IntN(8) == 0 {
		s = bson.D{
			{Key: "q", Value: one("k", bson.D{{Key: "$gte", Value: int32(key)}, {Key: "$lt", Value: int32(key + 10)}})},
			{Key: "limit", Value: int32(0)},
		}
	}
	return c.write(ctx, bson.D{{Key: "delete", Value: c.ordinary()}, {Key: "deletes", Value: bson.A{s}}}, 1)
}

// heat changes one of the contended documents, a few times.
func (c *client) heat(ctx context.Context) error {
	list := bson.A{}
	for range 1 + c.rnd.IntN(10) {
		list = append(list, bson.D{
			{Key: "q", Value: one("_id", int32(c.rnd.IntN(3)))},
			{Key: "upsert", Value: true},
			{Key: "u", Value: bson.D{
				{Key: "$inc", Value: one("count", int32(1))},
				{Key: "$set", Value: one(fmt.Sprintf("by.c%d", c.no), c.rnd.IntN(1000))},
			}},
		})
	}
	if c.rnd.IntN(50) == 0 {
		return c.write(ctx, bson.D{{Key: "delete", Value: hot}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: one("_id", int32(c.rnd.IntN(3)))}, {Key: "limit", Value: int32(1)}},
		}}}, 1)
	}
	return c.write(ctx, bson.D{{Key: "update", Value: hot}, {Key: "updates", Value: list}}, len(list))
}

func (c *client) findAndModify(ctx context.Context) error {
	key := c.key()
	cmd := bson.D{{Key: "findAndModify", Value: c.ordinary()}, {Key: "query", Value: one("_id", c.id(key))}}
	if c.rnd.IntN(4) == 0 {
		return c.write(ctx, append(cmd, bson.E{Key: "remove", Value: true}), 1)
	}
	return c.write(ctx, append(cmd, bson.E{Key: "update", Value: c.modifier(key)}, bson.E{Key: "upsert", Value: c.rnd.IntN(2) == 0}), 1)
}

// append adds to the capped collection.
func (c *client) append(ctx context.Context) error {
	docs := bson.A{}
	for range 1 + c.rnd.IntN(6) {
		c.serial++
		docs = append(docs, bson.D{
			{Key: "_id", Value: fmt.Sprintf("%d-%d", c.no, c.serial)}, {Key: "text", Value: c.text(100)},
		})
	}
	return c.write(ctx, bson.D{{Key: "insert", Value: log}, {Key: "documents", Value: docs}}, len(docs))
}

// measure adds to the time series.
func (c *client) measure(ctx context.Context) error {
	if c.cfg.NoTimeSeries {
		return nil
	}
	docs := bson.A{}
	for range 1 + c.rnd.IntN(6) {
		c.serial++
		docs = append(docs, bson.D{
			{Key: "t", Value: time.UnixMilli(1_700_000_000_000 + c.rnd.Int64N(7_200_000)).UTC()},
			{Key: "sensor", Value: pick(c, "a", "b")},
			{Key: "_id", Value: fmt.Sprintf("%d-%d", c.no, c.serial)},
			{Key: "v", Value: c.rnd.NormFloat64()},
		})
	}
	return c.write(ctx, bson.D{{Key: "insert", Value: series}, {Key: "documents", Value: docs}}, len(docs))
}
