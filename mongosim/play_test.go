package mongosim

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/oplog"
)

var playedID = oplog.UUID{1, 2, 3}

// playedFrom is where the logs of these tests begin.
var playedFrom = oplog.OpTime{TS: bson.Timestamp{T: 1_700_000_000, I: 7}, Term: 3}

func playedSet(t *testing.T, moving bool) *Set {
	t.Helper()
	return quick(t, Options{TTLInterval: -1, Recording: &Recording{First: playedFrom, Moving: moving, Collections: []StoredCollection{{
		NS: "db.c", UUID: playedID, Options: emptyDocument,
		Indexes: []bson.Raw{
			marshal(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "_id", Value: int32(1)}}}, {Key: "name", Value: "_id_"}}),
			marshal(bson.D{{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "x", Value: int32(1)}}}, {Key: "name", Value: "x_1"}}),
		},
		Documents: []bson.Raw{
			marshal(bson.D{{Key: "_id", Value: int32(1)}, {Key: "x", Value: "old"}}),
			marshal(bson.D{{Key: "_id", Value: int32(1)}, {Key: "x", Value: "new"}}),
		},
	}}}})
}

// entryAt is an entry that many seconds after playedFrom.
func entryAt(seconds uint32, term int64, fields bson.D) bson.Raw {
	return marshal(append(fields,
		bson.E{Key: "ts", Value: bson.Timestamp{T: playedFrom.TS.T + seconds, I: 1}},
		bson.E{Key: "t", Value: term}, bson.E{Key: "v", Value: int64(2)},
		bson.E{Key: "wall", Value: bson.DateTime(int64(playedFrom.TS.T+seconds) * 1000)}))
}

func insertAt(seconds uint32, term int64, id int32) bson.Raw {
	return entryAt(seconds, term, bson.D{
		{Key: "op", Value: "i"},
		{Key: "ns", Value: "db.c"},
		{Key: "ui", Value: bson.Binary{Subtype: 4, Data: playedID[:]}},
		{Key: "o", Value: bson.D{{Key: "_id", Value: id}}},
	})
}

// batchOf are the documents of a reply with a cursor, and the cursor's id.
func batchOf(t *testing.T, reply bson.Raw, name string) (docs []bson.Raw, id int64) {
	t.Helper()
	succeed(t, refusal(reply))
	values, err := reply.Lookup("cursor", name).Array().Values()
	succeed(t, err)
	for _, v := range values {
		docs = append(docs, v.Document())
	}
	return docs, reply.Lookup("cursor", "id").Int64()
}

// TestPlay follows a log while it is played, through a change of terms.
func TestPlay(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := playedSet(t, false)
	m := s.Member(0)
	c := dial(t, m)
	reply := must[bson.Raw](t)(c.call(ctx, "local", bson.D{
		{Key: "find", Value: "oplog.rs"},
		{Key: "tailable", Value: true},
		{Key: "awaitData", Value: true},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}))
	docs, cursor := batchOf(t, reply, "firstBatch")
	if len(docs) != 1 || docs[0].Lookup("op").StringValue() != "n" {
		t.Fatalf("the log begins with %v", docs)
	}
	if ts, i := docs[0].Lookup("ts").Timestamp(); (bson.Timestamp{T: ts, I: i}) != playedFrom.TS || docs[0].Lookup("t").Int64() != playedFrom.Term {
		t.Errorf("the log begins with %v", docs[0])
	}
	for seconds, entries := range [][]bson.Raw{
		{insertAt(1, 3, 10), insertAt(2, 3, 11)},
		{entryAt(3, 5, bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{{Key: "msg", Value: "new primary"}}}}), insertAt(4, 5, 12)},
	} {
		succeed(t, m.Play(entries))
		reply := must[bson.Raw](t)(c.call(ctx, "local", bson.D{{Key: "getMore", Value: cursor}, {Key: "collection", Value: "oplog.rs"}, {Key: "maxTimeMS", Value: int32(10_000)}}))
		docs, _ := batchOf(t, reply, "nextBatch")
		if len(docs) != len(entries) {
			t.Fatalf("%d entries came, want %d", len(docs), len(entries))
		}
		for i := range docs {
			if string(docs[i]) != string(entries[i]) {
				t.Errorf("entry %d: %v, want %v", i, docs[i], entries[i])
			}
		}
		v := view(t, m)
		if want := int64(3 + 2*seconds); v.Term != want || v.Committed != v.Applied || !v.Writable {
			t.Errorf("%+v, want term %d and all of it committed", v, want)
		}
	}
	found, _ := batchOf(t, must[bson.Raw](t)(c.call(ctx, "db", bson.D{{Key: "find", Value: "c"}})), "firstBatch")
	if len(found) != 4 || found[0].Lookup("x").StringValue() != "new" {
		t.Errorf("the collection holds %v", found)
	}
	specs, _ := batchOf(t, must[bson.Raw](t)(c.call(ctx, "db", bson.D{{Key: "listIndexes", Value: "c"}})), "firstBatch")
	if len(specs) != 2 {
		t.Errorf("indexes %v", specs)
	}
}

