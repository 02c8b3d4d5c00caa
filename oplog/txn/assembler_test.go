package txn

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func TestAdd(t *testing.T) {
	tests := []struct {
		name string
		log  []line
		want []string
	}{{
		name: "what is no transaction passes",
		log: []line{
			{at: 1, prev: none, op: "i1"},
			{at: 2, prev: null, session: 1, number: 1, op: "u1"}, // retryable writes link too
			{at: 3, prev: 2, session: 1, number: 1, op: "d1"},
			{at: 4, prev: none, op: "n1"},
			{at: 5, prev: none, op: "c1"},
		},
		want: []string{"pass", "pass", "pass", "pass", "pass"},
	}, {
		name: "a user's applyOps upserts",
		log:  []line{{at: 1, prev: none, cmd: list(ops("i1 u2 d3 n4"))}},
		want: []string{"committed applyOps i1 u2+ d3 n4"},
	}, {
		name: "a user's applyOps that must not upsert",
		log:  []line{{at: 1, prev: none, cmd: list(ops("i1 u2"), alwaysUpsert(false))}},
		want: []string{"committed applyOps i1 u2"},
	}, {
		name: "a user's count means nothing",
		log:  []line{{at: 1, prev: none, cmd: list(ops("i1"), count(7))}},
		want: []string{"committed applyOps i1"},
	}, {
		name: "a session without a transaction number is no transaction",
		log:  []line{{at: 1, prev: null, session: 1, noTxn: true, cmd: list(ops("u1"))}},
		want: []string{"committed applyOps u1+"},
	}, {
		name: "empty groups",
		log:  []line{{at: 1, prev: none, cmd: list(nil)}, part(2, null, 1, 1, list(nil))},
		want: []string{"committed applyOps", "committed transaction"},
	}, {
		name: "nested applyOps, each with its own alwaysUpsert",
		log: []line{{at: 1, prev: none, cmd: listOf([]bsoncore.Document{
			element("u1"),
			nested(listOf([]bsoncore.Document{element("u2"), nested(list(ops("c3 u4"))), element("u5")}, alwaysUpsert(false))),
			nested(list(nil)), element("u6"),
		})}},
		want: []string{"committed applyOps u1+ u2 c3 u4+ u5 u6+"},
	}, {
		name: "ten levels of nesting",
		log:  []line{{at: 1, prev: none, cmd: nest(10, list(ops("i1")))}},
		want: []string{"committed applyOps i1"},
	}, {
		name: "retryable writes in groups are linked to each other and no chain",
		log: []line{
			{at: 1, prev: null, session: 1, number: 1, multi: 1, cmd: list(ops("i1 u2"))},
			{at: 2, prev: 1, session: 1, number: 1, multi: 1, cmd: list(ops("i3"))},
		},
		want: []string{"committed applyOps i1 u2", "committed applyOps i3"},
	}, {
		name: "a chain of grouped writes without a session",
		log: []line{
			{at: 1, prev: null, cmd: list(ops("d1 u1"), partial)},
			{at: 2, prev: null, cmd: list(ops("d2"), partial)},
			{at: 3, prev: 1, cmd: list(ops("d3"), count(3))},
			{at: 4, prev: 2, cmd: list(ops("d4"), count(2))},
		},
		want: []string{"partial", "partial", "committed applyOps d1 u1+ d3", "committed applyOps d2 d4"},
	}, {
		name: "grouped writes without a session that link to each other, and are no chain",
		log: []line{
			{at: 1, prev: null, cmd: list(ops("i1 u1"))},
			{at: 2, prev: none, op: "i9"},
			{at: 3, prev: 1, cmd: list(ops("i2"))},
			{at: 4, prev: 3, cmd: list(ops("i3"))},
		},
		want: []string{"committed applyOps i1 u1+", "pass", "committed applyOps i2", "committed applyOps i3"},
	}, {
		name: "chains of one session at once are told apart by their links",
		log: []line{
			part(1, null, 1, 1, list(ops("i1"), partial)), part(2, null, 1, 1, list(ops("i2"), partial)),
			part(3, 1, 1, 1, list(ops("i3"), count(2))), part(4, 2, 1, 1, list(ops("i4"), count(2))),
		},
		want: []string{"partial", "partial", "committed transaction i1 i3", "committed transaction i2 i4"},
	}, {
		name: "a session that goes on drops what it left open",
		log: []line{
			part(1, null, 1, 5, list(ops("i1"), partial)), part(2, null, 2, 5, list(ops("i2"), partial)),
			{at: 3, prev: null, session: 1, number: 4, op: "i3"},                  // older: no reason
			{at: 4, prev: null, session: 1, number: 5, op: "i3"},                  // the same: no reason
			{at: 5, prev: none, session: 1, op: "i3", noTxn: true},                // no transaction
			{at: 6, prev: null, session: 1, number: 6, op: "i3"},                  // newer
			part(7, 2, 2, 5, list(ops("i4"), count(2))),                           // another session
			part(8, null, 1, 7, list(ops("i5"), partial)),                         // left open again, twice
			part(9, null, 1, 7, list(ops("i6"), partial)),                         //
			part(10, null, 1, 8, list(ops("i7"))),                                 // a transaction that is newer
			{at: 11, prev: null, session: 1, number: 9, op: "i8"},                 // nothing left
			part(12, null, 1, 9, list(ops("i9"), prepare)),                        // prepared
			{at: 13, prev: null, session: 1, number: 10, op: "i10", noTxn: false}, // never dropped
			part(14, 12, 1, 9, commitAt(12)),
		},
		want: []string{
			"partial", "partial", "pass", "pass", "pass", "pass, dropped 1", "committed transaction i2 i4",
			"partial", "partial", "committed transaction i7, dropped 2", "pass", "partial", "pass", "committed transaction i9",
		},
	}, {
		name: "aborts of transactions that logged nothing",
		log: []line{
			part(2, null, 1, 1, abortCmd), part(3, none, 1, 2, abortCmd), part(4, 1, 1, 3, abortCmd),
			{at: 5, prev: null, cmd: abortCmd},
		},
		want: []string{"aborted 0 parts", "aborted 0 parts", "aborted 0 parts", "aborted 0 parts"},
	}, {
		name: "an abort without a link ends its session's transaction",
		log: []line{
			part(1, null, 1, 1, list(ops("i1"), partial)), part(2, null, 2, 1, list(ops("i2"), partial)),
			part(3, 1, 1, 1, list(ops("i3"), partial)), part(4, null, 1, 1, abortCmd),
			part(5, 2, 2, 1, list(ops("i4"), count(2))),
		},
		want: []string{"partial", "partial", "partial", "aborted 2 parts", "committed transaction i2 i4"},
	}, {
		name: "an abort of another number leaves the transaction alone",
		log: []line{
			part(1, null, 1, 2, list(ops("i1"), partial)), part(2, null, 1, 1, abortCmd), part(3, 1, 1, 2, list(ops("i2"), count(2))),
		},
		want: []string{"partial", "aborted 0 parts", "committed transaction i1 i2"},
	}, {
		name: "a transaction with commands inside",
		log:  []line{part(1, null, 1, 1, list(ops("c1 i1")))},
		want: []string{"committed transaction c1 i1"},
	}, {
		name: "a count that is not needed",
		log: []line{
			part(1, null, 1, 1, list(ops("i1 i2"), count(2))), part(2, null, 1, 2, list(ops("i3"), prepare, count(1))),
			part(3, 2, 1, 2, commitAt(2)),
		},
		want: []string{"committed transaction i1 i2", "partial", "committed transaction i3"},
	}, {
		name: "a chain over a change of term",
		log: []line{
			part(1, null, 1, 1, list(ops("i1"), prepare)),
			{at: 2, term: 2, prev: none, op: "n1"},
			{at: 3, term: 2, prev: 1, session: 1, number: 1, cmd: commitAt(1)},
		},
		want: []string{"partial", "pass", "committed transaction i1"},
	}, {
		name: "a commit timestamp between prepare and commit",
		log:  []line{part(1, null, 1, 1, list(ops("i1"), prepare)), part(5, 1, 1, 1, commitAt(5))},
		want: []string{"partial", "committed transaction i1"},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, memory := range []int64{0, 1} {
				if diff := cmp.Diff(tt.want, play(t, Config{MemoryBytes: memory}, tt.log)); diff != "" {
					t.Errorf("with %d bytes of memory (-want +got):\n%s", memory, diff)
				}
			}
		})
	}
}

