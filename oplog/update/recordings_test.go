package update_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

const corpusDir = "../../testdata/corpus"

// replay keeps the documents of a recorded log, as needed to find the document that
// each update was applied to.
type replay struct {
	t        *testing.T
	docs     map[string]bson.Raw
	onUpdate func(pre, o, post bson.Raw)
}

func (r *replay) run(path string) {
	log, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	for len(log) > 4 {
		n := binary.LittleEndian.Uint32(log)
		r.entry(log[:n])
		log = log[n:]
	}
}

func (r *replay) entry(e bson.Raw) {
	op, _ := e.Lookup("op").StringValueOK()
	o, _ := e.Lookup("o").DocumentOK()
	key := func(id bson.RawValue) string {
		_, collection, ok := e.Lookup("ui").BinaryOK()
		if !ok {
			collection = e.Lookup("ns").Value
		}
		return string(collection) + id.String()
	}
	switch op {
	case "i":
		r.docs[key(o.Lookup("_id"))] = o
	case "d":
		delete(r.docs, key(o.Lookup("_id")))
	case "u":
		k := key(e.Lookup("o2", "_id"))
		pre := r.docs[k]
		if pre == nil {
			return
		}
		post, err := update.Apply(pre, o)
		if err != nil {
			r.t.Errorf("%v: %s to %s", err, e, pre)
			return
		}
		r.docs[k] = post
		r.onUpdate(pre, o, post)
	case "c":
		ops, ok := o.Lookup("applyOps").ArrayOK()
		if !ok {
			return
		}
		values, err := ops.Values()
		if err != nil {
			r.t.Fatal(err)
		}
		for _, v := range values {
			r.entry(v.Document())
		}
	}
}

// TestDiffAgainstRecordings computes the diff of every recorded update. The server
// computes one from two documents for pipeline updates only. For others it logs the
// changes made by the operators: an operator may set a field to its value, or
// replace a whole array or embedded document that is smaller than its diff. The
// logged delta must then lead to the same document. The second document is the
// pipeline's result, before the server moved _id to the front.
func TestDiffAgainstRecordings(t *testing.T) {
	scenarios, err := filepath.Glob(filepath.Join(corpusDir, "*", "oplog.bson"))
	if err != nil || len(scenarios) == 0 {
		t.Fatalf("no recordings in %s: %v", corpusDir, err)
	}
	total, equal, moved := 0, 0, 0
	for _, path := range scenarios {
		name := filepath.Base(filepath.Dir(path))
		t.Run(name, func(t *testing.T) {
			deltas, same, smaller, replacement := 0, 0, 0, 0
			r := replay{t: t, docs: map[string]bson.Raw{}}
			r.onUpdate = func(pre, o, post bson.Raw) {
				if err := rawbson.Validate(post); err != nil {
					t.Errorf("%v: %s", err, post)
				}
				form, err := update.Classify(o)
				if err != nil {
					t.Fatal(err)
				}
				if form != update.FormDelta {
					return
				}
				recorded, err := update.DeltaOf(o)
				if err != nil {
					t.Fatal(err)
				}
				deltas++
				d, err := update.ParseDelta(recorded)
				if err != nil {
					t.Fatal(err)
				}
				made, err := d.AppendApply(nil, pre)
				if err != nil {
					t.Fatal(err)
				}
				diff, ok := update.Diff(pre, made, update.EnvelopePadding)
				if !bytes.Equal(made, post) {
					moved++
					if !ok || !bytes.Equal(diff, recorded) {
						t.Errorf("_id moves: %s to %s: computed %s, recorded %s", pre, made, diff, recorded)
					}
				}
				switch {
				case ok && bytes.Equal(diff, recorded):
					same++
					return
				case !ok:
					replacement++
				case len(diff) < len(recorded):
					smaller++
				}
				if testing.Verbose() {
					t.Logf("pre      %s\nrecorded %s\ncomputed %s %t", pre, recorded, diff, ok)
				}
				if ok {
					got, err := update.ApplyDelta(pre, diff)
					if err != nil || !bytes.Equal(got, post) {
						t.Errorf("%v: %s to %s: got %s, want %s", err, diff, pre, got, post)
					}
				}
			}
			r.run(path)
			t.Logf("%d deltas: %d as recorded, %d computed smaller, %d would be replacements, %d otherwise",
				deltas, same, smaller, replacement, deltas-same-smaller-replacement)
			total += deltas
			equal += same
		})
	}
	t.Logf("%d deltas, %d as recorded", total, equal)
	if total < 100 || 4*equal < 3*total {
		t.Errorf("of %d recorded deltas only %d are computed alike", total, equal)
	}
	if moved < 200 {
		t.Errorf("%d recorded deltas move _id", moved)
	}
}
