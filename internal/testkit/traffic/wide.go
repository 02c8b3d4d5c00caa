package traffic

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// wide is the client that takes what the others take the middle of to its ends: all types of values, all kinds of indexes, all options of
// collections, names and documents as long as they may be. Each of its collections is written by it alone.
type wide struct {
	*client
	huge int // how many documents of the greatest size it has written
}

// The collections of wide.
const (
	kindsOfValues = "values"   // _ids and values of all types
	places        = "places"   // indexes of all kinds
	lists         = "lists"    // arrays that grow, and are changed by filters
	optioned      = "optioned" // it is constantly created with other options, and dropped
	metered       = "metered"  // a time series, the same
	hugeDocs      = "huge"     // documents as large as they may be
	scripts       = "system.js"
)

// maxDocument is how large a document may be, in bytes: BSONObjMaxUserSize in bsontypes.h. mostHuge is how many of that size are written.
const (
	maxDocument = 16 << 20
	mostHuge    = 2
)

var wideSteps = []struct {
	name string
	do   func(*wide, context.Context) error
}{
	{"values", (*wide).values},
	{"indexes", (*wide).indexes},
	{"arrays", (*wide).arrays},
	{"options", (*wide).options},
	{"time series", (*wide).meter},
	{"names", (*wide).names},
	{"images", (*wide).images},
	{"large documents", (*wide).large},
	{"scripts", (*wide).scripts},
}

func (o *wide) step(ctx context.Context) error {
	s := wideSteps[o.rnd.IntN(len(wideSteps))]
	if err := s.do(o, ctx); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// run runs commands in order, ignoring refusals.
func (o *wide) run(ctx context.Context, db string, cmds ...bson.D) error {
	for _, cmd := range cmds {
		if o.rnd.IntN(4) == 0 {
			cmd = append(cmd, majority)
		}
		ok, err := o.try(ctx, db, cmd)
		if err != nil {
			return err
		}
		if ok {
			o.w.stats.rare.Add(1)
		}
	}
	return nil
}

// anyID is an _id of a type that few use. An _id may not be an array, a regular expression or undefined (storage_validation.cpp).
func (o *wide) anyID() any {
	n := o.number() % 4
	return pick[any](o.client,
		nil, true, false, bson.MinKey{}, bson.MaxKey{}, bson.Timestamp{T: uint32(n) + 1, I: 7}, bson.Symbol(strconv.Itoa(int(n))), strconv.Itoa(int(n)),
		bson.JavaScript("f()"), bson.CodeWithScope{Code: "f()", Scope: one("n", n)}, bson.D{}, fields("a", nil, "b", bson.A{n, nil}),
		bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte("0123456789abcdef")}, bson.Binary{Subtype: byte(n), Data: []byte{1}},
		bson.Binary{Subtype: 0x80}, bson.DBPointer{DB: "a.b"}, math.Inf(1), math.NaN(), math.Copysign(0, -1), int64(math.MaxInt64), float64(1<<53), "",
	)
}

func (o *wide) anyValue() any {
	return pick[any](o.client, o.anyID(), o.anyID(), o.value(), bson.Undefined{}, bson.Regex{Pattern: "a/b", Options: "ix"}, bson.Timestamp{},
		bson.A{bson.Timestamp{}, bson.Undefined{}, bson.A{}, bson.D{}}, one("", one("", nil)), fields("a.b", 1, "$c", 2)[:1])
}

// values writes documents with _ids and values of all types.
func (o *wide) values(ctx context.Context) error {
	list := bson.A{}
	for range 1 + o.rnd.IntN(8) {
		q := one("_id", one("$eq", o.anyID()))
		u := pick[any](o.client,
			one("$set", one("v", o.anyValue())), one("$set", fields("v", o.anyValue(), "w.x", o.anyValue())), one("$unset", one("v", "")),
			fields("v", o.anyValue(), "z", o.anyValue()), one("$push", one("l", o.anyValue())), one("$addToSet", one("l", o.anyValue())),
			one("$pull", one("l", o.value())), one("$bit", one("b", one(pick(o.client, "or", "and", "xor"), o.number()))),
			one("$min", one("m", o.number())), one("$currentDate", one("c", one("$type", "timestamp"))),
		)
		list = append(list, fields("q", q, "u", u, "upsert", o.rnd.IntN(4) > 0))
	}
	return o.run(ctx, o.cfg.DB,
		fields("update", kindsOfValues, "updates", list, "ordered", false),
		fields("insert", kindsOfValues, "documents", bson.A{fields("_id", o.anyID(), "v", o.anyValue())}),
		fields("delete", kindsOfValues, "deletes", bson.A{fields("q", one("_id", one("$eq", o.anyID())), "limit", int32(o.rnd.IntN(2)))}),
	)
}

