package corpus

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// recording is a recording to be written.
type recording struct {
	// meta is what meta.json says beyond the part of the log.
	meta map[string]any
	// before and after are left out if nil.
	before, after *data
	log           []bson.D
}

// data is a folder of data.
type data struct {
	catalog string
	docs    map[string][]bson.D // by namespace
}

func dataOf(catalog string, docs ...bson.D) *data {
	return &data{catalog, map[string][]bson.D{"d.c": docs}}
}

func (r *recording) write(t *testing.T) Scenario {
	t.Helper()
	dir := t.TempDir()
	documents := func(name string, docs []bson.D) {
		var data []byte
		for _, d := range docs {
			raw, err := bson.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			data = append(data, raw...)
		}
		writeFile(t, filepath.Join(dir, name), data)
	}
	for part, data := range map[string]*data{"before": r.before, "after": r.after} {
		if data == nil {
			continue
		}
		if err := os.Mkdir(filepath.Join(dir, part), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, part, catalogFile), []byte(data.catalog))
		for ns, docs := range data.docs {
			documents(filepath.Join(part, ns+".bson"), docs)
		}
	}
	var log []bson.D
	for i, e := range r.log {
		log = append(log, append(e,
			bson.E{Key: "ts", Value: bson.Timestamp{T: 1, I: uint32(i + 1)}}, bson.E{Key: "t", Value: int64(1)},
			bson.E{Key: "v", Value: int64(2)}, bson.E{Key: "wall", Value: bson.DateTime(1)}))
	}
	documents(logFile, log)
	meta := map[string]any{"entries": len(log), "first": "1:0", "last": fmt.Sprintf("1:%d", len(log))}
	maps.Copy(meta, r.meta)
	text, err := json.Marshal(meta)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, metaFile), text)
	all, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// record writes a recording of the collection d.c.
func record(t *testing.T, catalog string, before, after []bson.D, entries ...bson.D) Scenario {
	t.Helper()
	r := recording{before: dataOf(catalog, before...), after: dataOf(catalog, after...), log: entries}
	return r.write(t)
}

func uuid(n byte) []byte { return append(make([]byte, 15), n) }

// listed is an item of a catalog. Indexes are in JSON.
func listed(ns string, u byte, options string, indexes ...string) string {
	return fmt.Sprintf(`{"ns": %q, "type": "collection", "options": %s, "indexes": [%s],
		"uuid": {"$binary": {"base64": %q, "subType": "04"}}}`,
		ns, options, strings.Join(indexes, ","), base64.StdEncoding.EncodeToString(uuid(u)))
}

func catalogOf(items ...string) string { return "[" + strings.Join(items, ", ") + "]" }

const idIndex = `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`

// entry is an entry without its optime. A UUID of 0 is none.
func entry(op, ns string, u byte, o bson.D, more ...bson.E) bson.D {
	e := bson.D{{Key: "op", Value: op}, {Key: "ns", Value: ns}, {Key: "o", Value: o}}
	if u != 0 {
		e = append(e, bson.E{Key: "ui", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: uuid(u)}})
	}
	return append(e, more...)
}

func command(u byte, o ...bson.E) bson.D { return entry("c", "d.$cmd", u, o) }

func create(coll string, u byte, options ...bson.E) bson.D {
	index := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}
	return command(u, append(append(bson.D{{Key: "create", Value: coll}}, options...), bson.E{Key: "idIndex", Value: index})...)
}

func doc(id any, more ...bson.E) bson.D { return append(bson.D{{Key: "_id", Value: id}}, more...) }

func insert(id any, more ...bson.E) bson.D { return entry("i", "d.c", 1, doc(id, more...)) }

// change is a delta for the document with the _id 1.
func change(diff ...bson.E) bson.D {
	o := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D(diff)}}
	return entry("u", "d.c", 1, o, bson.E{Key: "o2", Value: doc(1)})
}
