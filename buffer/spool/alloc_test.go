package spool

import (
	"testing"

	"github.com/oplogrep/replicator/oplog"
)

// record1000 is a record of 1000 entries of some 200 bytes, without its head, and
// what its head says.
func record1000(t testing.TB) (h head, payload []byte) {
	var entries []oplog.Entry
	for i := range 1000 {
		e := entry(t, i+1, 50)
		entries = append(entries, e)
		payload = append(payload, e.Raw...)
	}
	h = head{entries: 1000, first: entries[0].OpTime, last: entries[len(entries)-1].OpTime}
	return h, payload
}

// TestAllocs: a write to disk copies entries into one buffer, and a read parses them in
// place, with one allocation for the list of entries.
func TestAllocs(t *testing.T) {
	h, payload := record1000(t)
	b := append(make([]byte, headSize), payload...)
	var back head
	for _, tt := range []struct {
		name string
		want float64
		run  func() error
	}{
		{"encode a head", 0, func() error { h.encode(b, 1); return nil }},
		{"parse a head", 0, func() (err error) { back, err = parseHead(b, 0, 1); return err }},
		{"check a record", 0, func() error { return back.check(payload, 1) }},
		{"parse 1000 entries", 1, func() error { _, err := back.parse(payload); return err }},
	} {
		if n := testing.AllocsPerRun(20, func() {
			if err := tt.run(); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
		}); n > tt.want {
			t.Errorf("%s: %g allocations, at most %g are allowed", tt.name, n, tt.want)
		}
	}
}
