package txn

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// How chains that began before the first entry are treated.
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
			part(13, null, 1, 2, list(ops("i4"), partial)), part(14, 13, 1, 2, list(ops("i5"), prepare)),
			part(15, 14, 1, 2, commitAt(14)), part(16, null, 1, 3, list(nil, prepare)), part(17, 16, 1, 3, abortCmd),
			part(18, null, 1, 4, list(ops("i6"), partial)), part(19, 18, 1, 4, list(ops("i7"))),
			{at: 20, prev: none, op: "i8"},
			{at: 21, prev: none, op: "i9"},
		},
		want: []string{"past", "past", "past", "past", "past", "past", "past", "past", "past", "past", "past", "pass"},
	}, {
		name: "chains open there are given out behind it, whole",
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
		name:   "the end of a chain from before, behind it",
		log:    []line{{at: 10, prev: none, op: "i1"}, part(21, 1, 1, 1, list(nil))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name:   "the end of a followed chain, behind it",
		log:    []line{part(10, 1, 1, 1, list(nil, partial)), part(21, 10, 1, 1, list(nil))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name:   "a part of a followed chain, behind it",
		log:    []line{part(10, 1, 1, 1, list(nil, partial)), part(21, 10, 1, 1, list(nil, partial))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name:   "the commit of a followed chain, behind it",
		log:    []line{part(10, 1, 1, 1, list(nil, prepare)), part(21, 10, 1, 1, commitAt(10))},
		want:   []string{"past"},
		broken: 21,
	}, {
		name: "the abort of a followed chain, behind it",
		log:  []line{part(10, 1, 1, 1, list(nil, prepare)), part(21, 10, 1, 1, abortCmd)},
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
		name: "another term",
		log: []line{
			part(10, null, 1, 1, list(ops("i1"), partial)), {at: 19, term: 2, prev: none, op: "n1"}, // behind 20 of term 1
			{at: 20, term: 2, prev: 10, session: 1, number: 1, cmd: list(ops("i2"))},
		},
		want: []string{"past", "pass", "committed transaction i1 i2"},
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

// A chain that is followed without its operations is no reason to read from
// further back.
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
