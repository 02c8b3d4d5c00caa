package storage_test

import (
	"fmt"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

func idSpec() bson.Raw { return spec("_id_", "_id") }

func spec(name, field string, more ...bson.E) bson.Raw {
	d := bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: field, Value: int32(1)}}}, {Key: "name", Value: name}}
	b, err := bson.Marshal(append(d, more...))
	if err != nil {
		panic(err)
	}
	return b
}

// anyColl draws a collection, seldom one that the unit does not see.
func (m *model) anyColl(u *modelUnit) oplog.UUID {
	var visible []oplog.UUID
	for id := range u.state {
		visible = append(visible, id)
	}
	slices.SortFunc(visible, func(a, b oplog.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(visible) == 0 || rapid.IntRange(0, 19).Draw(m.t, "unseen") == 0 {
		return oplog.UUID{byte(rapid.IntRange(1, 9).Draw(m.t, "uuid"))}
	}
	return rapid.SampledFrom(visible).Draw(m.t, "coll")
}

func (m *model) drawDoc(id int) (bson.Raw, modelDoc) {
	d := bson.D{}
	if rapid.Bool().Draw(m.t, "long") {
		d = append(d, bson.E{Key: "_id", Value: int64(id)})
	} else {
		d = append(d, bson.E{Key: "_id", Value: int32(id)})
	}
	doc := modelDoc{id: strconv.Itoa(id)}
	k := rapid.IntRange(0, 9).Draw(m.t, "k")
	switch kind := rapid.IntRange(0, 9).Draw(m.t, "kind"); {
	case kind == 0:
		doc.k = []string{"null"}
	case kind == 1:
		d = append(d, bson.E{Key: "k", Value: bson.A{}})
		doc.k = []string{"undefined"}
	case kind < 4:
		d = append(d, bson.E{Key: "k", Value: bson.A{int32(k), float64(k), int64(k + 1)}})
		doc.k = []string{strconv.Itoa(k), strconv.Itoa(k + 1)}
	default:
		d = append(d, bson.E{Key: "k", Value: float64(k)})
		doc.k = []string{strconv.Itoa(k)}
	}
	doc.n = rapid.IntRange(0, 99).Draw(m.t, "n")
	d = append(d, bson.E{Key: "n", Value: int32(doc.n)})
	b, err := bson.Marshal(d)
	if err != nil {
		m.t.Fatal(err)
	}
	return b, doc
}

// keyNames are the keys that are in one document only.
func keyNames(id oplog.UUID, a, b modelDoc) (freed, taken []string) {
	for _, k := range a.k {
		if !slices.Contains(b.k, k) {
			freed = append(freed, fmt.Sprint("key ", id, k))
		}
	}
	for _, k := range b.k {
		if !slices.Contains(a.k, k) {
			taken = append(taken, fmt.Sprint("key ", id, k))
		}
	}
	return freed, taken
}

// now is the newest state as u changes it: what constraints hold for.
func (m *model) now(u *modelUnit) state {
	s := m.at(all, m.seq)
	for _, op := range u.ops {
		op(s)
	}
	return s
}

func holds(c *modelColl, except storage.RecordID, keys []string) bool {
	for rid, doc := range c.docs {
		for _, k := range keys {
			if rid != except && slices.Contains(doc.k, k) {
				return true
			}
		}
	}
	return false
}

func rankOf(k string) int {
	switch k {
	case "undefined":
		return -2
	case "null":
		return -1
	}
	var n int
	_, _ = fmt.Sscan(k, &n)
	return n
}
