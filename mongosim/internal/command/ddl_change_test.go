package command

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
)

func TestViewGraph(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.steps(t, []step{
		{`{create: "c", $db: "d"}`, 0, ""},
		{`{create: "onMissing", viewOn: "missing", $db: "d"}`, 0, ""},
		{`{create: "v1", viewOn: "c", $db: "d"}`, 0, ""},
		{`{create: "v2", viewOn: "v1", pipeline: [{$lookup: {from: "c", localField: "a", foreignField: "b", as: "x"}}], $db: "d"}`, 0, ""},
		{`{create: "self", viewOn: "self", $db: "d"}`, 5, "View cycle detected: d.self => d.self"},
		{`{collMod: "v1", viewOn: "v2", pipeline: [], $db: "d"}`, 5, "View cycle detected: d.v1 => d.v2 => d.v1"},
		{`{collMod: "v1", pipeline: [{$facet: {f: [{$unionWith: {coll: "v2", pipeline: []}}]}}], $db: "d"}`, 5, "View cycle detected: d.v1 => d.v2 => d.v1"},
		{`{collMod: "v1", pipeline: [{$unionWith: "v1"}], $db: "d"}`, 5, "View cycle detected: d.v1 => d.v1"},
		{`{create: "fr", viewOn: "v1", collation: {locale: "fr"}, $db: "d"}`, 167, "View d.fr has conflicting collation with view d.v1"},
		{`{create: "fr", viewOn: "c", collation: {locale: "fr"}, $db: "d"}`, 0, ""},
		{`{create: "missing", viewOn: "c", collation: {locale: "fr"}, $db: "d"}`, 167, "View d.missing has a collation that does not match the collation of view d.onMissing"},
		{`{create: "x", viewOn: "", $db: "d"}`, 2, "'viewOn' cannot be empty.'"},
		{`{create: "x", viewOn: "$c", $db: "d"}`, 73, "invalid name for 'viewOn': $c"},
		{`{create: "system.js", viewOn: "c", $db: "d"}`, 73, "View name cannot start with 'system.', which is reserved for system namespaces"},
		{`{create: "x", viewOn: "c", capped: true, size: 1, $db: "d"}`, 72, "…'viewOn'"},
		{`{create: "x", viewOn: "c", pipeline: [{$match: {}}, {$out: "y"}], $db: "d"}`, 167, "Invalid pipeline for view d.x :: caused by :: The aggregation stage $out in location 1 of the pipeline cannot be used in the view definition of d.x because it writes to disk"},
		{`{create: "x", viewOn: "c", pipeline: [1], $db: "d"}`, 14, "Each element of the 'pipeline' array must be an object"},
		{`{collMod: "v1", viewOn: 1, $db: "d"}`, 72, "'viewOn' option must be a string"},
		{`{collMod: "v1", pipeline: {}, $db: "d"}`, 72, "not a valid aggregation pipeline"},
		{`{collMod: "v1", validator: {}, $db: "d"}`, 72, "option not supported on a view: validator"},
		{`{collMod: "c", viewOn: "x", $db: "d"}`, 72, "'viewOn' option only supported on a view"},
		{`{collMod: "c", pipeline: [], $db: "d"}`, 72, "'pipeline' option only supported on a view"},
		// What stands below a view may go and come back, as whatever it likes.
		{`{drop: "c", $db: "d"}`, 0, ""},
		{`{create: "c", viewOn: "v2", $db: "d"}`, 5, "View cycle detected: d.c => d.v2 => d.c"},
		{`{createIndexes: "v1", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`, 166, "Cannot create indexes on a view"},
		{`{dropIndexes: "v1", index: "*", $db: "d"}`, 166, "Cannot drop indexes on view d.v1"},
		{`{convertToCapped: "v1", size: 1, $db: "d"}`, 166, "cannot convert a view to a capped collection"},
		{`{emptycapped: "v1", $db: "d"}`, 166, "emptycapped not supported on view: d.v1"},
	})
	m.want(t, `{drop: "v1", $db: "d"}`, `{ns: "d.v1", ok: 1.0}`)
	for i := range viewdef.MaxDepth + 1 {
		reply := m.run(t, fmt.Sprintf(`{create: "t%d", viewOn: "t%d", $db: "tower"}`, i, i-1))
		if code := codeOf(reply); (code != 0) != (i == viewdef.MaxDepth) {
			t.Fatalf("view %d: %s", i, reply)
		}
	}
	if reply := m.run(t, `{create: "t-1", viewOn: "below", $db: "tower"}`); codeOf(reply) != 165 {
		t.Errorf("a view below %d others: %s", viewdef.MaxDepth, reply)
	}
}

