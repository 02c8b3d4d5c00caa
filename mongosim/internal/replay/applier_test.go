package replay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

var collUUID = oplog.UUID{9}

func rawHas(doc bson.Raw, name string) bool {
	_, err := doc.LookupErr(name)
	return err == nil
}

// withCollection is a store with an empty collection db.c.
func withCollection(t *testing.T) *storage.Store {
	t.Helper()
	store := storage.New(storage.Options{})
	write(t, store, func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		check(t, u.Create("db.c", collUUID, document(t, bson.D{}), idIndex(t)))
		check(t, u.Create(opwrite.TransactionsNS, oplog.UUID{8}, document(t, bson.D{}), idIndex(t)))
		u.Commit(begun)
		return nil
	})
	return store
}

// entry is an entry at 2:n of term 1.
func entry(t *testing.T, n uint32, fields ...bson.E) bson.Raw {
	t.Helper()
	return document(t, append(bson.D(fields),
		bson.E{Key: "ts", Value: bson.Timestamp{T: 2, I: n}}, bson.E{Key: "t", Value: int64(1)},
		bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: bson.NewDateTimeFromTime(time.Unix(2, 0))}))
}

func crudEntry(t *testing.T, n uint32, op string, o bson.D, more ...bson.E) bson.Raw {
	t.Helper()
	fields := []bson.E{{Key: "op", Value: op}, {Key: "ns", Value: "db.c"}, {Key: "ui", Value: collUUID.Binary()}, {Key: "o", Value: o}}
	return entry(t, n, append(fields, more...)...)
}

func groupEntry(t *testing.T, n uint32, o bson.D, prev *oplog.OpTime) bson.Raw {
	t.Helper()
	fields := []bson.E{{Key: "op", Value: "c"}, {Key: "ns", Value: "admin.$cmd"}, {Key: "o", Value: o}}
	if prev != nil {
		lsid := bson.D{{Key: "id", Value: oplog.UUID{1}.Binary()}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}
		fields = append([]bson.E{{Key: "lsid", Value: lsid}, {Key: "txnNumber", Value: int64(1)}}, fields...)
		fields = append(fields, bson.E{Key: "prevOpTime", Value: bson.D{{Key: "ts", Value: prev.TS}, {Key: "t", Value: prev.Term}}})
	}
	return entry(t, n, fields...)
}

func innerInsert(id int32) bson.D {
	return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "db.c"}, {Key: "ui", Value: collUUID.Binary()}, {Key: "o", Value: bson.D{{Key: "_id", Value: id}}}}
}

// TestStrict refuses entries that do not fit the data, by name, and keeps those
// applied before.
func TestStrict(t *testing.T) {
	one := bson.D{{Key: "_id", Value: int32(1)}}
	set := bson.D{{Key: "$v", Value: int32(2)}, {Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "a", Value: 1}}}}}}
	null := oplog.OpTime{Term: -1}
	nowhere := oplog.NewOpTime(2, 77, 1)
	tests := map[string]struct {
		bad bson.Raw
		err string
	}{
		"insert twice":        {crudEntry(t, 5, "i", one), "apply 2:5 t1 insert on db.c: E11000"},
		"update of nothing":   {crudEntry(t, 5, "u", set, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: 2}}}), "apply 2:5 t1 update on db.c: Failed to apply update"},
		"unknown collection":  {entry(t, 5, bson.E{Key: "op", Value: "i"}, bson.E{Key: "ns", Value: "db.x"}, bson.E{Key: "o", Value: one}), "ns not found: db.x"},
		"unknown form":        {crudEntry(t, 5, "u", bson.D{{Key: "$v", Value: int32(3)}}, bson.E{Key: "o2", Value: one}), "apply 2:5 t1 update on db.c"},
		"unknown command":     {entry(t, 5, bson.E{Key: "op", Value: "c"}, bson.E{Key: "ns", Value: "db.$cmd"}, bson.E{Key: "o", Value: bson.D{{Key: "explode", Value: 1}}}), "2:5"},
		"out of order":        {crudEntry(t, 1, "d", one), "entry out of order"},
		"end without start":   {groupEntry(t, 5, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3)}}}, &nowhere), "broken chain"},
		"part without start":  {groupEntry(t, 5, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3)}}, {Key: "partialTxn", Value: true}}, &nowhere), "broken chain"},
		"commit of nothing":   {groupEntry(t, 5, bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: bson.Timestamp{T: 2, I: 2}}}, &nowhere), "broken chain"},
		"link to no part":     {groupEntry(t, 5, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3)}}}, &oplog.OpTime{TS: bson.Timestamp{T: 2, I: 1}, Term: 1}), "broken chain"},
		"wrong count":         {groupEntry(t, 5, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3)}}, {Key: "count", Value: int64(2)}}, &null), "broken chain"},
		"transaction's twice": {groupEntry(t, 5, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3), innerInsert(1)}}}, &null), "operation 1, insert on db.c: E11000"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			store := withCollection(t)
			a, err := replay.New(store, replay.Options{})
			check(t, err)
			last, err := a.Apply([]bson.Raw{crudEntry(t, 1, "i", one), test.bad, crudEntry(t, 9, "d", one)})
			if err == nil || !strings.Contains(err.Error(), test.err) || last != oplog.NewOpTime(2, 1, 1) {
				t.Errorf("applied up to %s: %v, want %s", last, err, test.err)
			}
			read(t, store, func(r *storage.Reader) {
				c, _ := r.View(bson.Timestamp{}).Collection("db.c")
				if c.Len() != 1 || r.Oplog().Len() != 1 {
					t.Errorf("%d documents and %d entries, want 1", c.Len(), r.Oplog().Len())
				}
			})
		})
	}
}