// indexes builds and drops indexes of all kinds, several at once too, of which one may fail.
func (o *wide) indexes(ctx context.Context) error {
	kinds := []bson.D{
		fields("key", one("text", "text"), "weights", one("text", int32(3)), "default_language", "french", "language_override", "lang"),
		fields("key", one("at", "2dsphere")), fields("key", fields("at", "2dsphere", "k", int32(-1))),
		fields("key", one("flat", "2d"), "bits", int32(20), "min", -200.0, "max", 200.0),
		fields("key", one("k", "hashed")), fields("key", fields("k", int32(1), "h", "hashed")),
		fields("key", one("$**", int32(1)), "wildcardProjection", fields("text", int32(0), "at", int32(0))),
		fields("key", one("sub.$**", int32(1))), fields("key", one("k", 1.0), "hidden", true), fields("key", one("k", int64(-1)), "sparse", true),
		fields("key", one("when", int32(1)), "expireAfterSeconds", pick[any](o.client, int64(1<<30), 1e9, int32(1<<30))),
		fields("key", one("text", int32(1)), "collation", fields("locale", "de", "strength", int32(1), "numericOrdering", true)),
		fields("key", fields("k", int32(1), "text", int32(-1)), "unique", true, "sparse", true),
		fields("key", one("k", 0.5)),
		fields("key", one("k", int32(1)), "partialFilterExpression", fields("k", one("$gt", int32(5)), "when", one("$exists", true))),
	}
	list, names := bson.A{}, bson.A{}
	for range 1 + o.rnd.IntN(3) {
		i := o.rnd.IntN(len(kinds))
		name := fmt.Sprintf("index ü.%d", i)
		names = append(names, name)
		list = append(list, append(kinds[i], bson.E{Key: "name", Value: name}))
	}
	docs := bson.A{}
	for range 1 + o.rnd.IntN(10) {
		docs = append(docs, fields("q", one("_id", o.number()%50), "u", fields("k", o.number()%30, "text", o.text(40), "lang", pick(o.client, "english", "none"),
			"at", fields("type", "Point", "coordinates", bson.A{o.rnd.Float64() * 100, o.rnd.Float64() * 50}), "flat", bson.A{o.number() % 100, o.number() % 100},
			"sub", one("a", o.value()), "when", future), "upsert", true))
	}
	cmds := []bson.D{
		fields("createIndexes", places, "indexes", list), fields("update", places, "updates", docs, "ordered", false),
		pick(o.client, fields("dropIndexes", places, "index", names), fields("dropIndexes", places, "index", names[0]), fields("dropIndexes", places, "index", "*"), one("drop", places)),
	}
	o.rnd.Shuffle(len(cmds), func(a, b int) { cmds[a], cmds[b] = cmds[b], cmds[a] })
	return o.run(ctx, o.cfg.DB, cmds...)
}

// arrays changes arrays by position and by filters, and lets them grow.
func (o *wide) arrays(ctx context.Context) error {
	list := bson.A{}
	for range 1 + o.rnd.IntN(6) {
		q := fields("_id", o.number()%10)
		n := o.number()
		s := pick(o.client,
			fields("q", q, "u", one("$push", one("a", one("$each", o.many(200)))), "upsert", true),
			fields("q", q, "u", one("$push", one("a", fields("$each", o.many(20), "$position", int32(-3))))),
			fields("q", q, "u", one("$push", one("a", fields("$each", bson.A{}, "$slice", int32(-50))))),
			fields("q", q, "u", one("$push", one("a", fields("$each", o.many(5), "$sort", one("v", int32(-1)))))),
			fields("q", q, "u", one("$inc", one("a.$[].v", int32(1)))),
			fields("q", q, "u", one("$set", one("a.$[e].w", o.anyValue())), "arrayFilters", bson.A{one("e.v", one("$lt", n))}),
			fields("q", q, "u", one("$unset", one("a.$[e].w", "")), "arrayFilters", bson.A{one("e.v", one("$gt", n))}, "multi", true),
			fields("q", append(q, bson.E{Key: "a.v", Value: one("$gt", n)}), "u", one("$set", one("a.$.hit", n))),
			fields("q", one("a.v", n), "u", one("$mul", one("a.$.v", int32(2))), "multi", true),
			fields("q", q, "u", one("$pull", one("a", one("v", one("$gte", n))))),
			fields("q", q, "u", one("$pop", one("a", int32(-1)))),
			fields("q", q, "u", one("$set", one(fmt.Sprintf("a.%d", o.rnd.IntN(1500)), nil))),
			fields("q", q, "u", one("$set", one("a.0.0.1", n))),
			fields("q", q, "u", bson.A{one("$set", one("a", one("$concatArrays", bson.A{one("$cond", bson.A{one("$isArray", "$a"), "$a", bson.A{}}), bson.A{n}})))}, "upsert", true),
			fields("q", q, "u", one("a", o.many(9)), "upsert", true),
		)
		list = append(list, s)
	}
	return o.run(ctx, o.cfg.DB, fields("update", lists, "updates", list, "ordered", false))
}