// TestPlayTakesNoWrites: what clients send does not get into the log, nor does
// what a primary writes by itself.
func TestPlayTakesNoWrites(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := playedSet(t, false)
	c := dial(t, s.Member(0))
	for _, cmd := range []bson.D{
		{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 5}}}}},
		{{Key: "create", Value: "d"}},
		{{Key: "drop", Value: "c"}},
	} {
		_, err := c.call(ctx, "db", cmd)
		if e, ok := errors.AsType[*servererr.Error](err); !ok || e.Code != servererr.IllegalOperation {
			t.Errorf("%s: %v", cmd[0].Key, err)
		}
	}
	log, _ := batchOf(t, must[bson.Raw](t)(c.call(ctx, "local", bson.D{{Key: "find", Value: "oplog.rs"}})), "firstBatch")
	if len(log) != 1 {
		t.Errorf("the log has %v", log)
	}
}

func TestPlayRefuses(t *testing.T) {
	t.Parallel()
	s := playedSet(t, false)
	m := s.Member(0)
	succeed(t, m.Play([]bson.Raw{insertAt(1, 3, 10)}))
	if err := m.Play([]bson.Raw{insertAt(2, 3, 11), insertAt(1, 3, 12)}); !errors.Is(err, replay.ErrOutOfOrder) {
		t.Errorf("out of order: %v", err)
	}
	if v := view(t, m); v.Applied.TS.T != playedFrom.TS.T+2 || v.Committed != v.Applied {
		t.Errorf("the entry before the refused one: %+v", v)
	}
	if err := m.Play([]bson.Raw{insertAt(3, 3, 10)}); err == nil {
		t.Error("an insert of what is there was played")
	}
	if err := quick(t, Options{}).Member(0).Play([]bson.Raw{insertAt(1, 1, 1)}); err == nil {
		t.Error("an ordinary set plays a log")
	}
	succeed(t, m.Kill())
	if err := m.Play(nil); !errors.Is(err, ErrDown) {
		t.Errorf("while it is down: %v", err)
	}
	if err := m.Wipe(); !errors.Is(err, errRecorded) {
		t.Errorf("wipe: %v", err)
	}
}

// TestPlayOnAMovingCopy: entries meet data that is newer than they are.
func TestPlayOnAMovingCopy(t *testing.T) {
	t.Parallel()
	succeed(t, playedSet(t, true).Member(0).Play([]bson.Raw{insertAt(1, 3, 1)}))
}

// TestPlayAfterARestart continues where the log ended, in its term, with the
// transaction that was prepared.
func TestPlayAfterARestart(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := playedSet(t, false)
	m := s.Member(0)
	lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}, {Key: "uid", Value: bson.Binary{Data: make([]byte, 32)}}}
	inTxn := func(seconds uint32, prev bson.D, o bson.D) bson.Raw {
		return entryAt(seconds, 3, bson.D{
			{Key: "lsid", Value: lsid},
			{Key: "txnNumber", Value: int64(1)},
			{Key: "op", Value: "c"},
			{Key: "ns", Value: "admin.$cmd"},
			{Key: "o", Value: o},
			{Key: "prevOpTime", Value: prev},
		})
	}
	null := bson.D{{Key: "ts", Value: bson.Timestamp{}}, {Key: "t", Value: int64(-1)}}
	prepare := inTxn(1, null, bson.D{
		{Key: "applyOps", Value: bson.A{bson.D{
			{Key: "op", Value: "i"},
			{Key: "ns", Value: "db.c"},
			{Key: "ui", Value: bson.Binary{Subtype: 4, Data: playedID[:]}},
			{Key: "o", Value: bson.D{{Key: "_id", Value: int32(20)}}},
		}}},
		{Key: "prepare", Value: true},
	})
	succeed(t, m.Play([]bson.Raw{prepare}))
	succeed(t, m.Kill())
	succeed(t, m.Start())
	must[*Member](t)(s.AwaitPrimary(ctx))
	if v := view(t, m); v.Term != 3 || v.Applied.TS.T != playedFrom.TS.T+1 {
		t.Errorf("after a restart: %+v", v)
	}
	prepared := bson.Timestamp{T: playedFrom.TS.T + 1, I: 1}
	commit := inTxn(2, bson.D{{Key: "ts", Value: prepared}, {Key: "t", Value: int64(3)}},
		bson.D{{Key: "commitTransaction", Value: int32(1)}, {Key: "commitTimestamp", Value: prepared}})
	succeed(t, m.Play([]bson.Raw{commit}))
	found, _ := batchOf(t, must[bson.Raw](t)(dial(t, m).call(ctx, "db", bson.D{{Key: "find", Value: "c"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: 20}}}})), "firstBatch")
	if len(found) != 1 {
		t.Error("what the transaction inserted is not there")
	}
}

func TestRecordingOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"a set of one member, not 3": {Members: 3, Recording: &Recording{First: playedFrom}},
		"cannot begin at":            {Recording: &Recording{}},
		"without a UUID": {Recording: &Recording{First: playedFrom, Collections: []StoredCollection{
			{NS: "db.c", Options: emptyDocument},
		}}},
	} {
		if _, err := Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