// TestTolerant takes entries that were logged before a copy was made.
func TestTolerant(t *testing.T) {
	store := withCollection(t)
	a, err := replay.New(store, replay.Options{Tolerant: true})
	check(t, err)
	other := oplog.UUID{7}
	create := func(n uint32, id oplog.UUID) bson.Raw {
		return entry(t, n, bson.E{Key: "op", Value: "c"}, bson.E{Key: "ns", Value: "db.$cmd"}, bson.E{Key: "ui", Value: id.Binary()},
			bson.E{Key: "o", Value: bson.D{{Key: "create", Value: "c"}, {Key: "idIndex", Value: idIndex(t)}}})
	}
	_, err = a.Apply([]bson.Raw{
		crudEntry(t, 1, "i", bson.D{{Key: "_id", Value: 1}}),
		crudEntry(t, 2, "i", bson.D{{Key: "_id", Value: 1}, {Key: "again", Value: true}}),
		crudEntry(t, 3, "u", bson.D{{Key: "_id", Value: 2}}, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: 2}}}),
		entry(t, 4, bson.E{Key: "op", Value: "i"}, bson.E{Key: "ns", Value: "db.x"}, bson.E{Key: "o", Value: bson.D{{Key: "_id", Value: 1}}}),
		create(5, other),    // the name is taken: what holds it has it from later on
		create(6, collUUID), // and gets it back
	})
	check(t, err)
	read(t, store, func(r *storage.Reader) {
		c, _ := r.View(bson.Timestamp{}).Collection("db.c")
		moved, _ := r.View(bson.Timestamp{}).ByUUID(other)
		if c.UUID != collUUID || c.Len() != 1 || moved == nil || !strings.HasPrefix(moved.NS.Collection(), "tmp") {
			t.Errorf("got %+v and %+v", c.Meta, moved)
		}
		for d := range c.Natural(0) {
			if !rawHas(d.Doc, "again") {
				t.Errorf("got %s", d.Doc)
			}
		}
	})
	_, err = a.Apply([]bson.Raw{entry(t, 9, bson.E{Key: "op", Value: "u"}, bson.E{Key: "ns", Value: "admin.system.version"},
		bson.E{Key: "o", Value: bson.D{{Key: "_id", Value: "featureCompatibilityVersion"}}}, bson.E{Key: "o2", Value: bson.D{{Key: "_id", Value: "featureCompatibilityVersion"}}})})
	if err == nil || !strings.Contains(err.Error(), "feature compatibility version") {
		t.Error(err)
	}
}

// TestSkipIndexes is a member with buildIndexes false.
func TestSkipIndexes(t *testing.T) {
	store := withCollection(t)
	a, err := replay.New(store, replay.Options{})
	check(t, err)
	a.SkipIndexes(true)
	command := func(n uint32, o bson.D) bson.Raw {
		return entry(t, n, bson.E{Key: "op", Value: "c"}, bson.E{Key: "ns", Value: "db.$cmd"}, bson.E{Key: "ui", Value: collUUID.Binary()}, bson.E{Key: "o", Value: o})
	}
	_, err = a.Apply([]bson.Raw{
		command(1, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k_1"}}),
		command(2, bson.D{{Key: "collMod", Value: "c"}, {Key: "index", Value: bson.D{{Key: "name", Value: "k_1"}, {Key: "hidden", Value: true}}}, {Key: "validationLevel", Value: "off"}}),
		command(3, bson.D{{Key: "dropIndexes", Value: "c"}, {Key: "index", Value: "k_1"}}),
	})
	check(t, err)
	read(t, store, func(r *storage.Reader) {
		c, _ := r.View(bson.Timestamp{}).Collection("db.c")
		if len(c.Indexes) != 1 || !rawHas(c.Options, "validationLevel") {
			t.Errorf("got %+v", c.Meta)
		}
	})
}

// TestClosed leaves a prepared transaction to the next Applier.
func TestClosed(t *testing.T) {
	store := withCollection(t)
	a, err := replay.New(store, replay.Options{})
	check(t, err)
	null := oplog.OpTime{Term: -1}
	_, err = a.Apply([]bson.Raw{groupEntry(t, 1, bson.D{{Key: "applyOps", Value: bson.A{innerInsert(3)}}, {Key: "prepare", Value: true}}, &null)})
	check(t, err)
	if _, err := replay.New(store, replay.Options{}); !errors.Is(err, storage.ErrWriteConflict) {
		t.Errorf("two Appliers hold one transaction: %v", err)
	}
	check(t, a.Close())
	check(t, a.Close())
	if a, err = replay.New(store, replay.Options{}); err != nil {
		t.Fatal(err)
	}
	prepared := oplog.NewOpTime(2, 1, 1)
	_, err = a.Apply([]bson.Raw{groupEntry(t, 4, bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: bson.Timestamp{T: 2, I: 2}}}, &prepared)})
	check(t, err)
	for at, want := range map[uint32]int{1: 0, 2: 1, 4: 1} {
		read(t, store, func(r *storage.Reader) {
			c, _ := r.View(bson.Timestamp{T: 2, I: at}).Collection("db.c")
			n := 0
			for range c.Natural(0) {
				n++
			}
			if n != want {
				t.Errorf("at 2:%d %d documents are seen, want %d", at, n, want)
			}
		})
	}
}
