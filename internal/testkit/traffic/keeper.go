package traffic

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// keeper is the client that changes collections, indexes and views.
type keeper struct{ *client }

// spare are collections of the second database, written only by the keeper.
const spare = 4

func (k *keeper) scratch() string { return k.cfg.DB + "_scratch" }

func (k *keeper) spareName() string { return fmt.Sprintf("s%d", k.rnd.IntN(spare)) }

// prepare creates the initial collections.
func (k *keeper) prepare(ctx context.Context) error {
	list := []bson.D{
		{{Key: "create", Value: log}, {Key: "capped", Value: true}, {Key: "size", Value: int32(1 << 16)}},
		{{Key: "create", Value: names}, {Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: int32(2)}}}},
	}
	if !k.cfg.NoTimeSeries {
		list = append(list, bson.D{{Key: "create", Value: series}, {Key: "timeseries", Value: bson.D{
			{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "sensor"},
		}}})
	}
	for _, cmd := range list {
		if _, err := k.command(ctx, k.cfg.DB, cmd); err != nil {
			return err
		}
	}
	return nil
}

// command runs a command and counts it.
func (k *keeper) command(ctx context.Context, db string, cmd bson.D) (ok bool, err error) {
	if ok, err = k.try(ctx, db, cmd); ok {
		k.w.stats.commands.Add(1)
	}
	return ok, err
}

// run runs commands in order, ignoring their outcome.
func (k *keeper) run(ctx context.Context, db string, cmds ...bson.D) error {
	for _, cmd := range cmds {
		if _, err := k.command(ctx, db, cmd); err != nil {
			return err
		}
	}
	return nil
}

// step is one change.
func (k *keeper) step(ctx context.Context) error {
	db := k.cfg.DB
	switch k.rnd.IntN(14) {
	case 0, 1:
		return k.index(ctx)
	case 2:
		return k.run(ctx, db, bson.D{{Key: "dropIndexes", Value: pick(k.client, users, orders)}, {Key: "index", Value: pick(k.client, "k_1", "n.x_1_k_-1", "email_1", "at_1", "tags_1_f1_1", "f2_hashed", "$**_1", "*")}})
	case 3:
		return k.change(ctx)
	case 4:
		return k.view(ctx)
	case 5:
		return k.run(ctx, db, bson.D{{Key: "drop", Value: fresh}})
	case 6:
		return k.rename(ctx, db+"."+fresh, k.scratch()+"."+k.spareName())
	case 7:
		return k.rename(ctx, k.scratch()+"."+k.spareName(), k.scratch()+"."+k.spareName())
	case 8, 9, 10:
		return k.create(ctx)
	case 11, 12:
		return k.swap(ctx)
	}
	if k.rnd.IntN(3) == 0 {
		return k.run(ctx, k.scratch(), bson.D{{Key: "dropDatabase", Value: int32(1)}})
	}
	return k.run(ctx, k.scratch(), bson.D{{Key: "drop", Value: k.spareName()}})
}

// rename renames a collection, also from one database to another, and over one that
// is there already.
func (k *keeper) rename(ctx context.Context, from, to string) error {
	if from == to {
		return nil
	}
	return k.run(ctx, "admin", bson.D{
		{Key: "renameCollection", Value: from}, {Key: "to", Value: to}, {Key: "dropTarget", Value: k.rnd.IntN(2) == 0},
	})
}

// swap replaces a collection while clients write to it: by another one, which brings its indexes and its UUID along, or by none, so
// that the next insert makes it anew.
func (k *keeper) swap(ctx context.Context) error {
	db := k.cfg.DB
	switch k.rnd.IntN(6) {
	case 0:
		if k.cfg.NoCappedKeys {
			return nil
		}
		return k.rename(ctx, k.scratch()+"."+k.spareName(), db+"."+fresh)
	case 1:
		return k.rename(ctx, db+"."+pick(k.client, users, orders), db+"."+fresh)
	case 2:
		return k.rename(ctx, db+"."+fresh, db+"."+pick(k.client, users, orders))
	case 3:
		return k.rename(ctx, db+"."+users, db+"."+orders)
	case 4:
		name, where := fresh, db
		if k.cfg.NoCappedKeys || k.rnd.IntN(3) > 0 {
			name, where = k.spareName(), k.scratch()
		}
		return k.run(ctx, where, bson.D{{Key: "convertToCapped", Value: name}, {Key: "size", Value: int32(1 << 20)}})
	}
	return k.run(ctx, db, bson.D{{Key: "drop", Value: pick(k.client, users, orders)}})
}

