package batcher

import (
	"strconv"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// line is a running Batcher, and a reply that is sent repeatedly.
type line struct {
	in      chan oplog.Reply
	reply   oplog.Reply
	at      oplog.OpTime
	done    chan error
	batches chan batch.Batch
}

func newLine(t testing.TB, token string, entries int) *line {
	t.Helper()
	b, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := &line{
		in: make(chan oplog.Reply), done: make(chan error, 1), batches: make(chan batch.Batch, 1),
		at: oplog.NewOpTime(1000, 0, 1),
	}
	log := newLog()
	for i := range entries {
		l.reply.Entries = append(l.reply.Entries, log.entry(t, 1, strings.ReplaceAll(token, "#", strconv.Itoa(i))))
	}
	l.reply.Bytes = 1
	go func() { l.done <- b.Run(t.Context(), l.in, l.batches) }()
	return l
}

// pass sends the reply and receives all of its batches.
func (l *line) pass(t testing.TB) {
	for i := range l.reply.Entries {
		e := &l.reply.Entries[i]
		l.at.TS.I++
		e.OpTime = l.at
	}
	l.in <- l.reply
	for {
		b := <-l.batches
		for i := range b.Items {
			if txn := b.Items[i].Txn; txn != nil {
				if err := txn.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if b.Bytes > 0 {
			return
		}
	}
}

func (l *line) stop(t testing.TB) {
	close(l.in)
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
}

// An entry costs its slot in a batch, and no allocation of its own.
func TestAllocs(t *testing.T) {
	for _, tt := range []struct {
		name, token string
		most        float64 // per entry
	}{
		{"inserts", "i#*100", 0.01},
		{"no-ops", "n#", 0.01},
		{"transactions in one entry", "t(i#,u2,u3)", 5},
	} {
		const entries = 2000
		l := newLine(t, tt.token, entries)
		got := testing.AllocsPerRun(20, func() { l.pass(t) }) / entries
		l.stop(t)
		if got > tt.most {
			t.Errorf("%s: %v allocations per entry, at most %v wanted", tt.name, got, tt.most)
		}
	}
}

// TestViews: a batch refers to the reply's memory, and copies nothing.
func TestViews(t *testing.T) {
	l := newLine(t, "i#", 10)
	l.in <- l.reply
	n := 0
	for bytes := int64(0); bytes == 0; {
		b := <-l.batches
		for i := range b.Items {
			if b.Items[i].Entry != &l.reply.Entries[n] {
				t.Errorf("operation %d is not entry %d of the reply", n, n)
			}
			n++
		}
		bytes = b.Bytes
	}
	l.stop(t)
	if n != len(l.reply.Entries) {
		t.Errorf("%d operations of %d came", n, len(l.reply.Entries))
	}
}
