package initialsync

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/origin"
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
	m := &entries{copy: c}
	changed := func(n uint32) bool {
		err := m.check(t.Context(), []oplog.Entry{testEntry(t, 1, "d.c", "x"), testEntry(t, n, versions, fcvDocument)})
		if err != nil && !errors.Is(err, ErrFCVChanged) {
			t.Error(err)
		}
		return err != nil
	}
	if changed(2) || !changed(3) || !changed(9) {
		t.Error("before Stop is known: a change at Begin counts, or one after it does not")
	}
	if m.check(t.Context(), []oplog.Entry{testEntry(t, 3, versions, "other"), testEntry(t, 3, "d.c", fcvDocument)}) != nil {
		t.Error("another document counts")
	}
	later := c
	later.Stop = testTime(5)
	m.advanced(&later)
	if !changed(5) || changed(6) {
		t.Error("once Stop is known: a change at Stop does not count, or one after it does")
	}
}

func TestVoid(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		ErrFCVChanged: true, fetcher.ErrLogLost: true, &origin.ChangedError{}: false, &NoMemberError{Err: errors.New("x")}: true,
		&inventory.DuplicateError{}: true, &origin.FCVError{}: false, ErrNoSpool: false,
	} {
		if Void(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}
