package replay_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestApplyOps compares replies with those of a real server where they are
// recorded (the recordings commands and apply-ops), and the logged entries.
func TestApplyOps(t *testing.T) {
	tests := []struct {
		name, cmd  string
		version    string
		reply, err string
		log        []string
	}{
		{
			name: "nothing", cmd: `{"applyOps": [], "$db": "admin"}`,
			reply: `{"applied":0,"results":[]}`, log: []string{`c admin.$cmd {"applyOps":[],"$db":"admin"}`},
		},
		{
			name: "unknown operation", cmd: `{"applyOps": [{"op": "x", "ns": "db.c", "o": {}}]}`,
			err: "Enumeration value 'x' for field 'OplogEntryBase.op' is not a valid value. (BadValue, code 2)",
		},
		{
			name: "insert twice", cmd: `{"applyOps": [{"op": "i", "ns": "db.c", "o": {"_id": 1}}, {"op": "i", "ns": "db.c", "o": {"_id": 1, "x": 2}}], "allowAtomic": false}`,
			reply: `{"applied":2,"results":[true,true]}`,
			log:   []string{`i db.c {"_id":1}`, `u db.c {"_id":1,"x":2}`},
		},
		{
			name: "update of nothing", cmd: `{"applyOps": [{"op": "u", "ns": "db.c", "o2": {"_id": 50}, "o": {"$v": 2, "diff": {"u": {"a": 1}}}}], "allowAtomic": false, "alwaysUpsert": false}`,
			reply: `{"applied":1,"results":[false]}`, err: "applyOps had one or more errors applying ops (UnknownError, code 8)",
		},
		{
			name: "upsert", cmd: `{"applyOps": [{"op": "u", "ns": "db.c", "o2": {"_id": 50}, "o": {"$v": 2, "diff": {"u": {"a": 1}}}}], "allowAtomic": false}`,
			reply: `{"applied":1,"results":[true]}`, log: []string{`i db.c {"_id":50,"a":1}`},
		},
		{
			name: "collection and document", cmd: `{"applyOps": [{"op": "c", "ns": "db.$cmd", "o": {"create": "new"}}, {"op": "i", "ns": "db.new", "o": {"_id": 1}}]}`,
			reply: `{"applied":2,"results":[true,true]}`, log: []string{`c db.$cmd {"create":"new"}`, `i db.new {"_id":1}`},
		},
		{
			name: "no collection", cmd: `{"applyOps": [{"op": "d", "ns": "db.no", "o": {"_id": 1}}, {"op": "i", "ns": "db.no", "o": {"_id": 1}}, {"op": "i", "ns": "db.c", "o": {"_id": 1}}]}`,
			reply: `{"applied":2,"code":26,"codeName":"NamespaceNotFound","errmsg":"cannot apply insert or update operation on a non-existent namespace db.no: { op: \"i\", ns: \"db.no\", o: { _id: 1 } }","results":[true,false]}`,
			err:   `cannot apply insert or update operation on a non-existent namespace db.no: { op: "i", ns: "db.no", o: { _id: 1 } } (NamespaceNotFound, code 26)`,
		},
		{
			name: "nested", cmd: `{"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"applyOps": [{"op": "d", "ns": "db.c", "o": {"_id": 77}}]}}]}`,
			reply: `{"applied":1,"results":[true]}`, log: []string{`c admin.$cmd {"applyOps":[{"op":"d","ns":"db.c","o":{"_id":77},"ui":U}]}`},
		},
		{
			name: "nested in 7.0", version: "7.0.5", cmd: `{"applyOps": [{"op": "c", "ns": "admin.$cmd", "o": {"applyOps": []}}]}`,
			err: "Cannot have nested applyOps commands (FailedToParse, code 9)",
		},
		{
			name: "index", cmd: `{"applyOps": [{"op": "c", "ns": "db.$cmd", "o": {"createIndexes": "c", "v": 2, "key": {"a": 1}, "name": "a_1"}}]}`,
			err: "The createIndexes operation is not supported in applyOps mode (CommandNotSupported, code 115)",
		},
		{
			name: "other commands", cmd: `{"applyOps": [{"op": "c", "ns": "db.$cmd", "o": {"collMod": "c", "validationLevel": "off"}}, {"op": "c", "ns": "db.$cmd", "o": {"renameCollection": "db.c", "to": "db.e"}},
				{"op": "n", "ns": "", "o": {}}, {"op": "c", "ns": "db.$cmd", "o": {"drop": "e"}}, {"op": "c", "ns": "db.$cmd", "o": {"drop": "e"}}]}`,
			reply: `{"applied":4,"code":26,"codeName":"NamespaceNotFound","errmsg":"ns not found: db.e","results":[true,true,true,false]}`,
			err:   "ns not found: db.e (NamespaceNotFound, code 26)",
			log:   []string{`c db.$cmd {"collMod":"c","validationLevel":"off"}`, `c db.$cmd {"renameCollection":"db.c","to":"db.e","stayTemp":false}`, `c db.$cmd {"drop":"e"}`},
		},
		{
			name: "database", cmd: `{"applyOps": [{"op": "c", "ns": "db.$cmd", "o": {"dropDatabase": 1}}]}`,
			reply: `{"applied":1,"results":[true]}`, log: []string{`c db.$cmd {"drop":"c"}`, `c db.$cmd {"dropDatabase":1}`},
		},
		{name: "prepared", cmd: `{"applyOps": [], "prepare": true}`, err: "applyOps command can't have 'prepare' field (BadValue, code 2)"},
		{name: "no o", cmd: `{"applyOps": [{"op": "i", "ns": "db.c"}]}`, err: "BSON field 'OplogEntryBase.o' is missing but a required field (Location40414, code 40414)"},
		{
			name: "all or nothing", cmd: `{"applyOps": [{"op": "i", "ns": "db.c", "o": {"_id": 5}}, {"op": "u", "ns": "db.c", "o2": {"_id": 6}, "o": {"_id": 6}}], "alwaysUpsert": false}`,
			reply: `{"applied":2,"code":218,"codeName":"UpdateOperationFailed","errmsg":"Failed to apply update: no document has the _id of { _id: 6 }","results":[false,false]}`,
			err:   "Failed to apply update: no document has the _id of { _id: 6 } (UpdateOperationFailed, code 218)",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store := withCollection(t)
			version := test.version
			if version == "" {
				version = "5.0.7"
			}
			p, err := opwrite.New(opwrite.Config{
				Store: store, Dialect: opwrite.Dialect{Version: version}, Now: time.Now,
				Term: func() (int64, error) { return 1, nil }, NewUUID: func() oplog.UUID { return oplog.UUID{5} },
			})
			check(t, err)
			var cmd, reply bson.Raw
			check(t, bson.UnmarshalExtJSON([]byte(test.cmd), false, &cmd))
			err = p.Write(func(b *opwrite.Batch) (err error) {
				reply, err = replay.ApplyOps(b, cmd)
				return err
			})
			if got := message(err); got != test.err {
				t.Errorf("error %q, want %q", got, test.err)
			}
			if got := relaxed(t, reply); got != test.reply {
				t.Errorf("reply %s, want %s", got, test.reply)
			}
			var log []string
			read(t, store, func(r *storage.Reader) {
				for stored := range r.Oplog().From(bson.Timestamp{}) {
					e, err := oplog.ParseEntry(stored.Raw)
					check(t, err)
					log = append(log, stored.Raw.Lookup("op").StringValue()+" "+string(e.NS)+" "+relaxed(t, e.O))
				}
			})
			if d := cmp.Diff(test.log, log); d != "" {
				t.Error(d)
			}
		})
	}
}

