package cutover_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestClockGoneBack: options are restored after a process whose clock was ahead has begun to restore them: transactions are
// numbered by the clock, and the target refuses lower numbers.
func TestClockGoneBack(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	m := newMoved(t, target, "dr")
	ahead := mongo.NewSession(target, mongo.SessionID("cutover", "replicator", m.link), time.Now().Add(time.Hour).UnixMicro())
	must.Succeed(t, ahead.InTxn(t.Context(), true, func(txn *mongo.Txn) error {
		_, err := txn.Call(t.Context(), mongo.Command{DB: "replicator", Body: must.Get(bson.Marshal(bson.D{{Key: "find", Value: "links"}}))(t)})
		return err
	}))
	restored := must.Get(restore(t.Context(), m))(t)
	if got := m.indexes(); restored == 0 || got != restoredIndexes {
		t.Errorf("%d changes: %s", restored, got)
	}
}

func restore(ctx context.Context, m *moved) (changes int, err error) {
	changes, _, err = cutover.Restore(ctx, &cutover.ConvertConfig{Target: m.target, MetaDB: "replicator", Link: m.link})
	return changes, err
}
