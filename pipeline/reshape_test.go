package pipeline_test

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A scenario changes collections in every possible way, repeatedly, each time others.
// seed creates them, reshape changes them. P is the prefix of their names.

// seeded are the commands that create them, each with its database.
const seeded = `
shop {"insert": "Pdrop", "documents": DOCS}
shop {"insert": "Pren", "documents": DOCS}
shop {"insert": "Pfrom", "documents": DOCS}
shop {"insert": "Ponto", "documents": FEW}
shop {"insert": "Pleft", "documents": DOCS}
shop {"insert": "Pright", "documents": FEW}
shop {"insert": "Pone", "documents": DOCS}
shop {"insert": "Ptwo", "documents": FEW}
shop {"insert": "Pagain", "documents": DOCS}
shop {"insert": "Ptocapped", "documents": DOCS}
shop {"insert": "Pout", "documents": FEW}
shop {"insert": "Ptoview", "documents": DOCS}
shop {"create": "Pcapped", "capped": true, "size": 4096, "max": 20}
shop {"insert": "Pcapped", "documents": DOCS}
shop {"create": "Pmod", "validator": {"x": {"$exists": true}}}
shop {"insert": "Pmod", "documents": DOCS}
shop {"createIndexes": "Pmod", "indexes": [{"key": {"x": 1}, "name": "gone"}, {"key": {"n": 1}, "name": "n", "unique": true}, {"key": {"at": 1}, "name": "at", "expireAfterSeconds": 3600}]}
shop {"create": "Pview", "viewOn": "Pmod", "pipeline": []}
shop {"create": "Pviewdrop", "viewOn": "Pmod", "pipeline": []}
shop {"create": "Ptocoll", "viewOn": "Pmod", "pipeline": []}
shop {"create": "Pseries", "timeseries": {"timeField": "t", "metaField": "m"}}
shop {"insert": "Pseries", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "m": 1, "v": 1}]}
shop {"create": "Pseriesdrop", "timeseries": {"timeField": "t"}}
shop {"insert": "Pseriesdrop", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "v": 1}]}
Pdb {"insert": "a", "documents": DOCS}
Pdb {"create": "v", "viewOn": "a", "pipeline": []}
`

// reshaped are those that change them.
const reshaped = `
shop {"insert": "Pdrop", "documents": MORE}
shop {"insert": "Pagain", "documents": MORE}
shop {"insert": "Ptoview", "documents": MORE}
shop {"insert": "Pfrom", "documents": MORE}
shop {"insert": "Ponto", "documents": MORE}
shop {"delete": "Pleft", "deletes": [{"q": {"_id": 1}, "limit": 1}]}
Pdb {"insert": "a", "documents": MORE}
shop {"drop": "Pdrop"}
admin {"renameCollection": "shop.Pren", "to": "shop.Pnewname"}
shop {"insert": "Pren", "documents": FEW}
admin {"renameCollection": "shop.Pfrom", "to": "shop.Ponto", "dropTarget": true}
admin {"renameCollection": "shop.Pleft", "to": "shop.Pspare"}
admin {"renameCollection": "shop.Pright", "to": "shop.Pleft"}
admin {"renameCollection": "shop.Pspare", "to": "shop.Pright"}
admin {"renameCollection": "shop.Ptwo", "to": "shop.Pthree"}
admin {"renameCollection": "shop.Pone", "to": "shop.Ptwo"}
shop {"update": "Ptwo", "updates": [{"q": {"_id": 3}, "u": {"$set": {"chained": true}}}]}
shop {"drop": "Pagain"}
shop {"insert": "Pagain", "documents": FEW}
shop {"convertToCapped": "Ptocapped", "size": 100000}
shop {"create": "tmp.agg_out.P"}
shop {"insert": "tmp.agg_out.P", "documents": DOCS}
admin {"renameCollection": "shop.tmp.agg_out.P", "to": "shop.Pout", "dropTarget": true}
shop {"drop": "Ptoview"}
shop {"create": "Ptoview", "viewOn": "Pmod", "pipeline": [{"$match": {"x": 1}}]}
shop {"insert": "Pcapped", "documents": MORE}
shop {"collMod": "Pmod", "validator": {"x": {"$gte": 0}}, "validationAction": "warn"}
shop {"collMod": "Pmod", "index": {"name": "at", "expireAfterSeconds": 7200}}
shop {"dropIndexes": "Pmod", "index": "gone"}
shop {"createIndexes": "Pmod", "indexes": [{"key": {"x": 1, "n": 1}, "name": "made"}, {"key": {"x": -1}, "name": "gone"}]}
shop {"collMod": "Pmod", "index": {"name": "made", "hidden": true}}
shop {"insert": "Pmod", "documents": MORE}
shop {"collMod": "Pview", "viewOn": "Pright", "pipeline": []}
shop {"drop": "Pviewdrop"}
shop {"drop": "Ptocoll"}
shop {"insert": "Ptocoll", "documents": FEW}
shop {"create": "Pmade", "collation": {"locale": "de"}, "capped": true, "size": 4096}
shop {"insert": "Pmade", "documents": FEW}
shop {"insert": "Pseries", "documents": [{"t": {"$date": "2024-01-01T00:01:00Z"}, "m": 1, "v": 2}]}
shop {"drop": "Pseriesdrop"}
shop {"create": "Pseriesmade", "timeseries": {"timeField": "t"}}
shop {"insert": "Pseriesmade", "documents": [{"t": {"$date": "2024-01-01T00:00:00Z"}, "v": 1}]}
Pdb {"dropDatabase": 1}
Pdb {"insert": "a", "documents": FEW}
Pdb {"insert": "b", "documents": FEW}
`

