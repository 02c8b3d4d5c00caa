package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// testEntry is entry n of a log, on a collection.
func testEntry(t testing.TB, n uint32, ns oplog.Namespace, id string) oplog.Entry {
	t.Helper()
	doc := bsoncore.NewDocumentBuilder().AppendString("op", "i").AppendString("ns", string(ns)).
		AppendBinary("ui", bson.TypeBinaryUUID, []byte("0123456789abcdef")).
		AppendDocument("o", bsoncore.NewDocumentBuilder().AppendString("_id", id).Build()).
		AppendTimestamp("ts", testTime(n).TS.T, testTime(n).TS.I).AppendInt64("t", 1).AppendInt64("v", 2).AppendDateTime("wall", 1).Build()
	e, err := oplog.ParseEntry(bson.Raw(doc))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func testTime(n uint32) oplog.OpTime { return oplog.NewOpTime(1000+n, 1, 1) }

// TestMemberEntries: a change of the feature compatibility version between Begin and Stop
// makes a copy void, and nothing else does.
func TestMemberEntries(t *testing.T) {
	t.Parallel()
	c := checkpoint.Copy{Begin: testTime(2)}
	m := newMember(&c, time.Hour)
	changed := func(n uint32) bool {
		err := m.CheckEntries([]oplog.Entry{testEntry(t, 1, "d.c", "x"), testEntry(t, n, versions, fcvDocument)})
		if err != nil && !errors.Is(err, ErrFCVChanged) {
			t.Error(err)
		}
		return err != nil
	}
	if changed(2) || !changed(3) || !changed(9) {
		t.Error("before Stop is known: a change at Begin counts, or one after it does not")
	}
	if m.CheckEntries([]oplog.Entry{testEntry(t, 3, versions, "other"), testEntry(t, 3, "d.c", fcvDocument)}) != nil {
		t.Error("another document counts")
	}
	later := c
	later.Stop = testTime(5)
	if !m.of(&later) || !changed(5) || changed(6) {
		t.Error("once Stop is known: a change at Stop does not count, or one after it does")
	}
}

// TestMemberAway: a member may be unreachable for a time, counted from the first failure
// after it was last reached.
func TestMemberAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMember(&checkpoint.Copy{Host: "a:1", RBID: 7}, time.Hour)
		silent := errors.New("no answer")
		for range 2 {
			for range 7 {
				if err := m.Away(silent); !errors.Is(err, silent) || Void(err) {
					t.Errorf("within an hour: %v", err)
				}
				time.Sleep(10 * time.Minute)
			}
			if err := m.Away(silent); !errors.Is(err, silent) || !Void(err) {
				t.Errorf("after more than an hour: %v", err)
			}
			if err := m.Check(t.Context(), same{}); err != nil {
				t.Error(err)
			}
		}
		if m.CheckRBID(7) != nil || !Void(m.CheckRBID(8)) {
			t.Error("another rollback id does not count, or the same one does")
		}
	})
}

// same is a member with rollback id 7 and without an initial-sync id.
type same struct{}

func (same) Call(context.Context, mongo.Command) (bson.Raw, error) {
	cursor := bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.x"}, {Key: "firstBatch", Value: bson.A{}}}
	return bson.Marshal(bson.D{
		{Key: "setName", Value: "rs0"},
		{Key: "secondary", Value: true},
		{Key: "cursor", Value: cursor},
		{Key: "$oplogQueryData", Value: bson.D{{Key: "rbid", Value: 7}}},
		{Key: "ok", Value: 1},
	})
}

// TestMemberOf: a copy that has advanced has the same member, another one has another.
func TestMemberOf(t *testing.T) {
	t.Parallel()
	l := NewLog(LogConfig{SourceWait: time.Hour})
	c := checkpoint.Copy{Number: 1, Started: time.UnixMilli(1)}
	m, later, again, other := l.Member(&c), c, c, c
	later.Phase, again.Number, other.Started = checkpoint.Replaying, 2, time.UnixMilli(2)
	if l.Member(&later) != m {
		t.Error("it is forgotten for how long the member was unreachable")
	}
	if l.Member(&again) == m || l.Member(&other) == m {
		t.Error("another copy has the same member")
	}
}

func TestVoid(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		ErrFCVChanged: true, fetcher.ErrLogLost: true, &origin.ChangedError{}: true, &GoneError{Err: errors.New("x")}: true,
		&inventory.DuplicateError{}: true, &origin.FCVError{}: false, ErrNoSpool: false,
	} {
		if Void(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}