// nest wraps a command into this number of applyOps levels.
func nest(levels int, cmd bson.Raw) bson.Raw {
	for range levels {
		cmd = listOf([]bsoncore.Document{nested(cmd)})
	}
	return cmd
}

func TestAddErrors(t *testing.T) {
	open := []line{part(1, null, 1, 1, list(ops("i1"), partial)), part(2, 1, 1, 1, list(ops("i2"), partial))}
	prepared := []line{part(1, null, 1, 1, list(ops("i1"), prepare))}
	badOp := bsoncore.NewDocumentBuilder().AppendString("op", "x").AppendString("ns", "db.c").
		AppendDocument("o", element("i1")).Build()
	commitOp := bsoncore.NewDocumentBuilder().AppendString("op", "c").AppendString("ns", "admin.$cmd").
		AppendDocument("o", bsoncore.Document(commitAt(1))).Build()
	broken := func(err error) bool {
		_, ok := errors.AsType[*BrokenChainError](err)
		return ok
	}
	is := func(target error) func(error) bool {
		return func(err error) bool {
			_, ok := errors.AsType[*oplog.EntryError](err)
			return ok && errors.Is(err, target)
		}
	}
	badField := is(oplog.ErrBadField)
	tests := []struct {
		name string
		log  []line
		add  line
		ok   func(error) bool
		want string // in the message
	}{
		{"part of an unknown chain", open, part(3, 9, 1, 1, list(nil, partial)), broken, "1000:3 t1: it continues 1000:9 t1"},
		{"end of an unknown chain", open, part(3, 9, 1, 1, list(nil)), broken, "continues"},
		{"prepare of an unknown chain", open, part(3, 9, 1, 1, list(nil, prepare)), broken, "continues"},
		{"commit of a later entry", open, part(3, 9, 1, 1, commitAt(3)), badField, "earlier than the prepared entry"},
		{"commit of an unknown chain", nil, part(3, 2, 1, 1, commitAt(3)), broken, "continues"},
		{"link to a part that is not the last", open, part(3, 1, 1, 1, list(nil)), broken, "continues 1000:1"},
		{"link to the same timestamp in another term", nil, line{at: 3, prev: 3, term: 2, session: 1, number: 1, cmd: list(nil)}, broken, "continues"},
		{"link to a part's timestamp in another term", open, line{at: 3, prev: 2, prevT: 2, session: 1, number: 1, cmd: list(nil)}, broken, "continues 1000:2 t2"},
		{"link to itself", nil, part(3, 3, 1, 1, list(nil, partial)), broken, "continues"},
		{"another session", open, part(3, 2, 2, 1, list(nil)), badField, "another session"},
		{"another number", open, part(3, 2, 1, 0, list(nil)), badField, "another session"},
		{"no session", open, line{at: 3, prev: 2, cmd: list(nil)}, badField, "another session"},
		{"abort by another session", open, part(3, 2, 2, 1, abortCmd), badField, "another session"},
		{"abort of a prepared transaction by another link", prepared, part(3, null, 1, 1, abortCmd), badField, "the abort of 1000:1 t1, prepared"},
		{"commit by another session", prepared, part(3, 1, 2, 1, commitAt(1)), badField, "another session"},
		{"count too high", open, part(3, 2, 1, 1, list(ops("i3"), count(4))), badField, "have 3 operations"},
		{"count too low", open, part(3, 2, 1, 1, list(ops("i3"), count(2))), badField, "o.count"},
		{"count zero", open, part(3, 2, 1, 1, list(ops("i3"), count(0))), badField, "o.count"},
		{"count of a prepared transaction", open, part(3, 2, 1, 1, list(nil, prepare, count(3))), badField, "o.count"},
		{"no count", open, part(3, 2, 1, 1, list(ops("i3"))), is(oplog.ErrMissingField), "1000:3 t1: o.count: missing"},
		{"no count of a prepared transaction", open, part(3, 2, 1, 1, list(nil, prepare)), is(oplog.ErrMissingField), "o.count"},
		{"no count without a session", []line{{at: 1, prev: null, cmd: list(nil, partial)}}, line{at: 2, prev: 1, cmd: list(nil)}, is(oplog.ErrMissingField), "o.count"},
		{"end of an unknown chain without a session", nil, line{at: 3, prev: 2, cmd: list(ops("i3"), count(2))}, broken, "continues"},
		{"part of an unknown chain without a session", nil, line{at: 3, prev: 2, cmd: list(ops("i3"), partial)}, broken, "continues"},
		{"prepare of an unknown chain without a session", nil, line{at: 3, prev: 2, cmd: list(ops("i3"), prepare)}, broken, "continues"},
		{"group of a session with an unknown link", nil, line{at: 3, prev: 2, session: 1, noTxn: true, cmd: list(ops("i3"))}, broken, "continues"},
		{"count twice", open, part(3, 2, 1, 1, list(ops("i3"), count(3), count(9))), badField, "o.count"},
		{"count of a single prepared entry", nil, part(3, null, 1, 1, list(ops("i3"), prepare, count(2))), badField, "o.count"},
		{"count of a single entry", nil, part(3, null, 1, 1, list(ops("i3"), count(2))), badField, "o.count"},
		{"part after prepare", prepared, part(3, 1, 1, 1, list(nil, partial)), badField, "is prepared"},
		{"end after prepare", prepared, part(3, 1, 1, 1, list(nil)), badField, "is prepared"},
		{"prepare twice", prepared, part(3, 1, 1, 1, list(nil, prepare)), badField, "is prepared"},
		{"commit of what is not prepared", open, part(3, 2, 1, 1, commitAt(3)), badField, "not prepared"},
		{"commit of nothing", nil, part(3, null, 1, 1, commitAt(3)), badField, "no transaction"},
		{"commit without a link", nil, part(3, none, 1, 1, commitAt(3)), badField, "no transaction"},
		{"commit in the future", prepared, part(3, 1, 1, 1, commitAt(4)), badField, "later than its own entry"},
		{"commit before prepare", []line{part(2, null, 1, 1, list(nil, prepare))}, part(3, 2, 1, 1, commitAt(1)), badField, "earlier"},
		{
			"commit without a timestamp", prepared,
			part(3, 1, 1, 1, bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("commitTransaction", 1).Build())),
			is(oplog.ErrMissingField), "o.commitTimestamp",
		},
		{"partial without a link", nil, part(3, none, 1, 1, list(nil, partial)), badField, "does not link"},
		{"prepare without a link", nil, part(3, none, 1, 1, list(nil, prepare)), badField, "does not link"},
		{"partial of separate writes", nil, line{at: 3, prev: null, multi: 1, cmd: list(nil, partial)}, badField, "does not link"},
		{"partial and prepared", nil, part(3, null, 1, 1, list(nil, partial, prepare)), badField, "at once"},
		{"bad operation in a single entry", nil, part(3, null, 1, 1, listOf([]bsoncore.Document{element("i1"), badOp})), is(oplog.ErrUnknownOp), "1000:3 t1: o.applyOps.1.op"},
		{"bad operation in a part", nil, part(3, null, 1, 1, listOf([]bsoncore.Document{badOp}, partial)), is(oplog.ErrUnknownOp), "o.applyOps.0.op"},
		{"bad operation in the end", open, part(3, 2, 1, 1, listOf([]bsoncore.Document{badOp})), is(oplog.ErrUnknownOp), "o.applyOps.0.op"},
		{"bad operation, nested", nil, line{at: 3, prev: none, cmd: nest(2, listOf([]bsoncore.Document{badOp}))}, is(oplog.ErrUnknownOp), "o.applyOps.0.o.applyOps.0.o.applyOps.0.op"},
		{"commit inside", nil, line{at: 3, prev: none, cmd: listOf([]bsoncore.Document{element("i1"), commitOp})}, badField, "o.applyOps.1.o: not valid: a commitTransaction inside"},
		{"applyOps inside a transaction", nil, part(3, null, 1, 1, nest(1, list(nil))), badField, "an applyOps inside a transaction"},
		{"part inside", nil, line{at: 3, prev: none, cmd: nest(1, list(nil, partial))}, badField, "inside another group"},
		{"prepare inside", nil, line{at: 3, prev: none, cmd: nest(1, list(nil, prepare))}, badField, "inside another group"},
		{"eleven levels", nil, line{at: 3, prev: none, cmd: nest(11, list(nil))}, is(oplog.ErrUnsupported), "more than 10 levels"},
		{"applyOps without an array", nil, line{at: 3, prev: none, cmd: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("applyOps", 1).Build())}, badField, "o.applyOps"},
		{"same timestamp", open, line{at: 2, prev: none, op: "i1"}, is2(ErrOutOfOrder), "entry 1000:2 t1 after 1000:2 t1"},
		{"same timestamp, later term", open, line{at: 2, term: 2, prev: none, op: "i1"}, is2(ErrOutOfOrder), "out of order"},
		{"earlier timestamp", open, line{at: 1, prev: none, op: "i1"}, is2(ErrOutOfOrder), "out of order"},
		{"earlier term", []line{{at: 1, term: 3, prev: none, op: "i1"}}, line{at: 2, term: 2, prev: none, op: "i1"}, is2(ErrOutOfOrder), "out of order"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, memory := range []int64{0, 1} {
				a := newAssembler(t, Config{MemoryBytes: memory})
				for _, l := range tt.log {
					if _, err := add(t, a, l); err != nil {
						t.Fatal(err)
					}
				}
				oldest, _ := a.OldestOpen()
				r, err := add(t, a, tt.add)
				if err == nil {
					t.Fatalf("no error but %s", tell(t, r))
				}
				if !tt.ok(err) || !strings.Contains(err.Error(), tt.want) || r != (Result{}) {
					t.Errorf("%T: %v, want it to say %q", err, err, tt.want)
				}
				if now, _ := a.OldestOpen(); now != oldest {
					t.Errorf("the error moves the oldest open transaction from %s to %s", oldest, now)
				}
				if _, again := add(t, a, line{at: 99, prev: none, op: "i1"}); again != err { //nolint:errorlint // the very same
					t.Errorf("the next entry: %v", again)
				}
			}
		})
	}
}

