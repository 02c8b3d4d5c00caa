package command

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/command/ddl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// indexes returns the specifications of a collection's indexes as stored, but
// for that on _id.
func (m *member) indexes(t *testing.T, coll string) (list []string) {
	t.Helper()
	err := m.store.Read(func(r *storage.Reader) error {
		c, ok := r.View(bson.Timestamp{}).Collection("d.c")
		if !ok {
			t.Fatal("no collection " + coll)
		}
		for _, index := range c.Indexes {
			if index.Name != "_id_" {
				list = append(list, index.Spec.String())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestIndexesAreStored(t *testing.T) {
	const french = `"collation": {"locale": "fr","caseLevel": false,"caseFirst": "off","strength": {"$numberInt":"3"},"numericOrdering": false,"alternate": "non-ignorable","maxVariable": "punct","normalization": false,"backwards": false,"version": "57.1"}`
	for name, tc := range map[string]struct{ create, index, want string }{
		"order": {
			``, `name: "n", sparse: true, key: {x: 1}, unique: 1, ns: "d.other", v: 2.0`,
			`{"v": {"$numberInt":"2"},"unique": true,"key": {"x": {"$numberInt":"1"}},"name": "n","sparse": true}`,
		},
		"false": {
			``, `key: {x: 1.5}, name: "n", unique: false, hidden: false, background: true, dropDups: true, expireAfterSeconds: 2.7`,
			`{"v": {"$numberInt":"2"},"key": {"x": {"$numberDouble":"1.5"}},"name": "n","background": true,"expireAfterSeconds": {"$numberDouble":"2.7"}}`,
		},
		"collation of the collection": {
			`collation: {locale: "fr"},`, `key: {x: "hashed", y: 1}, name: "n"`,
			`{"v": {"$numberInt":"2"},"key": {"x": "hashed","y": {"$numberInt":"1"}},"name": "n",` + french + `}`,
		},
		"simple collation": {
			`collation: {locale: "fr"},`, `key: {x: 1}, collation: {locale: "simple"}, name: "n"`,
			`{"v": {"$numberInt":"2"},"key": {"x": {"$numberInt":"1"}},"name": "n"}`,
		},
		"version 1 has none": {
			`collation: {locale: "fr"},`, `key: {x: 1}, name: "n", v: 1`,
			`{"v": {"$numberInt":"1"},"key": {"x": {"$numberInt":"1"}},"name": "n"}`,
		},
		"text": {
			``, `key: {a: 1, x: "text", y: "text", b: -1}, name: "n", weights: {y: 5, z: 2}, default_language: "french"`,
			`{"v": {"$numberInt":"2"},"key": {"a": {"$numberInt":"1"},"_fts": "text","_ftsx": {"$numberInt":"1"},"b": {"$numberInt":"-1"}},"name": "n","weights": {"y": {"$numberInt":"5"},"z": {"$numberInt":"2"},"x": {"$numberInt":"1"}},"default_language": "french","language_override": "language","textIndexVersion": {"$numberInt":"3"}}`,
		},
		"all text": {
			``, `key: {"$**": "text"}, name: "n"`,
			`{"v": {"$numberInt":"2"},"key": {"_fts": "text","_ftsx": {"$numberInt":"1"}},"name": "n","weights": {"$**": {"$numberInt":"1"}},"default_language": "english","language_override": "language","textIndexVersion": {"$numberInt":"3"}}`,
		},
		"sphere": {
			``, `key: {x: "2dsphere"}, name: "n", "2dsphereIndexVersion": 2.0`,
			`{"v": {"$numberInt":"2"},"key": {"x": "2dsphere"},"name": "n","2dsphereIndexVersion": {"$numberInt":"2"}}`,
		},
		"flat": {
			``, `key: {x: "2d"}, name: "n", bits: 20, min: -5, max: 5`,
			`{"v": {"$numberInt":"2"},"key": {"x": "2d"},"name": "n","bits": {"$numberInt":"20"},"min": {"$numberInt":"-5"},"max": {"$numberInt":"5"}}`,
		},
		"wildcard": {
			``, `key: {"$**": 1}, name: "n", wildcardProjection: {x: 0}`,
			`{"v": {"$numberInt":"2"},"key": {"$**": {"$numberInt":"1"}},"name": "n","wildcardProjection": {"x": {"$numberInt":"0"}}}`,
		},
		"unknown": {`ignore`, `key: {x: 1}, name: "n", bogus: 1, prepareUnique: true`, `{"v": {"$numberInt":"2"},"key": {"x": {"$numberInt":"1"}},"name": "n"}`},
	} {
		t.Run(name, func(t *testing.T) {
			m, ignore := newMember(t, "5.0.7"), ""
			if tc.create == "ignore" {
				tc.create, ignore = "", "ignoreUnknownIndexOptions: true,"
			}
			m.steps(t, []step{
				{`{create: "c", ` + tc.create + ` $db: "d"}`, 0, ""},
				{`{createIndexes: "c", indexes: [{` + tc.index + `}], ` + ignore + ` $db: "d"}`, 0, ""},
			})
			if diff := cmp.Diff([]string{tc.want}, m.indexes(t, "c")); diff != "" {
				t.Error(diff)
			}
			m.want(t, `{createIndexes: "c", indexes: [{`+tc.index+`}], `+ignore+` $db: "d"}`,
				`{numIndexesBefore: 2, numIndexesAfter: 2, note: "all indexes already exist", ok: 1.0}`)
		})
	}
}

func TestIndexesAreRefused(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.steps(t, []step{{`{create: "c", $db: "d"}`, 0, ""}, {`{create: "fr", collation: {locale: "fr"}, $db: "d"}`, 0, ""}, {`{create: "cap", capped: true, size: 1, $db: "d"}`, 0, ""}})
	for index, want := range map[string]step{
		`key: 1, name: "n"`:                                                     {code: 14, text: "…The field 'key' must be an object, but got int"},
		`name: "n"`:                                                             {code: 9, text: "…The 'key' field is a required property"},
		`key: {x: 1}, name: 1`:                                                  {code: 14, text: "…The field 'name' must be a string, but got int"},
		`key: {x: 1}, name: ""`:                                                 {code: 67, text: "…index name cannot be empty"},
		`key: {x: 1}, name: "*"`:                                                {code: 2, text: "…The index name '*' is not valid."},
		`key: {x: 1}, name: "_id_"`:                                             {code: 2, text: "…The index name '_id_' is reserved"},
		`key: {x: 1}, name: "n", bogus: 1`:                                      {code: 197, text: "…The field 'bogus' is not valid for an index specification."},
		`key: {x: 1}, name: "n", prepareUnique: true`:                           {code: 197, text: "…The field 'prepareUnique' is not valid"},
		`key: {x: 1}, name: "n", clustered: true`:                               {code: 197, text: "…The field 'clustered' is not valid"},
		`key: {x: 0}, name: "n"`:                                                {code: 67, text: "…Values in the index key pattern cannot be 0."},
		`key: {x: true}, name: "n"`:                                             {code: 67, text: "…cannot be of type bool."},
		`key: {"": 1}, name: "n"`:                                               {code: 67, text: "…Index keys cannot be an empty field."},
		`key: {"a..b": 1}, name: "n"`:                                           {code: 67, text: "…Index keys cannot contain an empty field."},
		`key: {"$a": 1}, name: "n"`:                                             {code: 67, text: "…field name starts with '$'."},
		`key: {x: "text", y: "2d"}, name: "n"`:                                  {code: 67, text: "…Can't use more than one index plugin for a single index."},
		`key: {_id: -1}, name: "n"`:                                             {code: 2, text: "…The field 'key' for an _id index must be {_id: 1}, but got { _id: -1 }"},
		`key: {_id: 1}, name: "n", unique: true`:                                {code: 197, text: "…The field 'unique' is not valid for an _id index specification."},
		`key: {_id: 1}, name: "n", hidden: true`:                                {code: 2, text: "…can't hide _id index"},
		`key: {x: 1}, name: "n", hidden: 1`:                                     {code: 14, text: "…The field 'hidden' must be a bool, but got int"},
		`key: {x: 1}, name: "n", unique: "y"`:                                   {code: 14, text: "…which is not convertible to bool"},
		`key: {x: 1}, name: "n", v: 3`:                                          {code: 67, text: "…cannot create an index with v=3"},
		`key: {x: 1}, name: "n", v: 1, collation: {locale: "fr"}`:               {code: 67, text: "…with the 'collation' option and v=1"},
		`key: {x: 1}, name: "n", collation: {}`:                                 {code: 2, text: "…The field 'collation' cannot be an empty object."},
		`key: {x: 1}, name: "n", weights: {x: 1}`:                               {code: 67, text: "…the field 'weights' can only be specified with text indexes"},
		`key: {x: "text"}, name: "n", weights: {x: 100000}`:                     {code: 67, text: "…text index weight must be in the exclusive interval (0,100000)"},
		`key: {x: "text"}, name: "n", collation: {locale: "fr"}`:                {code: 67, text: "…Index type 'text' does not support collation: { locale: \"fr\""},
		`key: {x: 1, y: 1}, name: "n", expireAfterSeconds: 1`:                   {code: 67, text: "…TTL indexes are single-field indexes"},
		`key: {x: 1}, name: "n", expireAfterSeconds: 3000000000`:                {code: 67, text: "…must be within an acceptable range"},
		`key: {x: 1}, name: "n", expireAfterSeconds: "1"`:                       {code: 67, text: "…must be numeric"},
		`key: {x: "hashed"}, name: "n", unique: true`:                           {code: 16764, text: "…Currently hashed indexes cannot guarantee uniqueness."},
		`key: {"$**": 1}, name: "n", unique: true`:                              {code: 67, text: "Index type 'wildcard' does not support the unique option"},
		`key: {"$**": 1}, name: "n", sparse: true`:                              {code: 67, text: "Index type 'wildcard' does not support the sparse option"},
		`key: {"$**": 1, x: 1}, name: "n"`:                                      {code: 67, text: "wildcard indexes do not allow compounding"},
		`key: {"$**": -1}, name: "n"`:                                           {code: 67, text: "…must be positive."},
		`key: {x: 1}, name: "n", wildcardProjection: {x: 1}`:                    {code: 2, text: "The field 'wildcardProjection' is only allowed in 'wildcard' indexes"},
		`key: {"x.$**": 1}, name: "n", wildcardProjection: {x: 1}`:              {code: 9, text: "…The field 'wildcardProjection' is only allowed when 'key' is"},
		`key: {x: 1}, name: "n", sparse: true, partialFilterExpression: {x: 1}`: {code: 67, text: "cannot mix \"partialFilterExpression\" and \"sparse\" options"},
		`key: {x: 1}, name: "n", partialFilterExpression: {x: {$ne: 1}}`:        {code: 67, text: "…Expression not supported in partial index"},
		`key: {x: 1}, name: "n", partialFilterExpression: {$bogus: 1}`:          {code: 2, text: "…$bogus"},
		`key: {x: "geoHaystack", y: 1}, name: "n", bucketSize: 1`:               {code: 67, text: "…GeoHaystack indexes cannot be created in version 5.0 and above."},
		`key: {x: 1}, name: "n"}, {key: {x: 1}, name: "o"`:                      {code: 85, text: "Index already exists with a different name: n"},
		`key: {x: "text"}, name: "n"}, {key: {y: "text"}, name: "o"`:            {code: 85, text: "…An equivalent index already exists with a different name and options."},
		`key: {x: "text"}, name: "n"}, {key: {y: 1, z: "text"}, name: "o"`:      {code: 67, text: "only one text index per collection allowed, found existing text index \"n\""},
	} {
		for _, coll := range []string{"c", "new"} { // a collection is not made for nothing
			want.cmd = `{createIndexes: "` + coll + `", indexes: [{` + index + `}], $db: "d"}`
			if strings.Contains(want.text, "only one text index") && coll == "new" {
				continue
			}
			m.steps(t, []step{want})
		}
	}
	m.steps(t, []step{
		{`{drop: "new", $db: "d"}`, 26, "ns not found"},
		{`{createIndexes: "fr", indexes: [{key: {_id: 1}, name: "x", collation: {locale: "en"}}], $db: "d"}`, 2, "The _id index must have the same collation as the collection."},
		{`{createIndexes: "fr", indexes: [{key: {x: "text"}, name: "x"}], $db: "d"}`, 67, "…Index type 'text' does not support collation"},
		{`{createIndexes: "c", $db: "d"}`, 40414, "…createIndexes.indexes' is missing"},
		{`{createIndexes: "c", indexes: {}, $db: "d"}`, 14, "…expected type 'array'"},
		{`{createIndexes: "c", indexes: [1], $db: "d"}`, 14, "…'createIndexes.indexes.0' is the wrong type 'int'"},
		{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}], commitQuorum: 2, $db: "d"}`, 278, "…Commit quorum"},
		{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}], commitQuorum: true, $db: "d"}`, 14, "…commitQuorum"},
	})
	m.want(t, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x"}], commitQuorum: "majority", $db: "d"}`,
		`{numIndexesBefore: 1, numIndexesAfter: 2, createdCollectionAutomatically: false, commitQuorum: "majority", ok: 1.0}`)
	var list []string
	for i := range ddl.MaxIndexes {
		list = append(list, fmt.Sprintf(`{key: {a%d: 1}, name: "a%d"}`, i, i))
	}
	m.steps(t, []step{
		{`{createIndexes: "new", indexes: [` + strings.Join(list[1:], ",") + `], $db: "d"}`, 0, ""},
		{`{createIndexes: "new", indexes: [` + list[0] + `], $db: "d"}`, 67, "add index fails, too many indexes for d.new key:{ a0: 1 }"},
	})
}

// TestABuildThatFails expects the abort in the log, the cause in the reply, and
// nothing of the index.
func TestABuildThatFails(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.steps(t, []step{{`{insert: "c", documents: [{_id: 1, x: [1, 2]}, {_id: 2, x: 2}], $db: "d"}`, 0, ""}})
	n := len(m.entries(t))
	reply := m.run(t, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1", unique: true}], $db: "d"}`)
	text, _ := reply.Lookup("errmsg").StringValueOK()
	if codeOf(reply) != 11000 || !strings.HasPrefix(text, "Index build failed: ") ||
		!strings.HasSuffix(text, " ) :: caused by :: E11000 duplicate key error collection: d.c index: x_1 dup key: { x: 2 }") {
		t.Errorf("%s", reply)
	}
	log := m.payloads(t, n)
	if len(log) != 2 || !strings.HasPrefix(log[0], `{"startIndexBuild": "c"`) || !strings.HasPrefix(log[1], `{"abortIndexBuild": "c"`) {
		t.Errorf("%q", log)
	}
	if got := m.indexes(t, "c"); got != nil {
		t.Error(got)
	}
	if diff := m.follow(t).difference(t); diff != "" {
		t.Error(diff)
	}
	m.steps(t, []step{{`{createIndexes: "c", indexes: [{key: {x: 1, y: 1}, name: "xy"}], $db: "d"}`, 0, ""}})
}

func TestDropIndexes(t *testing.T) {
	m := newMember(t, "5.0.7")
	create := `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}, {key: {y: 1}, name: "y_1"}, {key: {y: 1}, name: "yfr", collation: {locale: "fr"}}, {key: {z: "text"}, name: "z"}], $db: "d"}`
	m.steps(t, []step{
		{create, 0, ""},
		{`{dropIndexes: "c", $db: "d"}`, 40414, "BSON field 'dropIndexes.index' is missing but a required field"},
		{`{dropIndexes: "c", index: 1, $db: "d"}`, 14, "…expected types '[string, object, array]'"},
		{`{dropIndexes: "c", index: ["x_1", 1], $db: "d"}`, 14, "…index name must be a string"},
		{`{dropIndexes: "c", index: ["x_1", "nope"], $db: "d"}`, 27, "index not found with name [nope]"},
		{`{dropIndexes: "c", index: ["x_1", "x_1"], $db: "d"}`, 27, "index not found with name [x_1]"},
		{`{dropIndexes: "c", index: {z: "text"}, $db: "d"}`, 27, `can't find index with key: { z: "text" }`},
		{`{dropIndexes: "c", index: {_id: 1}, $db: "d"}`, 72, "cannot drop _id index"},
		{`{dropIndexes: "c", index: {y: 1.0}, $db: "d"}`, 181, "…2 indexes found for key: { y: 1.0 }, identify by name instead."},
	})
	if got := m.indexes(t, "c"); len(got) != 4 {
		t.Error(got)
	}
	m.want(t, `{dropIndexes: "c", index: {x: {$numberLong: "1"}}, $db: "d"}`, `{nIndexesWas: 5, ok: 1.0}`)
	m.want(t, `{dropIndexes: "c", index: [], $db: "d"}`, `{nIndexesWas: 4, ok: 1.0}`)
	m.want(t, `{deleteIndexes: "c", index: ["*"], $db: "d"}`, `{nIndexesWas: 4, msg: "non-_id indexes dropped for collection", ok: 1.0}`)
}

func TestCreateIndexesInTransactions(t *testing.T) {
	m := newMember(t, "5.0.7")
	index := func(coll, args string) string {
		return `{createIndexes: "` + coll + `", indexes: [{key: {x: 1}, name: "x_1"}], ` + args + `, $db: "d"}`
	}
	m.run(t, `{insert: "full", documents: [{_id: 1}], $db: "d"}`)
	m.want(t, index("new", inTxn(sessionA, 1, true)), `{numIndexesBefore: 1, numIndexesAfter: 2, createdCollectionAutomatically: true, commitQuorum: "votingMembers", ok: 1.0}`)
	if reply := m.run(t, index("full", inTxn(sessionB, 1, true))); codeOf(reply) != 263 {
		t.Errorf("%s", reply)
	}
	m.want(t, `{commitTransaction: 1, `+inTxn(sessionA, 1, false)+`, $db: "admin"}`, ok)
	entries := m.entries(t)
	ops, err := entries[len(entries)-1].Lookup("o", "applyOps").Array().Values()
	if err != nil || len(ops) != 2 {
		t.Errorf("%s, %v", entries[len(entries)-1], err)
	}
	for _, cmd := range []string{`drop: "full"`, `collMod: "full"`, `dropIndexes: "full", index: "*"`, `dropDatabase: 1`} {
		if reply := m.run(t, `{`+cmd+`, `+inTxn(sessionB, 2, true)+`, $db: "d"}`); codeOf(reply) != 263 {
			t.Errorf("%s: %s", cmd, reply)
		}
	}
}

// FuzzDDL feeds odd BSON to the commands that change the catalog. Whatever they
// accept, a secondary must be able to follow.
func FuzzDDL(f *testing.F) {
	commands := []string{"create", "collMod", "createIndexes", "dropIndexes", "renameCollection", "convertToCapped", "drop"}
	for i, cmd := range []string{
		`{capped: true, size: 1, max: 1e300}`, `{index: {keyPattern: {x: 1}, hidden: true}}`,
		`{indexes: [{key: {x: "text", "$**": 1}, name: "n", weights: "$**"}]}`, `{index: [{}]}`, `{to: "d.", dropTarget: 1}`, `{size: {}}`, `{}`,
		`{viewOn: "c", pipeline: [{$facet: {a: [{$lookup: {from: "c", pipeline: [1]}}]}}]}`, `{validator: {$and: [{}]}, cappedMax: 3}`,
		`{indexes: [{key: {_id: 1}, name: "x", collation: {locale: "fr", strength: 9}}]}`,
		`{timeseries: {timeField: "t", metaField: "m"}, expireAfterSeconds: 1e20}`,
	} {
		f.Add(uint8(i), []byte(parse(f, cmd)))
	}
	f.Fuzz(func(t *testing.T, which uint8, args []byte) {
		doc := bson.Raw(args)
		if doc.Validate() != nil {
			return
		}
		m := newMember(t, []string{"4.4.29", "5.0.7", "8.0.0"}[int(which)%3])
		m.run(t, `{insert: "c", documents: [{_id: 1, x: [1], y: 1}], $db: "d"}`)
		m.run(t, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`)
		name := commands[int(which)%len(commands)]
		target, db := "c", "d"
		switch name {
		case "create":
			target = "new"
		case "renameCollection":
			target, db = "d.c", "admin"
		}
		cmd := bson.D{{Key: name, Value: target}}
		elements, _ := doc.Elements()
		for _, e := range elements {
			if strings.HasPrefix(e.Key(), "$") {
				return
			}
			cmd = append(cmd, bson.E{Key: e.Key(), Value: e.Value()})
		}
		raw, err := bson.Marshal(append(cmd, bson.E{Key: "$db", Value: db}))
		if err != nil {
			return
		}
		m.CallOn(t.Context(), m.conn, raw)
		if diff := m.follow(t).difference(t); diff != "" {
			t.Errorf("%s: %s", bson.Raw(raw), diff)
		}
	})
}
