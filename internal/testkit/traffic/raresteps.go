package traffic

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// exchange lets two documents exchange their values of a unique index: in a transaction or in an applyOps, by deletes and inserts or
// by way of a third value, or by one update after the other.
func (o *rare) exchange(ctx context.Context) error {
	docs, err := read(ctx, o.cluster, o.cfg.DB, pairs)
	if err != nil || len(docs) < 2 {
		return err
	}
	a := o.rnd.IntN(len(docs))
	b := (a + 1 + o.rnd.IntN(len(docs)-1)) % len(docs)
	idA, idB, vA, vB := docs[a].Lookup("_id"), docs[b].Lookup("_id"), docs[a].Lookup("v"), docs[b].Lookup("v")
	set := func(id, v any) bson.D {
		return fields("update", pairs, "updates", bson.A{fields("q", one("_id", id), "u", one("$set", one("v", v)))})
	}
	remove := fields("delete", pairs, "deletes", bson.A{fields("q", one("_id", fields("$in", bson.A{idA, idB})), "limit", int32(0))})
	insert := fields("insert", pairs, "documents", bson.A{fields("_id", idA, "v", vB), fields("_id", idB, "v", vA)})
	third := int32(1000 + o.rnd.IntN(1000))
	updates := []bson.D{set(idA, third), set(idB, vA), set(idA, vB)}
	ns := o.cfg.DB + "." + pairs
	switch o.rnd.IntN(4) {
	case 0:
		return o.commit(ctx, []bson.D{remove, insert}, 4, o.rnd.IntN(5) == 0)
	case 1:
		return o.commit(ctx, updates, 3, o.rnd.IntN(5) == 0)
	case 2:
		_, err := o.all(ctx, "admin", one("applyOps", bson.A{
			fields("op", "d", "ns", ns, "o", one("_id", idA)), fields("op", "d", "ns", ns, "o", one("_id", idB)),
			fields("op", "i", "ns", ns, "o", fields("_id", idA, "v", vB)), fields("op", "i", "ns", ns, "o", fields("_id", idB, "v", vA)),
		}))
		return err
	}
	for _, cmd := range updates {
		if ok, err := o.all(ctx, o.cfg.DB, cmd); err != nil || !ok {
			return err
		}
	}
	return nil
}

// transfer moves an amount by a transaction that is prepared, and then committed or aborted.
func (o *rare) transfer(ctx context.Context) error {
	if o.unprepared {
		return nil
	}
	if o.prepared == nil {
		o.prepared = o.sessionID("prepared")
	}
	o.number++
	inTxn := func(cmd bson.D, more ...bson.E) bson.D {
		return append(append(cmd, fields("lsid", o.prepared, "txnNumber", o.number, "autocommit", false)...), more...)
	}
	amount, from := o.rnd.Int64N(100), o.rnd.IntN(accountsKeys)
	to := (from + 1 + o.rnd.IntN(accountsKeys-1)) % accountsKeys
	move := func(i int, n int64) bson.D {
		return fields("q", one("_id", int32(i)), "u", one("$inc", one("amount", n)))
	}
	name, commit := "done", o.rnd.IntN(3) > 0
	if !commit {
		name = "void"
	}
	db, prepared := o.cfg.DB, bson.Raw(nil)
	err := o.once(ctx, db, inTxn(fields("update", accounts, "updates", bson.A{move(from, -amount), move(to, amount)}), bson.E{Key: "startTransaction", Value: true}), nil)
	inserts, pad := 1+o.rnd.IntN(3), o.text(300)
	chained := o.cfg.ChainBytes > 0 && !o.chained // the log needs several entries for it, of which the last one prepares
	if chained {
		inserts, pad = 8, strings.Repeat("p", o.cfg.ChainBytes/8)
	}
	for n := range inserts {
		if err == nil {
			err = o.once(ctx, db, inTxn(fields("insert", accounts, "documents", bson.A{fields("_id", fmt.Sprintf("%s-%d-%d", name, o.number, n), "pad", pad)})), nil)
		}
	}
	written := err == nil
	if written {
		err = o.once(ctx, "admin", inTxn(one("prepareTransaction", int32(1)), majority), &prepared)
	}
	if err != nil {
		if dispositionOf(err) == fatal {
			if o.cfg.Embedded || !written {
				return fmt.Errorf("traffic: prepare: %w", err)
			}
			o.unprepared = true // outside of tests servers have it in sharded clusters only
		}
		return o.end(ctx, inTxn(one("abortTransaction", int32(1)), majority))
	}
	o.chained = o.chained || chained
	if err := o.wait(ctx, time.Duration(o.rnd.IntN(200))*time.Millisecond); err != nil {
		return err
	}
	if !commit {
		return o.end(ctx, inTxn(one("abortTransaction", int32(1)), majority))
	}
	return o.end(ctx, inTxn(one("commitTransaction", int32(1)), bson.E{Key: "commitTimestamp", Value: prepared.Lookup("prepareTimestamp")}, majority))
}