func (o *wide) many(n int) bson.A {
	a := bson.A{}
	for range 1 + o.rnd.IntN(n) {
		a = append(a, fields("v", o.number(), "w", o.text(8)))
	}
	return a
}

// options creates a collection with one of all options, writes to it, and drops or renames it.
func (o *wide) options(ctx context.Context) error {
	more := pick(o.client,
		fields("capped", true, "size", int32(1<<14), "max", int32(20)), fields("capped", true, "size", 1e5, "max", int64(7)),
		fields("validator", one("$jsonSchema", fields("bsonType", "object", "required", bson.A{"k"}, "properties", one("k", one("bsonType", "int")))), "validationLevel", "strict"),
		fields("validator", fields("$expr", one("$gt", bson.A{"$k", int32(3)})), "validationLevel", "moderate", "validationAction", "warn"),
		fields("collation", fields("locale", "sv", "strength", int32(1))),
		fields("storageEngine", one("wiredTiger", one("configString", "block_compressor=zlib"))),
		fields("indexOptionDefaults", one("storageEngine", one("wiredTiger", bson.D{}))),
		fields("idIndex", fields("key", one("_id", int32(1)), "name", "_id_")),
	)
	if !o.cfg.Before6 {
		more = pick(o.client, more, more, more, fields("changeStreamPreAndPostImages", one("enabled", true)),
			fields("clusteredIndex", fields("key", one("_id", int32(1)), "unique", true, "name", "by _id"), "expireAfterSeconds", int64(1<<30)))
	}
	docs := bson.A{}
	for i := range 1 + o.rnd.IntN(30) {
		docs = append(docs, fields("_id", int32(i), "k", int32(o.rnd.IntN(8))))
	}
	db := o.cfg.DB
	end := pick(o.client, one("drop", optioned), one("drop", optioned), fields("collMod", optioned, "validationLevel", "off"),
		fields("update", optioned, "updates", bson.A{fields("q", bson.D{}, "u", one("$inc", one("k", int32(1))), "multi", true)}),
		fields("delete", optioned, "deletes", bson.A{fields("q", one("k", one("$lt", int32(4))), "limit", int32(0))}))
	if o.cfg.NoCappedKeys {
		end = one("drop", optioned)
	}
	return o.run(ctx, db, append(one("create", optioned), more...), fields("insert", optioned, "documents", docs, "ordered", false), end)
}

// meter creates a time series with one of all options, writes to it, changes and drops it.
func (o *wide) meter(ctx context.Context) error {
	if o.cfg.NoTimeSeries {
		return nil
	}
	of := fields("timeField", "t", "metaField", "m", "granularity", pick(o.client, "seconds", "minutes"))
	docs := bson.A{}
	for range 1 + o.rnd.IntN(40) {
		doc := fields("t", time.UnixMilli(1_700_000_000_000+o.rnd.Int64N(90_000_000)).UTC(), "m", pick[any](o.client, nil, "a", fields("x", int32(1), "y", "b")), "v", o.value())
		docs = append(docs, pick(o.client, doc, append(doc[:2:2], bson.E{Key: fmt.Sprintf("w%d", o.rnd.IntN(4)), Value: o.number()})))
	}
	return o.run(ctx, o.cfg.DB,
		fields("create", metered, "timeseries", of, "expireAfterSeconds", int64(1<<30)),
		fields("insert", metered, "documents", docs, "ordered", o.rnd.IntN(2) == 0),
		pick(o.client, fields("createIndexes", metered, "indexes", bson.A{fields("key", fields("m.x", int32(1), "t", int32(-1)), "name", "m.x_1_t_-1")}),
			fields("collMod", metered, "timeseries", one("granularity", "minutes")), fields("collMod", metered, "expireAfterSeconds", pick[any](o.client, "off", int64(1<<30))),
			one("drop", metered), one("drop", metered)),
	)
}