// TestDatabaseCase: a database is refused whose name differs in case only from that of one which is there, or which was emptied, but not dropped.
func TestDatabaseCase(t *testing.T) {
	newMember(t, "7.0").steps(t, []step{
		{`{create: "c", $db: "Shop"}`, 0, ""},
		{`{create: "c", $db: "shop"}`, 13297, "db already exists with different case already have: [Shop] trying to create [shop]"},
		{`{renameCollection: "Shop.c", to: "shop.c", $db: "admin"}`, 13297, "…different case"},
		{`{drop: "c", $db: "Shop"}`, 0, ""},
		{`{create: "c", $db: "shop"}`, 13297, "…different case"},
		{`{dropDatabase: 1, $db: "Shop"}`, 0, ""},
		{`{create: "c", $db: "shop"}`, 0, ""},
		{`{create: "c", $db: "Shop"}`, 13297, "…different case"},
	})
}

func TestDropAndRename(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.steps(t, []step{
		{`{insert: "c", documents: [{_id: 1, x: 1}], $db: "d"}`, 0, ""},
		{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1", unique: true}], $db: "d"}`, 0, ""},
		{`{create: "v", viewOn: "c", $db: "d"}`, 0, ""},
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{renameCollection: "d.v", to: "d.x", $db: "admin"}`, 166, "cannot rename view: d.v"},
		{`{renameCollection: "d.ts", to: "d.x", $db: "admin"}`, 166, "cannot rename view: d.ts"},
		{`{renameCollection: "d.c", to: "d.v", $db: "admin"}`, 48, "a view already exists with that name: d.v"},
		{`{renameCollection: "d.c", to: "d.v", dropTarget: true, $db: "admin"}`, 48, "a view already exists with that name: d.v"},
		{`{renameCollection: "d.c", to: "d.c", dropTarget: true, $db: "admin"}`, 20, "Can't rename a collection to itself"},
		{`{renameCollection: "d.c", to: "d.a$b", $db: "admin"}`, 73, "Invalid collection name: a$b"},
		{`{renameCollection: "d.c", $db: "admin"}`, 40414, "BSON field 'renameCollection.to' is missing but a required field"},
		{`{renameCollection: "d.c", to: 1, $db: "admin"}`, 14, "BSON field 'renameCollection.to' is the wrong type 'int', expected type 'string'"},
		{`{renameCollection: "d.c", to: "d.x", dropTarget: "y", $db: "admin"}`, 14, "…'renameCollection.dropTarget' is the wrong type 'string'"},
		{`{renameCollection: "d.c", to: "local.c", $db: "admin"}`, 20, "Cannot rename collections between a replicated and an unreplicated database"},
		{`{renameCollection: "d.system.views", to: "d.x", $db: "admin"}`, 20, "…renaming system collections is not allowed"},
		{`{drop: "system.views", $db: "d"}`, 0, ""},
		{`{drop: "system.version", $db: "admin"}`, 26, "ns not found"},
		{`{drop: "system.indexBuilds", $db: "config"}`, 20, "can't drop system collection config.system.indexBuilds"},
		{`{drop: "oplog.rs", $db: "local"}`, 5255000, "can't drop live oplog while replicating"},
		{`{dropDatabase: 2, $db: "d"}`, 5255100, "Have to pass 1 as 'dropDatabase' parameter"},
		{`{dropDatabase: 1, $db: "admin"}`, 20, "Dropping the 'admin' database is prohibited."},
		{`{convertToCapped: "c", size: 0, $db: "d"}`, 72, "Capped collection size must be greater than zero"},
		{`{convertToCapped: "c", size: "1", $db: "d"}`, 72, "Capped collection size must be greater than zero"},
		{`{emptycapped: "c", $db: "d"}`, 20, "collection must be capped"},
		{`{emptycapped: "x", $db: "d"}`, 26, "no such collection"},
	})
	n := len(m.entries(t))
	m.steps(t, []step{{`{renameCollection: "d.c", to: "e.c", $db: "admin"}`, 0, ""}})
	var names []string
	for _, o := range m.payloads(t, n) {
		names = append(names, strings.SplitN(o, `"`, 3)[1])
	}
	if diff := cmp.Diff([]string{"create", "createIndexes", "_id", "renameCollection", "drop"}, names); diff != "" {
		t.Error(diff)
	}
	m.steps(t, []step{{`{insert: "c", documents: [{_id: 2, x: 1}], $db: "e"}`, 0, ""}})
	m.want(t, `{count: "c", $db: "e"}`, `{n: 1, ok: 1.0}`)
}

// TestRenameBuckets: clients rename the buckets that a $out into a time series makes, and no others.
func TestRenameBuckets(t *testing.T) {
	t.Parallel()
	const refused = "Renaming system.buckets collections is not allowed"
	newMember(t, "6.0.5").steps(t, []step{
		{`{create: "tmp.agg_out.1", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{renameCollection: "d.system.buckets.tmp.agg_out.1", to: "d.system.buckets.x", $db: "admin"}`, 20, refused},
	})
	m := newMember(t, "7.0.15")
	m.steps(t, []step{
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{create: "system.buckets.tmp.agg_out.1", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{insert: "c", documents: [{_id: 1}], $db: "d"}`, 0, ""},
		{`{renameCollection: "d.system.buckets.ts", to: "d.system.buckets.x", $db: "admin"}`, 20, refused},
		{`{renameCollection: "d.c", to: "d.system.buckets.x", $db: "admin"}`, 20, "…renaming system collections is not allowed"},
		{`{renameCollection: "d.system.buckets.tmp.agg_out.1", to: "d.x", $db: "admin"}`, 20, "…to a namespace that is not timeseries buckets 'd.x'."},
		{`{renameCollection: "d.system.buckets.tmp.agg_out.1", to: "d.system.buckets.ts", $db: "admin"}`, 48, "target namespace exists"},
	})
	n := len(m.entries(t))
	m.steps(t, []step{
		{`{renameCollection: "d.system.buckets.tmp.agg_out.1", to: "d.system.buckets.ts", dropTarget: true, $db: "admin"}`, 0, ""},
		{`{create: "tmp.agg_out.2", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{renameCollection: "d.system.buckets.tmp.agg_out.2", to: "d.system.buckets.x", $db: "admin"}`, 0, ""},
		{`{create: "x", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{drop: "tmp.agg_out.2", $db: "d"}`, 0, ""},
		{`{insert: "x", documents: [{t: {$date: 0}}], $db: "d"}`, 0, ""},
	})
	var names []string
	for _, o := range m.payloads(t, n) {
		names = append(names, strings.SplitN(o, `"`, 3)[1])
	}
	if diff := cmp.Diff([]string{"renameCollection", "create", "_id", "renameCollection", "_id", "_id", "_id"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestCollMod(t *testing.T) {
	m := newMember(t, "6.0.5")
	m.steps(t, []step{
		{`{insert: "c", documents: [{_id: 1, x: 1, y: 1}, {_id: 2, x: 1, y: 2}], $db: "d"}`, 0, ""},
		{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}, {key: {y: 1}, name: "y_1"}, {key: {x: 1, y: 1}, name: "xy"}, {key: {y: 1}, name: "yfr", collation: {locale: "fr"}}], $db: "d"}`, 0, ""},
		{`{collMod: "c", index: 1, $db: "d"}`, 14, "BSON field 'collMod.index' is the wrong type 'int', expected type 'object'"},
		{`{collMod: "c", index: {}, $db: "d"}`, 72, "Must specify either index name or key pattern."},
		{`{collMod: "c", index: {name: "x_1", keyPattern: {x: 1}}, $db: "d"}`, 72, "Cannot specify both key pattern and name."},
		{`{collMod: "c", index: {name: "x_1"}, $db: "d"}`, 72, "no expireAfterSeconds, hidden, unique, or prepareUnique field"},
		{`{collMod: "c", index: {name: "x_1", bogus: 1}, $db: "d"}`, 40415, "BSON field 'collMod.index.bogus' is an unknown field."},
		{`{collMod: "c", index: {name: "x_1", hidden: "y"}, $db: "d"}`, 14, "…'collMod.index.hidden' is the wrong type 'string'"},
		{`{collMod: "c", index: {keyPattern: {z: 1}, hidden: true}, $db: "d"}`, 27, "cannot find index { z: 1 } for ns d.c"},
		{`{collMod: "c", index: {keyPattern: {y: 1.0}, hidden: true}, $db: "d"}`, 181, "…matches 2 indexes, must use index name."},
		{`{collMod: "c", index: {name: "_id_", hidden: true}, $db: "d"}`, 2, "can't hide _id index"},
		{`{collMod: "c", index: {name: "_id_", expireAfterSeconds: 1}, $db: "d"}`, 72, "the _id field does not support TTL indexes"},
		{`{collMod: "c", index: {name: "xy", expireAfterSeconds: 1}, $db: "d"}`, 72, "TTL indexes are single-field indexes, compound indexes do not support TTL"},
		{`{collMod: "c", index: {name: "x_1", expireAfterSeconds: -1}, $db: "d"}`, 72, "TTL index 'expireAfterSeconds' option cannot be less than 0"},
		{`{collMod: "c", index: {name: "x_1", unique: true}, $db: "d"}`, 72, "…without first setting prepareUnique"},
		{`{collMod: "c", index: {name: "x_1", unique: false}, $db: "d"}`, 2, "Cannot make index non-unique"},
		{`{collMod: "c", index: {name: "x_1", prepareUnique: true, hidden: true}, $db: "d"}`, 72, "prepareUnique cannot be combined with any other modification."},
		{`{collMod: "c", index: {name: "x_1", prepareUnique: true}, $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "x_1", unique: true}, $db: "d"}`, 359, "…Cannot convert the index to unique."},
		{`{createIndexes: "c", indexes: [{key: {u: 1, _id: 1}, name: "u_1", unique: true}], $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "u_1", prepareUnique: true}, $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "u_1", forceNonUnique: true}, $db: "d"}`, 40415, "BSON field 'collMod.index.forceNonUnique' is an unknown field."},
		{`{collMod: "c", index: {name: "u_1", prepareUnique: true, hidden: false}, $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "_id_", prepareUnique: true}, $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "_id_", unique: true}, $db: "d"}`, 0, ""},
		{`{collMod: "c", validationLevel: "x", $db: "d"}`, 2, "Enumeration value 'x' for field 'collMod.validationLevel' is not a valid value."},
		{`{collMod: "c", validator: {$bogus: 1}, $db: "d"}`, 2, "…$bogus"},
		{`{collMod: "c", expireAfterSeconds: 1, $db: "d"}`, 72, "'expireAfterSeconds' option is only supported on collections clustered by _id"},
		{`{collMod: "c", timeseries: {granularity: "hours"}, $db: "d"}`, 72, "option only supported on a time-series collection: timeseries"},
		{`{collMod: "c", cappedSize: 1000, $db: "d"}`, 72, "option only supported on a capped collection: cappedSize"},
		{`{collMod: "c", dryRun: true, $db: "d"}`, 238, "collMod with dryRun is not implemented here"},
	})
	m.want(t, `{collMod: "c", index: {keyPattern: {x: 1.0}, expireAfterSeconds: 5.5}, $db: "d"}`, `{expireAfterSeconds_new: 5, ok: 1.0}`)
	m.want(t, `{collMod: "c", index: {name: "x_1", expireAfterSeconds: 7, hidden: false}, $db: "d"}`, `{expireAfterSeconds_old: 5, expireAfterSeconds_new: 7, ok: 1.0}`)
	n := len(m.entries(t))
	m.want(t, `{collMod: "c", index: {name: "x_1", hidden: false}, $db: "d"}`, ok)
	m.want(t, `{collMod: "c", $db: "d"}`, ok)
	m.want(t, `{collMod: "c", index: {name: "u_1", prepareUnique: true}, $db: "d"}`, ok)
	if diff := cmp.Diff([]string{`{"collMod": "c"}`, `{"collMod": "c"}`, `{"collMod": "c"}`}, m.payloads(t, n)); diff != "" {
		t.Error(diff)
	}
	newMember(t, "5.0.7").steps(t, []step{
		{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "x_1", unique: true}, $db: "d"}`, 40415, "BSON field 'collMod.index.unique' is an unknown field."},
		{`{collMod: "c", index: {name: "x_1", expireAfterSeconds: 1}, $db: "d"}`, 72, "no expireAfterSeconds field to update"},
		{`{collMod: "c", changeStreamPreAndPostImages: {enabled: true}, $db: "d"}`, 40415, "BSON field 'collMod.changeStreamPreAndPostImages' is an unknown field."},
	})
}

func TestTimeseriesDDL(t *testing.T) {
	m := newMember(t, "5.0.7")
	m.steps(t, []step{
		{`{create: "ts", timeseries: {}, $db: "d"}`, 40414, "BSON field 'create.timeseries.timeField' is missing but a required field"},
		{`{create: "ts", timeseries: {timeField: "a.b"}, $db: "d"}`, 72, "d.ts: 'timeField' must be a top-level field and not contain a '.'"},
		{`{create: "ts", timeseries: {timeField: "t", metaField: "_id"}, $db: "d"}`, 72, `'metaField' cannot be "_id"`},
		{`{create: "ts", timeseries: {timeField: "t", metaField: "t"}, $db: "d"}`, 72, "'metaField' cannot be the same as 'timeField'"},
		{`{create: "ts", timeseries: {timeField: "t", granularity: "days"}, $db: "d"}`, 2, "Enumeration value 'days' for field 'create.timeseries.granularity' is not a valid value."},
		{`{create: "ts", timeseries: {timeField: "t", bogus: 1}, $db: "d"}`, 40415, "BSON field 'create.timeseries.bogus' is an unknown field."},
		{`{create: "ts", timeseries: {timeField: "t", bucketMaxSpanSeconds: 5}, $db: "d"}`, 5510500, "…than the default of 3600"},
		{`{create: "ts", timeseries: {timeField: "t"}, validator: {}, $db: "d"}`, 72, "d.ts: 'timeseries' is not allowed with 'validator'"},
		{`{create: "ts", timeseries: {timeField: "t"}, expireAfterSeconds: -1, $db: "d"}`, 72, "…cannot be less than 0"},
		{`{create: "ts", timeseries: {timeField: "t", metaField: "m"}, expireAfterSeconds: 60, $db: "d"}`, 0, ""},
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 48, "A timeseries collection already exists. NS: d.ts"},
		{`{create: "ts", $db: "d"}`, 48, "Collection already exists. NS: d.ts"},
		{`{collMod: "ts", validator: {}, $db: "d"}`, 72, "option not supported on a time-series collection: validator"},
		{`{collMod: "ts", timeseries: {granularity: "years"}, $db: "d"}`, 2, "…'years' for field 'collMod.timeseries.granularity'"},
		{`{collMod: "ts", expireAfterSeconds: "never", $db: "d"}`, 72, "…Got: 'never'. Accepted value is 'off'"},
	})
	n := len(m.entries(t))
	m.steps(t, []step{
		{`{collMod: "ts", timeseries: {granularity: "minutes"}, $db: "d"}`, 0, ""},
		{`{collMod: "ts", timeseries: {granularity: "seconds"}, $db: "d"}`, 72, "…Invalid transition for timeseries.granularity."},
		{`{collMod: "ts", expireAfterSeconds: "off", $db: "d"}`, 0, ""},
	})
	want := []string{
		`{"collMod": "system.buckets.ts","timeseries": {"granularity": "minutes"}}`,
		`{"_id": "d.ts","viewOn": "system.buckets.ts","pipeline": [{"$_internalUnpackBucket": {"timeField": "t","metaField": "m","bucketMaxSpanSeconds": {"$numberInt":"86400"},"exclude": []}}]}`,
		`{"collMod": "system.buckets.ts","expireAfterSeconds": "off"}`,
	}
	if diff := cmp.Diff(want, m.payloads(t, n)); diff != "" {
		t.Error(diff)
	}
	n = len(m.entries(t))
	m.steps(t, []step{{`{drop: "ts", $db: "d"}`, 0, ""}, {`{drop: "ts", $db: "d"}`, 26, "ns not found"}})
	if diff := cmp.Diff([]string{`{"drop": "system.buckets.ts"}`, `{"_id": "d.ts"}`}, m.payloads(t, n)); diff != "" {
		t.Error(diff)
	}
	// Buckets without a view, as after a lost one, are used again if they fit.
	m.steps(t, []step{
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
		{`{delete: "system.views", deletes: [{q: {_id: "d.ts"}, limit: 1}], $db: "d"}`, 0, ""},
		{`{create: "ts", timeseries: {timeField: "u"}, $db: "d"}`, 48, "…Bucket Collection already exists. NS: d.system.buckets.ts. UUID: "},
		{`{create: "ts", timeseries: {timeField: "t"}, $db: "d"}`, 0, ""},
	})
}