// index makes an index on a collection that is written to.
func (k *keeper) index(ctx context.Context) error {
	spec := pick(k.client,
		bson.D{{Key: "key", Value: one("k", int32(1))}, {Key: "name", Value: "k_1"}},
		bson.D{{Key: "key", Value: bson.D{{Key: "n.x", Value: int32(1)}, {Key: "k", Value: int32(-1)}}}, {Key: "name", Value: "n.x_1_k_-1"}, {Key: "sparse", Value: true}},
		bson.D{
			{Key: "key", Value: one("email", int32(1))},
			{Key: "name", Value: "email_1"},
			{Key: "unique", Value: true},
			{Key: "partialFilterExpression", Value: one("email", one("$exists", true))},
		},
		// They refuse documents, perhaps also those in between two versions of one that is copied while it is written to.
		bson.D{{Key: "key", Value: bson.D{{Key: "tags", Value: int32(1)}, {Key: "f1", Value: int32(1)}}}, {Key: "name", Value: "tags_1_f1_1"}},
		bson.D{{Key: "key", Value: one("f2", "hashed")}, {Key: "name", Value: "f2_hashed"}},
		bson.D{{Key: "key", Value: one("$**", int32(1))}, {Key: "name", Value: "$**_1"}},
		// Nothing is as old as that, so that nothing expires.
		bson.D{{Key: "key", Value: one("at", int32(1))}, {Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: int32(1 << 30)}},
	)
	return k.run(ctx, k.cfg.DB, bson.D{{Key: "createIndexes", Value: pick(k.client, users, orders)}, {Key: "indexes", Value: bson.A{spec}}})
}

// change changes the options of a collection or of an index.
func (k *keeper) change(ctx context.Context) error {
	resize := bson.D{{Key: "collMod", Value: log}, {Key: "cappedSize", Value: int32(1<<14 + k.rnd.IntN(1<<16))}}
	images := bson.D{{Key: "collMod", Value: orders}, {Key: "changeStreamPreAndPostImages", Value: one("enabled", k.rnd.IntN(2) == 0)}}
	if k.cfg.Before6 {
		resize, images = bson.D{{Key: "collMod", Value: log}}, bson.D{{Key: "collMod", Value: orders}}
	}
	return k.run(ctx, k.cfg.DB, pick(k.client,
		bson.D{{Key: "collMod", Value: users}, {Key: "validator", Value: one("k", one("$gte", int32(k.rnd.IntN(3)-2)))}, {Key: "validationLevel", Value: pick(k.client, "moderate", "off")}},
		bson.D{{Key: "collMod", Value: users}, {Key: "index", Value: bson.D{{Key: "name", Value: "k_1"}, {Key: "hidden", Value: k.rnd.IntN(2) == 0}}}},
		bson.D{{Key: "collMod", Value: users}, {Key: "index", Value: bson.D{{Key: "name", Value: "at_1"}, {Key: "expireAfterSeconds", Value: int32(1<<30 + k.rnd.IntN(1000))}}}},
		bson.D{{Key: "collMod", Value: orders}, {Key: "validator", Value: bson.D{}}},
		bson.D{{Key: "collMod", Value: users}, {Key: "index", Value: bson.D{{Key: "name", Value: "k_1"}, {Key: "prepareUnique", Value: k.rnd.IntN(4) == 0}}}},
		bson.D{{Key: "collMod", Value: users}, {Key: "index", Value: bson.D{{Key: "name", Value: "k_1"}, {Key: "unique", Value: true}}}},
		resize, images,
	))
}

// view makes, changes or drops a view.
func (k *keeper) view(ctx context.Context) error {
	name := pick(k.client, "recent", "tagged")
	stages := bson.A{one("$match", one("k", one("$gte", k.number()))), one("$project", bson.D{{Key: "k", Value: int32(1)}, {Key: "tags", Value: int32(1)}})}
	return k.run(ctx, k.cfg.DB, pick(k.client,
		bson.D{{Key: "create", Value: name}, {Key: "viewOn", Value: pick(k.client, orders, users)}, {Key: "pipeline", Value: stages}},
		bson.D{{Key: "create", Value: name}, {Key: "viewOn", Value: orders}, {Key: "pipeline", Value: bson.A{}}},
		bson.D{{Key: "collMod", Value: name}, {Key: "viewOn", Value: users}, {Key: "pipeline", Value: stages}},
		bson.D{{Key: "drop", Value: name}},
	))
}

// create makes a collection in the second database, with something in it.
func (k *keeper) create(ctx context.Context) error {
	name := k.spareName()
	cmd := bson.D{{Key: "create", Value: name}}
	switch k.rnd.IntN(5) {
	case 0:
		cmd = append(cmd, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: int32(8192)})
	case 1:
		cmd = append(cmd, bson.E{Key: "validator", Value: one("k", one("$exists", true))}, bson.E{Key: "validationAction", Value: "warn"})
	case 2:
		cmd = append(cmd, bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}, {Key: "strength", Value: int32(1)}}})
	}
	docs := bson.A{}
	for range k.rnd.IntN(30) {
		k.serial++
		docs = append(docs, bson.D{{Key: "_id", Value: int32(k.serial)}, {Key: "k", Value: k.number()}, {Key: "v", Value: k.value()}})
	}
	if err := k.run(ctx, k.scratch(), cmd); err != nil {
		return err
	}
	if len(docs) > 0 {
		ok, err := k.try(ctx, k.scratch(), bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: docs}})
		if err != nil {
			return err
		}
		if ok {
			k.w.stats.writes.Add(int64(len(docs)))
		}
	}
	if k.rnd.IntN(2) == 0 {
		return nil
	}
	return k.run(ctx, k.scratch(), bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: one("v", int32(1))}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: k.rnd.IntN(3) == 0}},
	}}})
}
