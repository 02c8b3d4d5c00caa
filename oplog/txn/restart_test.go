package txn

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/oplog"
)

// Handling of chains that started before the first entry.
func TestApplyAfter(t *testing.T) {
	after := Config{ApplyAfter: optime(20)}
	tests := []struct {
		name   string
		log    []line
		want   []string
		broken int // the entry that breaks, 0 for none
	}{{
		name: "everything up to it is past, whatever it is",
		log: []line{
			{at: 10, prev: none, op: "i1"},
			{at: 11, prev: none, cmd: list(ops("i2"))},
			part(12, null, 1, 1, list(ops("i3"))),
			part(13, null, 1, 2, list(ops("i4"), partial)), part(14, 13, 1, 2, list(ops("i5"), prepare, count(2))),
			part(15, 14, 1, 2, commitAt(14)), part(16, null, 1, 3, list(nil, prepare)), part(17, 16, 1, 3, abortCmd),
			part(18, null, 1, 4, list(ops("i6"), partial)), part(19, 18, 1, 4, list(ops("i7"), count(2))),
			{at: 20, prev: none, op: "i8"},
			{at: 21, prev: none, op: "i9"},
		},
		want: []string{"past", "past", "past", "past", "past", "past", "past", "past", "past", "past", "past", "pass"},
	}, {
		name: "chains open there are given out after it, whole",
		log: []line{
			part(10, null, 1, 1, list(ops("i1"), partial)), part(11, null, 2, 1, list(ops("i2"), prepare)),
			part(20, 10, 1, 1, list(ops("i3"), partial)), part(21, 11, 2, 1, commitAt(11)), part(22, 20, 1, 1, list(ops("i4"), count(3))),
		},
		want: []string{"past", "past", "past", "committed transaction i2", "committed transaction i1 i3 i4"},
	}, {
		name: "chains from before that ended up to it",
		log: []line{
			part(10, 1, 1, 1, list(ops("i1"), partial)), part(11, 2, 2, 1, list(ops("i2"), count(7))),
			part(12, 10, 1, 1, list(ops("i3"), partial)), part(13, 3, 3, 1, commitAt(4)), part(14, 5, 4, 1, abortCmd),
			part(15, 6, 5, 1, list(nil, prepare, count(8))), part(16, 7, 6, 1, list(nil, prepare)), part(17, 15, 5, 1, commitAt(15)),
			part(18, 16, 6, 1, abortCmd), part(20, 12, 1, 1, list(nil, count(9))),
			{at: 21, prev: none, op: "i1"},
		},
		want: []string{"past", "past", "past", "past", "past", "past", "past", "past", "past", "past", "pass"},
	}, {
		name:   "the end of a chain from before, after it",
		log:    []line{{at: 20, prev: none, op: "i1"}, part(21, 1, 1, 1, list(nil))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name:   "the end of a followed chain, after it",
		log:    []line{part(20, 1, 1, 1, list(nil, partial)), part(21, 20, 1, 1, list(nil))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name:   "a part of a followed chain, after it",
		log:    []line{part(10, 1, 1, 1, list(nil, partial)), {at: 20, prev: none, op: "i1"}, part(21, 10, 1, 1, list(nil, partial))},
		want:   []string{"past", "past"},
		broken: 21,
	}, {
		name:   "the commit of a followed chain, after it",
		log:    []line{part(20, 1, 1, 1, list(nil, prepare)), part(21, 20, 1, 1, commitAt(20))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name: "the abort of a followed chain, after it",
		log:  []line{part(20, 1, 1, 1, list(nil, prepare)), part(21, 20, 1, 1, abortCmd)},
		want: []string{"past", "aborted 0 parts"},
	}, {
		name:   "a link to an entry that was added and is no chain's end",
		log:    []line{{at: 10, prev: none, op: "i1"}, part(12, 10, 1, 1, list(nil))},
		want:   []string{"past"},
		broken: 12,
	}, {
		name:   "a link between the entries added",
		log:    []line{{at: 10, prev: none, op: "i1"}, part(12, 11, 1, 1, list(nil, partial))},
		want:   []string{"past"},
		broken: 12,
	}, {
		name: "a followed chain that ends twice",
		log: []line{
			part(10, 1, 1, 1, list(nil, partial)), part(11, 10, 1, 1, list(nil)), part(12, 10, 1, 1, list(nil)),
		},
		want:   []string{"past", "past"},
		broken: 12,
	}, {
		name: "a followed chain that is committed twice",
		log: []line{
			part(10, 1, 1, 1, list(nil, prepare)), part(11, 10, 1, 1, commitAt(10)), part(12, 10, 1, 1, commitAt(10)),
		},
		want:   []string{"past", "past"},
		broken: 12,
	}, {
		name: "a followed chain is not open",
		log:  []line{part(10, 1, 1, 1, list(nil, partial)), part(11, null, 1, 2, list(nil, partial))},
		want: []string{"past", "past"},
	}, {
		name: "linked groups without a session that are no chain",
		log: []line{
			{at: 10, prev: 1, cmd: list(ops("i1"))},
			{at: 20, prev: none, op: "i1"},
			{at: 21, prev: 1, cmd: list(ops("i2"))},
			{at: 22, prev: 10, cmd: list(ops("i3"))},
			{at: 23, prev: 22, cmd: list(ops("i4"))},
		},
		want: []string{"past", "past", "committed applyOps i2", "committed applyOps i3", "committed applyOps i4"},
	}, {
		name: "the next term",
		log: []line{
			part(10, null, 1, 1, list(ops("i1"), partial)),
			{at: 20, prev: none, op: "i1"},
			{at: 21, term: 2, prev: none, op: "n1"},
			{at: 22, term: 2, prev: 10, session: 1, number: 1, cmd: list(ops("i2"), count(2))},
		},
		want: []string{"past", "past", "pass", "committed transaction i1 i2"},
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			log := tt.log
			if tt.broken != 0 {
				log = log[:len(log)-1]
			}
			if diff := cmp.Diff(tt.want, play(t, after, log)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.broken == 0 {
				return
			}
			a := newAssembler(t, after)
			for _, l := range log {
				if _, err := add(t, a, l); err != nil {
					t.Fatal(err)
				}
			}
			last := tt.log[len(tt.log)-1]
			_, err := add(t, a, last)
			f, ok := errors.AsType[*BrokenChainError](err)
			if !ok || f.OpTime != optime(tt.broken) || f.Prev != optime(last.prev) {
				t.Errorf("entry %d: %v", tt.broken, err)
			}
		})
	}
}

// The log has to contain ApplyAfter.
func TestApplyAfterMissing(t *testing.T) {
	insert := func(at, term int) line { return line{at: at, term: term, prev: none, op: "i1"} }
	tests := []struct {
		name  string
		after oplog.OpTime
		log   []line // the last entry shows it
	}{
		{"passed", oplog.NewOpTime(1000, 20, 1), []line{insert(10, 1), insert(19, 1), insert(21, 1)}},
		{"passed in the next term", oplog.NewOpTime(1000, 20, 1), []line{insert(10, 1), insert(21, 2)}},
		{"the first entry is behind it", oplog.NewOpTime(1000, 20, 1), []line{insert(21, 1)}},
		{"the first entry is behind it, of an earlier term", oplog.NewOpTime(1000, 10, 5), []line{insert(12, 4)}},
		{"passed in an earlier term", oplog.NewOpTime(1000, 10, 5), []line{insert(9, 4), insert(12, 4)}},
		{"its timestamp in an earlier term", oplog.NewOpTime(1000, 20, 5), []line{insert(12, 4), insert(20, 4)}},
		{"its timestamp in a later term", oplog.NewOpTime(1000, 20, 1), []line{insert(10, 1), insert(20, 2)}},
		{"a later term before it", oplog.NewOpTime(1000, 20, 4), []line{insert(10, 5)}},
		{"passed, without a term", oplog.NewOpTime(1000, 20, oplog.UninitializedTerm), []line{insert(10, 4), insert(21, 4)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newAssembler(t, Config{ApplyAfter: tt.after})
			last := len(tt.log) - 1
			for _, l := range tt.log[:last] {
				if r, err := add(t, a, l); err != nil || r != (Result{Outcome: Past}) {
					t.Fatalf("entry %d: %+v, %v", l.at, r, err)
				}
			}
			r, err := add(t, a, tt.log[last])
			f, ok := errors.AsType[*ResumeError](err)
			if !ok || *f != (ResumeError{Want: tt.after, Got: tt.log[last].optime()}) || r != (Result{}) {
				t.Fatalf("%+v, %v", r, err)
			}
			for _, part := range []string{tt.after.String(), f.Got.String(), "diverged", "copy the data again"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if _, again := add(t, a, insert(99, 9)); again != err { //nolint:errorlint // the very same
				t.Errorf("the next entry: %v", again)
			}
		})
	}
	t.Run("a term that goes back before it", func(t *testing.T) {
		a := newAssembler(t, Config{ApplyAfter: oplog.NewOpTime(1000, 20, 5)})
		if _, err := add(t, a, insert(10, 5)); err != nil {
			t.Fatal(err)
		}
		if _, err := add(t, a, insert(12, 4)); !errors.Is(err, ErrOutOfOrder) {
			t.Errorf("entry 12: %v", err)
		}
	})
}

// ApplyAfter itself is the last entry that is Past, whatever its kind.
func TestApplyAfterHit(t *testing.T) {
	for _, term := range []int64{3, oplog.UninitializedTerm} {
		after := Config{ApplyAfter: oplog.NewOpTime(1000, 20, term)}
		for _, hit := range []line{
			{at: 20, term: 3, prev: none, op: "i1"},
			{at: 20, term: 3, prev: none, cmd: list(ops("i1"))},
			{at: 20, term: 3, prev: 19, prevT: 3, session: 1, number: 1, cmd: list(ops("i3"), count(2))},
		} {
			got := play(t, after, []line{
				{at: 19, term: 3, prev: null, session: 1, number: 1, cmd: list(ops("i2"), partial)},
				hit,
				{at: 21, term: 3, prev: none, op: "i1"},
			})
			if diff := cmp.Diff([]string{"past", "past", "pass"}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
	}
}

// A ghost chain does not move FetchFrom back.
func TestApplyAfterOldestOpen(t *testing.T) {
	a := newAssembler(t, Config{ApplyAfter: optime(20)})
	for _, l := range []line{part(10, 1, 1, 1, list(nil, partial)), part(12, null, 2, 1, list(nil, partial))} {
		if _, err := add(t, a, l); err != nil {
			t.Fatal(err)
		}
	}
	if at, ok := a.OldestOpen(); !ok || at != optime(12) {
		t.Errorf("the oldest open transaction began at %s, %v", at, ok)
	}
	if _, err := add(t, a, part(13, 12, 2, 1, abortCmd)); err != nil {
		t.Fatal(err)
	}
	if at, ok := a.OldestOpen(); ok {
		t.Errorf("an open transaction began at %s", at)
	}
}