func is2(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func TestTransactionFields(t *testing.T) {
	a := newAssembler(t, Config{})
	log := []line{
		part(3, null, 7, 42, list(ops("i1"), partial)),
		part(5, 3, 7, 42, list(ops("i2 c3"), prepare, count(3))),
		{at: 6, prev: none, op: "i9"},
		part(8, 5, 7, 42, commitAt(7)),
	}
	for i, l := range log {
		r := must.Get(add(t, a, l))(t)
		if i < 3 {
			continue
		}
		x := r.Txn
		got := []any{x.Kind, x.OpTime, x.Start, int64(x.Wall), x.TxnNumber, x.HasTxnNumber, x.Prepared, x.CommitTimestamp, x.Parts, x.Count, x.MustBeProcessedIndividually}
		want := []any{KindTransaction, optime(8), optime(3), wallOf(8), int64(42), true, true, bson.Timestamp{T: 1000, I: 7}, 2, 3, true}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("transaction (-want +got):\n%s", diff)
		}
		if !cmp.Equal(x.LSID, bson.Raw(lsid(7))) {
			t.Errorf("its session is %s", x.LSID)
		}
		size := func(o bson.Raw) int64 { return int64(len(o.Lookup("applyOps").Value)) }
		if want := size(log[0].cmd) + size(log[1].cmd); x.Bytes != want {
			t.Errorf("it has %d bytes, want %d", x.Bytes, want)
		}
		must.Succeed(t, x.Close())
	}
}

