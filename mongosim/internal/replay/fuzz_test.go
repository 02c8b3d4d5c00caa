package replay_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/oplog"
)

// FuzzApply takes any valid document as an entry, and as an applyOps command: it
// may be refused, but must not bring the member down.
func FuzzApply(f *testing.F) {
	scenarios, err := corpus.Open("../../../testdata/corpus")
	if err != nil {
		f.Fatal(err)
	}
	for i := range scenarios {
		n := 0
		for e, err := range scenarios[i].Oplog() {
			if err != nil {
				f.Fatal(err)
			}
			if n++; n%100 == 1 && len(e.Raw) < 1000 {
				f.Add([]byte(e.Raw))
				if e.Command == oplog.CommandApplyOps {
					f.Add([]byte(e.O))
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		raw := bson.Raw(data)
		if rawbson.Validate(raw) != nil {
			return
		}
		store := withCollection(t)
		for _, opts := range []replay.Options{{}, {Tolerant: true, TrimCapped: true}} {
			a, err := replay.New(store, opts)
			check(t, err)
			_, _ = a.Apply([]bson.Raw{raw}) // refused or not
			check(t, a.Close())
		}
		p, err := opwrite.New(opwrite.Config{
			Store: withCollection(t), Dialect: opwrite.Dialect{Version: "5.0.7"}, Now: time.Now,
			Term: func() (int64, error) { return 1, nil }, NewUUID: func() oplog.UUID { return oplog.UUID{5} },
		})
		check(t, err)
		_ = p.Write(func(b *opwrite.Batch) error { // refused or not
			_, err := replay.ApplyOps(b, raw)
			return err
		})
	})
}