// clustered are changes that only newer servers support: clustered collections, since 5.3, and $out into time series, since 7.0.3.
const clustered = `
shop {"create": "Pclustered", "clusteredIndex": {"key": {"_id": 1}, "unique": true}}
shop {"insert": "Pclustered", "documents": DOCS}
shop {"create": "system.buckets.tmp.agg_out.P", "timeseries": {"timeField": "t", "metaField": "m"}}
shop {"insert": "system.buckets.tmp.agg_out.P", "documents": [BUCKET]}
admin {"renameCollection": "shop.system.buckets.tmp.agg_out.P", "to": "shop.system.buckets.Pseries", "dropTarget": true}
shop {"create": "system.buckets.tmp.agg_out.P2", "timeseries": {"timeField": "t"}}
shop {"insert": "system.buckets.tmp.agg_out.P2", "documents": [BUCKET]}
admin {"renameCollection": "shop.system.buckets.tmp.agg_out.P2", "to": "shop.system.buckets.Pseriesout", "dropTarget": true}
shop {"create": "Pseriesout", "timeseries": {"timeField": "t"}}
shop {"insert": "Pseriesout", "documents": [{"t": {"$date": "2024-01-02T00:00:00Z"}, "v": 1}]}
`

// bucket is one of a time series, with one measurement.
const bucket = `{"_id": {"$oid": "6592008029c3f8c9f0a1b2c3"}, "control": {"version": 1, ` +
	`"min": {"t": {"$date": "2024-01-01T00:00:00Z"}, "v": 1}, "max": {"t": {"$date": "2024-01-01T00:00:00Z"}, "v": 1}}, ` +
	`"data": {"t": {"0": {"$date": "2024-01-01T00:00:00Z"}}, "v": {"0": 1}}}`

// reshape sends the commands in a text, for a prefix.
func (c *cluster) reshape(ctx context.Context, text, prefix string) error {
	for _, with := range []struct {
		name     string
		from, to int
	}{{"DOCS", 1, 20}, {"FEW", 1, 10}, {"MORE", 21, 40}} {
		var docs strings.Builder
		for id := with.from; id <= with.to; id++ {
			fmt.Fprintf(&docs, `,{"_id": %d, "x": %d, "n": %d, "filler": %q}`, id, id%7, id, strings.Repeat("x", 100))
		}
		text = strings.ReplaceAll(text, with.name, "["+docs.String()[1:]+"]")
	}
	text = strings.ReplaceAll(text, "BUCKET", bucket)
	for line := range strings.Lines(text) {
		db, body, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		for _, quote := range []string{`"`, `"shop.`, `agg_out.`, `buckets.`} {
			body = strings.ReplaceAll(body, quote+"P", quote+prefix)
		}
		var cmd bson.D
		if err := bson.UnmarshalExtJSON([]byte(body), false, &cmd); err != nil {
			return err
		}
		if err := c.write(ctx, strings.ReplaceAll(db, "P", prefix), cmd); err != nil {
			return fmt.Errorf("%.100s: %w", line, err)
		}
	}
	return nil
}
