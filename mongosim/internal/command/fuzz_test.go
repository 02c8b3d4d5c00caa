package command

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// FuzzCommand sends any valid document as a command: there must be a reply.
func FuzzCommand(f *testing.F) {
	for _, cmd := range []string{
		`{insert: "c", documents: [{_id: 1}], $db: "d"}`,
		`{insert: "c", documents: [{_id: 1}], ` + inTxn(sessionA, 1, true) + `, $db: "d"}`,
		`{update: "c", updates: [{q: {_id: 1}, u: {$set: {a: 1}}, upsert: true, arrayFilters: []}], stmtIds: [3], ` + sessionA + `, txnNumber: {$numberLong: "9"}, $db: "d"}`,
		`{delete: "c", deletes: [{q: {a: {$gt: 1}}, limit: 0, collation: {locale: "simple"}}], writeConcern: {w: 1, j: true}, $db: "d"}`,
		`{findAndModify: "c", query: {}, sort: {a: 1}, update: [{$set: {a: 1}}], fields: {a: 1}, new: true, $db: "d"}`,
		`{commitTransaction: 1, commitTimestamp: {$timestamp: {t: 1, i: 1}}, ` + inTxn(sessionA, 1, false) + `, $db: "admin"}`,
		`{find: "c", readConcern: {level: "snapshot", atClusterTime: {$timestamp: {t: 1, i: 1}}}, maxTimeMS: 1, $db: "d"}`,
		`{killAllSessions: [], $db: "admin"}`,
		`{hello: 1, $replData: 1, $oplogQueryData: 1, $clusterTime: {clusterTime: {$timestamp: {t: 1, i: 1}}}, $db: "admin"}`,
	} {
		f.Add([]byte(parse(f, cmd)))
	}
	m := newMember(f, "8.0.1")
	f.Fuzz(func(t *testing.T, cmd []byte) {
		if rawbson.Validate(cmd) != nil {
			return
		}
		reply := m.CallOn(t.Context(), m.NewConn("fuzz"), cmd)
		if reply == nil {
			_ = m.run(t, `{configureFailPoint: "failCommand", mode: "off", $db: "admin"}`)
			return
		}
		if err := rawbson.Validate(reply); err != nil {
			t.Fatalf("the reply is not BSON: %v", err)
		}
		if v, isDouble := reply.Lookup("ok").DoubleOK(); !isDouble || v != 0 && v != 1 {
			t.Errorf("the reply has no ok: %s", reply)
		}
	})
}

// TestAnyArgumentsAreAnswered sends the commands of this member with arguments
// that they know and values that they may not expect.
func TestAnyArgumentsAreAnswered(t *testing.T) {
	m := newMember(t, "8.0.1")
	m.run(t, `{insert: "c", documents: [{_id: 1, a: [1, {b: 2}]}, {_id: 2}], $db: "d"}`)
	m.run(t, `{create: "v", viewOn: "c", pipeline: [], $db: "d"}`)
	generics := []string{"txnNumber", "autocommit", "startTransaction", "readConcern", "writeConcern", "$readPreference", "comment", "$replData"}
	statements := []string{"q", "u", "multi", "upsert", "limit", "arrayFilters", "collation", "hint", "filter", "updateMods", "document", "insert", "update", "delete", "ns", "sort"}
	value := rapid.Custom(func(t *rapid.T) any { return anyValue(t, statements, 0) })
	names := []string{"insert", "update", "delete", "findAndModify", "commitTransaction", "abortTransaction", "prepareTransaction", "killSessions", "endSessions", "find", "getMore"}
	rapid.Check(t, func(t *rapid.T) {
		c := m.Commands[rapid.SampledFrom(names).Draw(t, "command")]
		var first any = rapid.SampledFrom([]string{"c", "c", "c", "v", "new", "system.views", ""}).Draw(t, "first")
		if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
			first = value.Draw(t, "first")
		}
		cmd := bson.D{{Key: c.Name, Value: first}}
		db := "d"
		if c.AdminOnly {
			db = "admin"
		}
		cmd = append(cmd, bson.E{Key: "$db", Value: db}, bson.E{Key: "maxTimeMS", Value: 5})
		if rapid.Bool().Draw(t, "session") {
			id := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), rapid.Byte().Draw(t, "id")&1)}
			cmd = append(cmd, bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: id}}})
			if rapid.Bool().Draw(t, "txn") {
				cmd = append(cmd, bson.E{Key: "txnNumber", Value: rapid.Int64Range(0, 500).Draw(t, "n")}, bson.E{Key: "autocommit", Value: false})
				if rapid.Bool().Draw(t, "start") {
					cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
				}
			}
		}
		if c.Sequence != "" {
			list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any { return anyOperation(t, c.Sequence) }), 1, 3).Draw(t, "sequence")
			cmd = append(cmd, bson.E{Key: c.Sequence, Value: bson.A(list)})
		}
		if c.Name == "findAndModify" {
			cmd = append(cmd, anyOperation(t, c.Name)...)
		}
		for range max(0, rapid.IntRange(-4, 2).Draw(t, "arguments")) {
			name := rapid.SampledFrom(append(generics, c.Fields...)).Draw(t, "name")
			cmd = append(cmd, bson.E{Key: name, Value: value.Draw(t, "value")})
		}
		raw, err := bson.Marshal(cmd)
		if err != nil {
			t.Skip(err)
		}
		reply := m.CallOn(context.Background(), m.conn, raw)
		if err := rawbson.Validate(reply); err != nil {
			t.Fatalf("%s: the reply is not BSON: %v", bson.Raw(raw), err)
		}
		if v, isDouble := reply.Lookup("ok").DoubleOK(); !isDouble || v != 0 && v != 1 {
			t.Errorf("%s: the reply has no ok: %s", bson.Raw(raw), reply)
		}
		if reply.Lookup("code").Type == bson.TypeInt32 && reply.Lookup("code").Int32() == 1 {
			t.Errorf("%s: %s", bson.Raw(raw), reply)
		}
	})
}