func TestOpen(t *testing.T) {
	a := newAssembler(t, Config{MemoryBytes: 100})
	oldest := func(want int) {
		t.Helper()
		at, ok := a.OldestOpen()
		if ok != (want != 0) || ok && at != optime(want) {
			t.Errorf("the oldest open transaction began at %s, %v, want %d", at, ok, want)
		}
	}
	step := func(l line) {
		t.Helper()
		r := must.Get(add(t, a, l))(t)
		if r.Txn != nil {
			must.Succeed(t, r.Txn.Close())
		}
	}
	oldest(0)
	step(part(1, null, 1, 1, list(ops("i40"), partial)))
	step(part(2, null, 2, 5, list(ops("i2"), prepare)))
	step(line{at: 3, prev: null, cmd: list(ops("i3 i4"), partial)})
	step(part(4, 1, 1, 1, list(ops("i40"), partial)))
	oldest(1)
	size := func(s string) int64 { return int64(len(list(ops(s)).Lookup("applyOps").Value)) }
	got := a.Open()
	for i := range got {
		if (got[i].Spilled > 0) != (i == 0 || i == 2) {
			t.Errorf("transaction %d has %d bytes in a file", i, got[i].Spilled)
		}
		got[i].Spilled = 0
	}
	want := []OpenInfo{
		{Start: optime(1), Last: optime(4), LSID: bson.Raw(lsid(1)), TxnNumber: 1, Parts: 2, Count: 2, Bytes: 2 * size("i40")},
		{Start: optime(2), Last: optime(2), LSID: bson.Raw(lsid(2)), TxnNumber: 5, Prepared: true, Parts: 1, Count: 1, Bytes: size("i2")},
		{Start: optime(3), Last: optime(3), Parts: 1, Count: 2, Bytes: size("i3 i4")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("open transactions (-want +got):\n%s", diff)
	}
	step(part(5, 2, 2, 5, abortCmd)) // from the middle
	oldest(1)
	step(part(6, 4, 1, 1, list(nil, count(2))))
	oldest(3)
	step(line{at: 7, prev: 3, cmd: list(nil, count(2))})
	oldest(0)
	if open := a.Open(); open != nil {
		t.Errorf("open transactions at the end: %+v", open)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{MemoryBytes: -1}); err == nil || !strings.Contains(err.Error(), "-1 bytes") {
		t.Errorf("a negative budget: %v", err)
	}
}

func TestClose(t *testing.T) {
	a := newAssembler(t, Config{})
	var txn *Transaction
	for _, l := range []line{
		part(1, null, 1, 1, list(ops("i1"), partial)), part(2, null, 2, 1, list(ops("i2"), partial)),
		part(3, 1, 1, 1, list(ops("i3"), count(2))),
	} {
		r, err := add(t, a, l)
		if err != nil {
			t.Fatal(err)
		}
		txn = r.Txn
	}
	must.Succeed(t, a.Close())
	if _, open := a.OldestOpen(); open {
		t.Error("a transaction is open after Close")
	}
	if _, err := add(t, a, line{at: 4, prev: none, op: "i1"}); !errors.Is(err, ErrClosed) {
		t.Errorf("an entry after Close: %v", err)
	}
	var kept oplog.Op
	for op, err := range txn.Ops() { // not affected, and can be left early
		if err != nil {
			t.Fatal(err)
		}
		kept = op
		break
	}
	for range 2 {
		must.Succeed(t, txn.Close())
	}
	if got := read(t, kept); got != "i1" {
		t.Errorf("an operation kept beyond Close is %s", got)
	}
	n := 0
	for _, err := range txn.Ops() {
		n++
		if !errors.Is(err, ErrClosed) {
			t.Errorf("read after Close: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d operations after Close", n)
	}
}

// Stopping the iteration of Ops early works at every depth.
func TestOpsLeftEarly(t *testing.T) {
	tree := listOf([]bsoncore.Document{
		element("i1"), nested(listOf([]bsoncore.Document{nested(list(ops("i2 i3"))), element("i4")})), element("i5"),
	}, partial)
	a := newAssembler(t, Config{MemoryBytes: int64(len(tree))})
	var r Result
	for i, cmd := range []bson.Raw{tree, tree, tree, list(ops("i6"), count(16))} { // in the file, and in memory
		var err error
		if r, err = add(t, a, line{at: i + 1, prev: i, cmd: cmd}); err != nil {
			t.Fatal(err)
		}
	}
	for stop := 1; stop <= 16; stop++ {
		n := 0
		for _, err := range r.Txn.Ops() {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("%d operations, wanted to stop at %d", n, stop)
		}
	}
	must.Succeed(t, r.Txn.Close())
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		Pass.String(): "pass", Past.String(): "past", Outcome(0).String(): "Outcome(0)",
		KindTransaction.String(): "transaction", Kind(9).String(): "Kind(9)",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
