package replay_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

const corpusDir = "../../../testdata/corpus"

// movingCopy is the recording whose data before was copied while writes went on.
const movingCopy = "fuzzy-clone"

// TestCorpus applies what a real server logged, and compares with what it had.
func TestCorpus(t *testing.T) {
	scenarios, err := corpus.Open(corpusDir)
	check(t, err)
	if len(scenarios) == 0 {
		t.Fatal("no recordings")
	}
	for i := range scenarios {
		s := &scenarios[i]
		t.Run(s.Name, func(t *testing.T) {
			entries, extra := recorded(t, s)
			before, err := s.Before()
			check(t, err)
			store := storage.New(storage.Options{OplogBytes: 1 << 30})
			load(t, store, before, extra)
			a, err := replay.NewWith(store, replay.Options{Tolerant: s.Name == movingCopy})
			check(t, err)
			for len(entries) > 0 { // in batches, as they come
				n := min(len(entries), 97)
				if _, err := a.Apply(entries[:n]); err != nil {
					t.Fatal(err)
				}
				entries = entries[n:]
			}
			after, err := s.After()
			check(t, err)
			read(t, store, func(r *storage.Reader) {
				got := throughJSON(t, snapshot(t, r.View(bson.Timestamp{})))
				for _, difference := range memstore.Diff(after, got) {
					t.Error(difference)
				}
				sameRecords(t, r)
			})
			check(t, a.Close())
		})
	}
}

// recorded are the entries of a recording, and the collections of the database
// config that they write to.
func recorded(t *testing.T, s *corpus.Scenario) (entries []bson.Raw, extra map[oplog.Namespace]oplog.UUID) {
	t.Helper()
	extra = map[oplog.Namespace]oplog.UUID{opwrite.TransactionsNS: {0xff, 1}}
	for e, err := range s.Oplog() {
		check(t, err)
		entries = append(entries, append(bson.Raw(nil), e.Raw...))
		if e.NS.DB() == "config" && e.Kind.IsCRUD() {
			extra[e.NS] = e.UI
		}
	}
	return entries, extra
}

// sameRecords checks the records of sessions against the newest entry of each.
func sameRecords(t *testing.T, r *storage.Reader) {
	t.Helper()
	newest := map[string]oplog.Entry{}
	for stored := range r.Oplog().From(bson.Timestamp{}) {
		e, err := oplog.ParseEntry(stored.Raw)
		check(t, err)
		if e.LSID != nil && e.Kind != oplog.KindNoop {
			newest[string(e.LSID)] = e
		}
	}
	coll, ok := r.View(bson.Timestamp{}).Collection(opwrite.TransactionsNS)
	if !ok || coll.Len() != len(newest) {
		t.Errorf("%d records of sessions, %d sessions have written", coll.Len(), len(newest))
	}
	for lsid, e := range newest {
		record, ok, err := opwrite.ReadRecord(r.View(bson.Timestamp{}), bson.Raw(lsid))
		if err != nil || !ok || record.LastWrite != e.OpTime || record.TxnNumber != e.TxnNumber || record.Wall != e.Wall {
			t.Errorf("record of %s: %+v %v %v, the newest entry is %s", bson.Raw(lsid), record, ok, err, e.OpTime)
		}
		if inTxn := rawHas(e.O, "applyOps") || rawHas(e.O, "commitTransaction"); inTxn != (record.State == opwrite.StateCommitted) {
			t.Errorf("record of %s: state %q after %s", bson.Raw(lsid), record.State, e.O)
		}
	}
}

func rawHas(doc bson.Raw, name string) bool {
	_, ok := rawbson.Lookup(doc, name)
	return ok
}