// once runs a command once.
func (o *rare) once(ctx context.Context, db string, cmd bson.D, reply *bson.Raw) error {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return err
	}
	got, err := o.cluster.Call(ctx, mongo.Command{DB: db, Body: body})
	if err == nil {
		err = o.checkWrites(got)
	}
	if reply != nil {
		*reply = got
	}
	return err
}

// end ends a transaction, which would stay for ever if it is prepared.
func (o *rare) end(ctx context.Context, cmd bson.D) error {
	for {
		err := o.once(ctx, "admin", cmd, nil)
		switch {
		case err == nil:
			o.w.stats.rare.Add(1)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if servererr.IsGoneTransaction(err) {
			o.w.stats.refused.Add(1)
			return nil
		}
		if d := dispositionOf(err); d != lost && d != conflict {
			return fmt.Errorf("traffic: %s: %w", cmd[0].Key, err)
		}
		if err := o.wait(ctx, retryPause); err != nil {
			return err
		}
	}
}

// group gives the documents of a group a new stamp at once, by an applyOps, also by one in another.
func (o *rare) group(ctx context.Context) error {
	ns := o.cfg.DB + "." + groups
	stamped := func() (ops bson.A) {
		o.number++
		first := membersOf * o.rnd.IntN(groupsKeys)
		for i := first; i < first+membersOf; i++ {
			doc := fields("_id", int32(i), "stamp", o.number, "pad", o.text(100))
			switch o.rnd.IntN(3) {
			case 0:
				ops = append(ops, fields("op", "d", "ns", ns, "o", one("_id", int32(i))), fields("op", "i", "ns", ns, "o", doc))
			case 1:
				ops = append(ops, fields("op", "i", "ns", ns, "o", doc))
			default:
				ops = append(ops, fields("op", "u", "ns", ns, "o2", one("_id", int32(i)), "o", doc))
			}
		}
		return ops
	}
	ops := stamped()
	for range o.rnd.IntN(3) {
		nested := bson.A{fields("op", "c", "ns", "admin.$cmd", "o", one("applyOps", ops))}
		if o.rnd.IntN(2) == 0 {
			nested = append(nested, fields("op", "c", "ns", "admin.$cmd", "o", one("applyOps", stamped())))
		}
		ops = nested
	}
	_, err := o.all(ctx, "admin", one("applyOps", ops))
	return err
}

// rewrite writes to the clustered collection, or makes it anew.
func (o *rare) rewrite(ctx context.Context) error {
	db := o.cfg.DB
	if o.rnd.IntN(6) == 0 {
		return (&keeper{o.client}).run(ctx, db, one("drop", clustered), o.createClustered())
	}
	list := bson.A{}
	for range 1 + o.rnd.IntN(20) {
		key := o.key()
		u := any(o.modifier(key))
		if o.rnd.IntN(3) == 0 {
			u = o.document(key)[1:]
		}
		list = append(list, fields("q", one("_id", o.id(key)), "u", u, "upsert", o.rnd.IntN(2) == 0))
	}
	if _, err := o.all(ctx, db, fields("update", clustered, "updates", list, "ordered", false)); err != nil {
		return err
	}
	_, err := o.all(ctx, db, fields("delete", clustered, "deletes", bson.A{fields("q", one("_id", o.id(o.key())), "limit", int32(1))}))
	return err
}

// modify changes a collection's options and its indexes, many times, and writes in between.
func (o *rare) modify(ctx context.Context) error {
	for range 3 + o.rnd.IntN(12) {
		ofIndex := func(more ...any) bson.D { return fields("collMod", storm, "index", fields(more...)) }
		cmd := pick(o.client,
			fields("collMod", storm, "validator", one("k", one("$gte", int32(o.rnd.IntN(5)-3)))),
			fields("collMod", storm, "validator", bson.D{}),
			fields("collMod", storm, "validationLevel", pick(o.client, "off", "moderate", "strict"), "validationAction", pick(o.client, "warn", "error")),
			ofIndex("name", "k_1", "hidden", o.rnd.IntN(2) == 0),
			ofIndex("keyPattern", one("at", int32(1)), "expireAfterSeconds", int32(1<<30+o.rnd.IntN(1000))),
			ofIndex("name", "k_1", "expireAfterSeconds", int32(1<<30+o.rnd.IntN(10))),
			ofIndex("name", "at_1", "hidden", o.rnd.IntN(2) == 0, "expireAfterSeconds", int32(1<<30)),
			fields("dropIndexes", storm, "index", "k_1"),
			fields("createIndexes", storm, "indexes", bson.A{fields("key", one("k", int32(1)), "name", "k_1")}),
			fields("update", storm, "updates", bson.A{fields("q", one("_id", int32(o.rnd.IntN(20))), "u", one("$set", one("k", int32(o.rnd.IntN(6)-3))), "upsert", true)}),
		)
		if ok, err := o.try(ctx, o.cfg.DB, cmd); err != nil {
			return err
		} else if ok {
			o.w.stats.rare.Add(1)
		}
	}
	return nil
}

// expire writes documents that expire at once, and some that do not.
func (o *rare) expire(ctx context.Context) error {
	list := bson.A{}
	for range 1 + o.rnd.IntN(30) {
		doc := fields("at", past)
		switch o.rnd.IntN(4) {
		case 0:
			doc = fields("at", future, "pad", o.text(50))
		case 1:
			doc = fields("at", bson.A{future, past})
		}
		list = append(list, fields("q", one("_id", int32(o.rnd.IntN(200))), "u", doc, "upsert", true))
	}
	_, err := o.all(ctx, o.cfg.DB, fields("update", expiring, "updates", list))
	return err
}

// out replaces a collection as $out does: by a new one that is renamed over it.
func (o *rare) out(ctx context.Context) error {
	o.number++
	db, temporary := o.cfg.DB, fmt.Sprintf("tmp.agg_out.%d", o.number)
	n := 1 + o.rnd.IntN(60)
	list := bson.A{}
	for i := range n {
		list = append(list, fields("q", one("_id", int32(i)), "u", fields("run", o.number, "of", int32(n), "k", o.number%7, "v", o.value()), "upsert", true))
	}
	cmds := []bson.D{one("create", temporary), fields("update", temporary, "updates", list)}
	if o.rnd.IntN(2) == 0 {
		cmds = append(cmds, fields("createIndexes", temporary, "indexes", bson.A{fields("key", one("k", int32(1)), "name", "k_1")}))
	}
	for _, cmd := range cmds {
		if _, err := o.all(ctx, db, cmd); err != nil {
			return err
		}
	}
	if docs, err := read(ctx, o.cluster, db, temporary); err != nil || len(docs) != n {
		return err
	}
	_, err := o.all(ctx, "admin", fields("renameCollection", db+"."+temporary, "to", db+"."+report, "dropTarget", true))
	return err
}

// merge writes as $merge does: upserts of what an aggregation yields.
func (o *rare) merge(ctx context.Context) error {
	list := bson.A{}
	for range 1 + o.rnd.IntN(40) {
		doc := fields("_id", int32(o.rnd.IntN(60)), "total", o.number, "v", o.value())
		s := fields("q", one("_id", doc[0].Value))
		switch o.rnd.IntN(3) {
		case 0:
			s = append(s, fields("u", doc, "upsert", true)...)
		case 1:
			s = append(s, fields("u", one("$set", doc[1:]), "upsert", true)...)
		default: // keepExisting
			s = append(s, fields("u", one("$setOnInsert", doc[1:]), "upsert", true)...)
		}
		list = append(list, s)
	}
	_, err := o.all(ctx, o.cfg.DB, fields("update", summary, "updates", list, "ordered", false, "bypassDocumentValidation", true))
	return err
}

// rebucket deletes measurements of a sensor. The embedded set has no command for that: there it does with buckets what servers do, it
// removes them, closes them, and cuts closed ones.
func (o *rare) rebucket(ctx context.Context) error {
	switch {
	case o.cfg.NoTimeSeries:
		return nil
	case !o.cfg.Embedded:
		_, err := o.all(ctx, o.cfg.DB, fields("delete", series, "deletes", bson.A{fields("q", one("sensor", pick(o.client, "a", "b")), "limit", int32(0))}))
		return err
	}
	coll := "system.buckets." + series
	docs, err := read(ctx, o.cluster, o.cfg.DB, coll)
	if err != nil || len(docs) == 0 {
		return err
	}
	doc := docs[o.rnd.IntN(len(docs))]
	q := one("_id", doc.Lookup("_id"))
	closed, _ := doc.Lookup("control", "closed").BooleanOK()
	switch {
	case o.rnd.IntN(4) == 0 && !o.cfg.OnceOnly:
		_, err = o.all(ctx, o.cfg.DB, fields("delete", coll, "deletes", bson.A{fields("q", q, "limit", int32(1))}))
	case !closed:
		_, err = o.all(ctx, o.cfg.DB, fields("update", coll, "updates", bson.A{fields("q", q, "u", one("$set", one("control.closed", true)))}))
	default:
		elems, _ := doc.Lookup("data", "t").Document().Elements()
		if len(elems) < 2 {
			return nil
		}
		gone := bson.D{}
		for _, column := range []string{"t", "_id", "v"} {
			gone = append(gone, bson.E{Key: "data." + column + "." + elems[len(elems)-1].Key(), Value: ""})
		}
		_, err = o.all(ctx, o.cfg.DB, fields("update", coll, "updates", bson.A{fields("q", q, "u", one("$unset", gone))}))
	}
	return err
}

// users changes users and roles. The embedded set does not keep those that commands make in its data: there it writes their documents.
func (o *rare) users(ctx context.Context) error {
	user, role := fmt.Sprintf("u%d", o.rnd.IntN(3)), fmt.Sprintf("r%d", o.rnd.IntN(3))
	privileges := bson.A{fields("resource", fields("db", o.cfg.DB, "collection", pick(o.client, orders, "")), "actions", bson.A{pick(o.client, "find", "insert")})}
	if o.cfg.Embedded {
		of, name := pick(o.client, "user", "role"), pick(o.client, user, role)
		coll, q := "system."+of+"s", one("_id", o.cfg.DB+"."+name)
		if o.rnd.IntN(3) == 0 && !o.cfg.OnceOnly {
			return o.allow(ctx, "admin", fields("delete", coll, "deletes", bson.A{fields("q", q, "limit", int32(1))}))
		}
		set := fields(of, name, "db", o.cfg.DB, "privileges", privileges, "roles", bson.A{}, "n", o.number)
		return o.allow(ctx, "admin", fields("update", coll, "updates", bson.A{fields("q", q, "u", one("$set", set), "upsert", true)}))
	}
	return o.allow(ctx, o.cfg.DB, pick(o.client,
		fields("createRole", role, "privileges", privileges, "roles", bson.A{}),
		fields("createUser", user, "pwd", "secret", "roles", bson.A{"read"}),
		fields("createUser", user, "pwd", "secret", "roles", bson.A{role}),
		fields("updateUser", user, "customData", one("n", o.number)),
		fields("grantRolesToUser", user, "roles", bson.A{role}),
		fields("revokeRolesFromUser", user, "roles", bson.A{role}),
		fields("updateRole", role, "privileges", privileges),
		fields("dropUser", user),
		fields("dropRole", role),
	))
}

// allow runs a command about users and roles, which do not survive each other.
func (o *rare) allow(ctx context.Context, db string, cmd bson.D) error {
	err := o.once(ctx, db, append(cmd, majority), nil)
	switch {
	case err == nil:
		o.w.stats.rare.Add(1)
		return nil
	case servererr.IsOfUsers(err):
		o.w.stats.refused.Add(1)
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case dispositionOf(err) == fatal:
		return fmt.Errorf("traffic: %s: %w", cmd[0].Key, err)
	}
	o.w.stats.lost.Add(1)
	return o.wait(ctx, retryPause)
}