func message(err error) string {
	if refused, ok := errors.AsType[*servererr.Error](err); ok {
		return refused.Error()
	}
	if err != nil {
		return "not a server's: " + err.Error()
	}
	return ""
}

func relaxed(t *testing.T, doc bson.Raw) string {
	t.Helper()
	if doc == nil {
		return ""
	}
	text, err := bson.MarshalExtJSON(doc, false, false)
	check(t, err)
	const id = `{"$binary":{"base64":"CQAAAAAAAAAAAAAAAAAAAA==","subType":"04"}}`
	return strings.ReplaceAll(string(text), id, "U")
}

// TestApplyOpsConflict meets a transaction in its second operation: the command must
// not be tried again from the start, for its first one has been logged.
func TestApplyOpsConflict(t *testing.T) {
	store := withCollection(t)
	p := newPrimaryPath(t, store)
	check(t, p.Write(func(b *opwrite.Batch) error {
		lsid := document(t, bson.D{{Key: "id", Value: oplog.UUID{1}.Binary()}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}})
		txn := b.Begin(&opwrite.Session{LSID: lsid, TxnNumber: 1}, bson.Timestamp{})
		coll, _ := txn.View().Collection("db.c")
		_, err := txn.Insert(coll, []bson.Raw{document(t, bson.D{{Key: "_id", Value: int32(2)}})}, nil)
		check(t, err)
		insert := func(id int32) bson.D {
			return bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "db.c"}, {Key: "o", Value: bson.D{{Key: "_id", Value: id}}}}
		}
		_, err = replay.ApplyOps(b, document(t, bson.D{{Key: "applyOps", Value: bson.A{insert(2), insert(1)}}, {Key: "allowAtomic", Value: false}}))
		if !errors.Is(err, storage.ErrWriteConflict) {
			t.Errorf("in the first operation: %v", err)
		}
		reply, err := replay.ApplyOps(b, document(t, bson.D{{Key: "applyOps", Value: bson.A{insert(1), insert(2)}}, {Key: "allowAtomic", Value: false}}))
		if !errors.Is(err, servererr.New(servererr.WriteConflict, "")) || reply.Lookup("applied").Int32() != 2 {
			t.Errorf("in the second operation: %v, %v", reply, err)
		}
		return txn.Abort(b)
	}))
}

func newPrimaryPath(t *testing.T, store *storage.Store) *opwrite.Path {
	t.Helper()
	p, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: opwrite.Dialect{Version: "5.0.7"}, Host: "h:1", Term: func() (int64, error) { return 2, nil },
		Now: func() time.Time { return time.Unix(7, 0) }, NewUUID: func() oplog.UUID { return oplog.UUID{7} },
	})
	check(t, err)
	return p
}