// names creates, fills, renames and drops collections and databases with names that are long, or have characters of all kinds.
func (o *wide) names(ctx context.Context) error {
	db := pick(o.client, o.cfg.DB+"_é日本", o.cfg.DB+"-"+strings.Repeat("n", 62-len(o.cfg.DB)))
	longest := strings.Repeat("l", 255-len(db)-1)
	name := func() string {
		return pick(o.client, longest, "été.日本😀", "a b*c?[d]{e,f}", `q"u\'o`, "x..y.", "%2e/..", "café", "cafe\u0301", "-n", longest[:120])
	}
	from, to := name(), name()
	docs := bson.A{fields("_id", o.number()%5, "ключ", o.value(), "a.b", o.number()), fields("_id", o.number()%5+5, " ", o.value())}
	last := pick(o.client, one("dropDatabase", int32(1)), one("drop", to), one("drop", from), one("drop", to))
	if err := o.run(ctx, db,
		fields("insert", from, "documents", docs),
		fields("createIndexes", from, "indexes", bson.A{fields("key", one("ключ", int32(1)), "name", strings.Repeat("ä", 1+o.rnd.IntN(60)))}),
		fields("update", from, "updates", bson.A{fields("q", bson.D{}, "u", one("$set", one("ключ", o.value())), "multi", true)}),
	); err != nil {
		return err
	}
	if from != to {
		if err := o.run(ctx, "admin", fields("renameCollection", db+"."+from, "to", db+"."+to, "dropTarget", o.rnd.IntN(2) == 0)); err != nil {
			return err
		}
	}
	return o.run(ctx, db, last)
}

// images has retryable findAndModify commands, which store images of the document before or after.
func (o *wide) images(ctx context.Context) error {
	if o.lsid == nil {
		o.lsid = o.sessionID("images")
	}
	for range 1 + o.rnd.IntN(4) {
		o.last++
		cmd := fields("findAndModify", lists, "query", one("_id", o.number()%10))
		cmd = append(cmd, pick(o.client, fields("remove", true), fields("update", one("$inc", one("n", int32(1))), "new", true, "upsert", true),
			fields("update", one("n", o.number()), "new", o.rnd.IntN(2) == 0), fields("update", bson.A{one("$set", one("p", o.number()))}, "new", true))...)
		if err := o.run(ctx, o.cfg.DB, append(cmd, fields("lsid", o.lsid, "txnNumber", o.last)...)); err != nil {
			return err
		}
	}
	return nil
}

// large writes a document that has the greatest size, or grows to it, and makes it small.
func (o *wide) large(ctx context.Context) error {
	if o.huge >= mostHuge || o.rnd.IntN(4) > 0 {
		return nil
	}
	o.huge++
	doc := fields("_id", o.huge, "n", int32(0), "pad", "")
	body, err := bson.Marshal(doc)
	if err != nil {
		return err
	}
	q, pad := one("_id", o.huge), strings.Repeat("p", maxDocument-len(body))
	set := func(u any) bson.D { return fields("update", hugeDocs, "updates", bson.A{fields("q", q, "u", u)}) }
	grow := fields("insert", hugeDocs, "documents", bson.A{append(doc[:2:2], bson.E{Key: "pad", Value: pad})})
	if o.rnd.IntN(2) == 0 {
		if err := o.run(ctx, o.cfg.DB, fields("insert", hugeDocs, "documents", bson.A{doc})); err != nil {
			return err
		}
		grow = set(one("$set", one("pad", pad)))
	}
	return o.run(ctx, o.cfg.DB,
		grow, set(one("$inc", one("n", int32(1)))), set(fields("$set", one("n", o.number()), "$rename", one("pad", "dap"))),
		set(one("$unset", fields("pad", "", "dap", ""))),
	)
}

// scripts stores functions.
func (o *wide) scripts(ctx context.Context) error {
	q := one("_id", fmt.Sprintf("f%d", o.rnd.IntN(3)))
	if o.rnd.IntN(3) == 0 && !o.cfg.OnceOnly {
		return o.run(ctx, o.cfg.DB, fields("delete", scripts, "deletes", bson.A{fields("q", q, "limit", int32(1))}))
	}
	return o.run(ctx, o.cfg.DB, fields("update", scripts, "updates", bson.A{fields("q", q, "u", one("value", bson.JavaScript("function() { return 1 }")), "upsert", true)}))
}
