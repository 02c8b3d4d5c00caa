package traffic

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// The collections that all clients write to.
const (
	orders = "orders" // ordinary
	users  = "users"  // ordinary, with indexes that come and go
	names  = "names"  // with a collation
	hot    = "hot"    // three contended documents
	log    = "log"    // capped
	series = "series" // a time series
	fresh  = "fresh"  // it is constantly dropped, renamed and created again
)

// ordinary returns a collection to write to, and the keys in it.
func (c *client) ordinary() string {
	return pick(c, orders, orders, orders, users, users, names, fresh)
}

func pick[T any](c *client, of ...T) T { return of[c.rnd.IntN(len(of))] }

func (c *client) key() int { return c.rnd.IntN(c.cfg.Keys) }

// id is the _id for a key. The same key has the same _id, of one of many types; numbers are equal, but sometimes of another type,
// and strings are equal by the collation of names.
func (c *client) id(key int) any {
	switch key % 7 {
	case 0:
		return c.numeral(key)
	case 1:
		return fmt.Sprintf(pick(c, "key-%04d", "key-%04d", "key-%04d", "Key-%04d"), key)
	case 2:
		return bson.D{{Key: "shop", Value: int32(key % 10)}, {Key: "no", Value: c.numeral(key)}}
	case 3:
		var id bson.ObjectID
		binary.BigEndian.PutUint64(id[4:], uint64(key))
		return id
	case 4:
		return float64(key) + 0.5
	case 5:
		return time.UnixMilli(int64(key) * 1000).UTC()
	}
	return c.numeral(key)
}

// numeral is a number, mostly of the type that its key has.
func (c *client) numeral(key int) any {
	switch c.rnd.IntN(12) {
	case 0:
		return float64(key)
	case 1:
		d, _ := bson.ParseDecimal128(fmt.Sprintf("%d.0", key))
		return d
	case 2, 3:
		return int64(key)
	}
	return int32(key)
}

// document returns a document of the usual shape, with fields that others lack.
func (c *client) document(key int) bson.D {
	d := bson.D{
		{Key: "_id", Value: c.id(key)},
		{Key: "k", Value: int32(key)},
		{Key: "n", Value: bson.D{{Key: "x", Value: c.number()}, {Key: "y", Value: bson.D{{Key: "z", Value: c.number()}, {Key: "s", Value: c.text(20)}}}}},
		{Key: "tags", Value: c.tags()},
		{Key: "list", Value: c.list()},
		{Key: "email", Value: fmt.Sprintf("u%d-%d@example.org", key, c.rnd.IntN(1<<30))},
	}
	for range c.rnd.IntN(4) {
		d = append(d, bson.E{Key: fmt.Sprintf("f%d", c.rnd.IntN(8)), Value: c.value()})
	}
	if c.rnd.IntN(12) == 0 { // a stored query
		d = append(d, bson.E{Key: "query", Value: one("$gt", c.number())})
	}
	if c.rnd.IntN(3) == 0 {
		d = append(d, bson.E{Key: "pad", Value: c.text(400)})
	}
	switch c.rnd.IntN(1000) {
	case 0, 1, 2, 3, 4:
		d = append(d, bson.E{Key: "big", Value: c.text(50_000)})
	case 5:
		d = append(d, bson.E{Key: "big", Value: c.text(2 << 20)})
	}
	return unique(d)
}

// unique leaves out fields that are there already.
func unique(d bson.D) bson.D {
	seen := map[string]bool{}
	out := d[:0]
	for _, e := range d {
		if !seen[e.Key] {
			seen[e.Key] = true
			out = append(out, e)
		}
	}
	return out
}

func (c *client) number() int32 { return int32(c.rnd.IntN(1000)) }

func (c *client) text(most int) string {
	return strings.Repeat(pick(c, "a", "bc", "déf ", "g.h", "日本"), c.rnd.IntN(most/4+1))
}

func (c *client) tags() bson.A {
	a := bson.A{}
	for range c.rnd.IntN(5) {
		a = append(a, pick[any](c, "red", "green", "blue", int32(7), nil))
	}
	return a
}

func (c *client) list() bson.A {
	a := bson.A{}
	for range 1 + c.rnd.IntN(6) {
		a = append(a, bson.D{{Key: "v", Value: c.number()}, {Key: "w", Value: c.text(12)}})
	}
	return a
}

// value is of any type without a special meaning.
func (c *client) value() any {
	switch c.rnd.IntN(12) {
	case 0:
		return c.rnd.NormFloat64()
	case 1:
		return c.text(60)
	case 2:
		return bson.D{{Key: "a", Value: c.number()}, {Key: "b", Value: bson.A{c.number(), c.text(8)}}}
	case 3:
		return c.tags()
	case 4:
		return bson.Binary{Subtype: 0, Data: []byte(c.text(40))}
	case 5:
		return c.rnd.IntN(2) == 0
	case 6:
		return time.UnixMilli(c.rnd.Int64N(2_000_000_000_000)).UTC()
	case 7:
		return nil
	case 8:
		return c.rnd.Int64()
	case 9:
		d, _ := bson.ParseDecimal128(fmt.Sprintf("%d.%02d", c.rnd.IntN(10_000), c.rnd.IntN(100)))
		return d
	case 10:
		return bson.Timestamp{T: c.rnd.Uint32(), I: 1}
	}
	return pick[any](c, math.Inf(1), math.NaN(), bson.MinKey{}, bson.Regex{Pattern: "^a", Options: "i"}, bson.D{}, bson.A{}, "$cash", "")
}