// anyOperation makes what may well be an element of the sequence.
func anyOperation(t *rapid.T, sequence string) bson.D {
	doc := func() bson.D { return anyDocument(t, nil, 1) }
	filter := doc()
	if rapid.Bool().Draw(t, "plain") {
		filter = bson.D{{Key: "_id", Value: anyValue(t, nil, 4)}}
	}
	var change any
	switch rapid.IntRange(0, 4).Draw(t, "form") {
	case 0:
		change = doc()
	case 1:
		change = bson.A{bson.D{{Key: "$set", Value: doc()}}}
	default:
		operator := rapid.SampledFrom([]string{"$set", "$inc", "$push", "$pull", "$unset", "$addToSet", "$rename", "$bit", "$pop"}).Draw(t, "operator")
		change = bson.D{{Key: operator, Value: bson.D{{Key: rapid.SampledFrom([]string{"a", "a.b", "n", "a.0", "a.$", "_id", "a.$[]"}).Draw(t, "path"), Value: anyValue(t, nil, 2)}}}}
	}
	flag := rapid.Bool()
	switch sequence {
	case "documents":
		return doc()
	case "updates":
		return bson.D{
			{Key: "q", Value: filter},
			{Key: "u", Value: change},
			{Key: "multi", Value: flag.Draw(t, "multi")},
			{Key: "upsert", Value: flag.Draw(t, "upsert")},
		}
	case "deletes":
		return bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: rapid.IntRange(0, 1).Draw(t, "limit")}}
	case "findAndModify":
		return bson.D{{Key: "query", Value: filter}, {Key: "update", Value: change}, {Key: "upsert", Value: flag.Draw(t, "upsert")}, {Key: "new", Value: flag.Draw(t, "new")}}
	}
	index := rapid.IntRange(0, 2).Draw(t, "ns")
	switch rapid.IntRange(0, 2).Draw(t, "op") {
	case 0:
		return bson.D{{Key: "insert", Value: index}, {Key: "document", Value: doc()}}
	case 1:
		return bson.D{{Key: "update", Value: index}, {Key: "filter", Value: filter}, {Key: "updateMods", Value: change}, {Key: "upsert", Value: flag.Draw(t, "upsert")}}
	}
	return bson.D{{Key: "delete", Value: index}, {Key: "filter", Value: filter}, {Key: "multi", Value: flag.Draw(t, "multi")}}
}

func anyDocument(t *rapid.T, names []string, depth int) bson.D {
	d := bson.D{}
	names = append([]string{"_id", "a", "a.b", "$set", "$inc", "$push", "$gt", "$in", "a.$", "a.$[x]"}, names...)
	for range rapid.IntRange(0, 4).Draw(t, "fields") {
		d = append(d, bson.E{Key: rapid.SampledFrom(names).Draw(t, "field"), Value: anyValue(t, nil, depth+1)})
	}
	return d
}

func anyValue(t *rapid.T, names []string, depth int) any {
	kind := rapid.IntRange(0, 13).Draw(t, "kind")
	if depth > 3 {
		kind %= 11
	}
	switch kind {
	case 0:
		return int32(rapid.IntRange(-2, 3).Draw(t, "int"))
	case 1:
		return rapid.Int64().Draw(t, "long")
	case 2:
		return rapid.Float64().Draw(t, "double")
	case 3:
		return rapid.SampledFrom([]string{"", "c", "d.c", "majority", "local", "_id_", "$a", "x"}).Draw(t, "string")
	case 4:
		return rapid.Bool().Draw(t, "bool")
	case 5:
		return nil
	case 6:
		return bson.Timestamp{T: rapid.Uint32().Draw(t, "T")}
	case 7:
		return bson.Binary{Subtype: 4, Data: make([]byte, rapid.SampledFrom([]int{0, 16, 32}).Draw(t, "size"))}
	case 8:
		return bson.Regex{Pattern: "^a", Options: "i"}
	case 9:
		return bson.MinKey{}
	case 10:
		return bson.Undefined{}
	case 11:
		return anyDocument(t, names, depth+1)
	case 12:
		return bson.D{{Key: "_id", Value: 1}}
	default:
		list := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			list = append(list, anyValue(t, names, depth+1))
		}
		return list
	}
}