// TestForceNonUnique: since 6.1, a unique index becomes one that is not.
func TestForceNonUnique(t *testing.T) {
	m := newMember(t, "7.0.2")
	m.steps(t, []step{
		{`{createIndexes: "c", indexes: [{key: {u: 1}, name: "u_1", unique: true}], $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "u_1", forceNonUnique: false}, $db: "d"}`, 2, "'forceNonUnique: false' is not supported"},
		{`{collMod: "c", index: {name: "u_1", forceNonUnique: true, unique: true}, $db: "d"}`, 72, "…'unique' and 'forceNonUnique' options at the same time"},
	})
	n := len(m.entries(t))
	m.steps(t, []step{
		{`{collMod: "c", index: {name: "u_1", forceNonUnique: true}, $db: "d"}`, 0, ""},
		{`{insert: "c", documents: [{_id: 1, u: 1}, {_id: 2, u: 1}], $db: "d"}`, 0, ""},
		{`{collMod: "c", index: {name: "u_1", forceNonUnique: true}, $db: "d"}`, 0, ""},
	})
	if got, want := m.payloads(t, n)[0], `{"collMod": "c","index": {"name": "u_1","forceNonUnique": true}}`; got != want {
		t.Errorf("logged %s, want %s", got, want)
	}
}

// TestCollModBefore6: 4.4 ignores the fields of an index that it does not know, 5.0 refuses them.
func TestCollModBefore6(t *testing.T) {
	for version, steps := range map[string][]step{
		"4.4.29": {
			{`{collMod: "c", index: {name: "x_1", unique: true}, $db: "d"}`, 72, "no expireAfterSeconds or hidden field"},
			{`{collMod: "c", index: {name: "x_1", prepareUnique: true, hidden: true, bogus: 1}, $db: "d"}`, 0, ""},
		},
		"5.0.7": {
			{`{collMod: "c", index: {name: "x_1", unique: true, hidden: true}, $db: "d"}`, 40415, "BSON field 'collMod.index.unique' is an unknown field."},
		},
	} {
		m := newMember(t, version)
		m.steps(t, []step{{`{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`, 0, ""}})
		m.steps(t, steps)
	}
}
