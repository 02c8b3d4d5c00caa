package fetcher

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// recorded is a reply with all entries of a recorded oplog.
func recorded(t testing.TB, scenario string) (reply bson.Raw, n int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "corpus", scenario, "oplog.bson"))
	must.Succeed(t, err)
	docs := bson.A{}
	var last oplog.OpTime
	for len(raw) > 0 {
		size := binary.LittleEndian.Uint32(raw)
		docs = append(docs, bson.Raw(raw[:size]))
		e, err := replset.ReadEntry(raw[:size])
		must.Succeed(t, err)
		last = e.OpTime
		raw = raw[size:]
	}
	f := &fake{rbid: 1, commit: last, applied: last}
	return marshal(bson.D{
		{Key: "cursor", Value: bson.D{{Key: nextBatch, Value: docs}, {Key: "id", Value: int64(7)}, {Key: "ns", Value: "local.oplog.rs"}}},
		{Key: "ok", Value: 1.0},
		{Key: replData, Value: f.replData("")},
		{Key: oplogData, Value: f.oplogData("")},
	}), len(docs)
}

// replayer answers every find with its first reply, every getMore with more, and
// cancels when those have been given so often.
type replayer struct {
	first, more bson.Raw
	times       int
	cancel      func()
}

func (r *replayer) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	switch cmd.Body[5] {
	case 'f':
		return r.first, nil
	case 'g':
		if r.times--; r.times < 0 {
			r.cancel()
			return nil, context.Cause(ctx)
		}
		return r.more, nil
	default:
		return nil, errors.New("not here")
	}
}

// TestRecorded: every recorded oplog comes through as it is, as views into the reply.
func TestRecorded(t *testing.T) {
	logs, err := filepath.Glob("../testdata/corpus/*/oplog.bson")
	must.Succeed(t, err)
	if len(logs) == 0 {
		t.Fatal("no recordings")
	}
	for _, path := range logs {
		name := filepath.Base(filepath.Dir(path))
		reply, n := recorded(t, name)
		p, err := parsePage(reply, nextBatch)
		must.Succeed(t, err)
		entries, err := p.entries(0, oplog.OpTime{Term: oplog.UninitializedTerm})
		if err != nil || len(entries) != n || p.n != n {
			t.Errorf("%s: %d entries of %d: %v", name, len(entries), n, err)
			continue
		}
		if !inside(reply, entries[0].Raw) || !inside(reply, entries[n-1].Raw) {
			t.Errorf("%s: the entries are not views into the reply", name)
		}
		if want := int64(cap(reply)) + int64(n)*entrySize; p.bytes(n) != want {
			t.Errorf("%s takes %d bytes, want %d", name, p.bytes(n), want)
		}
	}
}

// TestAllocs is the budget of a reply: nothing for a single entry.
func TestAllocs(t *testing.T) {
	reply, n := recorded(t, "mass")
	got := testing.AllocsPerRun(10, func() {
		p, err := parsePage(reply, nextBatch)
		if err == nil {
			_, err = parseMetadata(reply)
		}
		if err == nil {
			_, err = p.entries(0, oplog.OpTime{Term: oplog.UninitializedTerm})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if most := 0.05 * float64(n); got > most {
		t.Errorf("%v allocations for %d entries, at most %v wanted", got, n, most)
	}
	if got > 12 { // four of them for the goroutines that parse it
		t.Errorf("%v allocations for a reply, whatever it holds", got)
	}
}

// TestMetrics: entries handed on are counted, over consecutive Readers.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	from := oplog.NewOpTime(1000, 1, 1)
	for range 2 {
		f, err := NewReader(ReaderConfig{Registry: reg})
		must.Succeed(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		src := &replayer{
			first: cursorReply(firstBatch, from, oplog.NewOpTime(1000, 2, 1)), more: cursorReply(nextBatch, oplog.NewOpTime(1000, 3, 1)),
			times: 1, cancel: func() { cancel(errOver) },
		}
		var received time.Time
		_, err = f.Tail(ctx, host, src, from, false, func(_ context.Context, r oplog.Reply) error {
			received = r.Received
			return nil
		})
		if !errors.Is(err, errOver) || time.Since(received) > time.Minute {
			t.Errorf("%v, received %s", err, received)
		}
	}
	families, err := reg.Gather()
	must.Succeed(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	size := float64(len(marshal(entry(from, ""))))
	for name, want := range map[string]float64{
		"entries_total": 4, "bytes_total": 4 * size, "replies_total": 4, "restarts_total": 0,
		"last_entry_time_seconds": 5, "committed_time_seconds": 1,
	} {
		if got["replicator_fetcher_"+name] != want {
			t.Errorf("%s is %v, want %v", name, got["replicator_fetcher_"+name], want)
		}
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  ReaderConfig
		want string
	}{
		{ReaderConfig{}, ""},
		{ReaderConfig{AwaitTime: 31 * time.Second}, "an await time of 31s: want 1ms to 30s"},
		{ReaderConfig{AwaitTime: time.Microsecond}, "an await time of 1µs"},
	} {
		_, err := NewReader(tt.cfg)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.cfg, err, tt.want)
		}
	}
}

// TestNoStart: there has to be an entry to start from.
func TestNoStart(t *testing.T) {
	f, err := NewReader(ReaderConfig{})
	must.Succeed(t, err)
	if _, err := f.Tail(t.Context(), host, &replayer{}, oplog.OpTime{}, false, nil); err == nil {
		t.Error("a tail from nowhere")
	}
}

// FuzzReply: no reply makes the parser panic, or return entries that are not ascending, or
// not inside of the reply.
func FuzzReply(f *testing.F) {
	at := oplog.NewOpTime(1000, 3, 1)
	f.Add([]byte(cursorReply(nextBatch, at, oplog.NewOpTime(1000, 4, 1))), false, 0)
	f.Add([]byte(cursorReply(firstBatch, at)), true, 1)
	f.Add([]byte(cursorReply(firstBatch)), true, 1)
	f.Fuzz(func(t *testing.T, raw []byte, first bool, skip int) {
		batch := nextBatch
		if first {
			batch = firstBatch
		}
		_, _ = parseMetadata(raw)
		p, err := parsePage(raw, batch)
		if err != nil {
			return
		}
		if p.n > 0 {
			_, _ = p.first()
		}
		skip &= 1
		entries, err := p.entries(skip, oplog.OpTime{Term: oplog.UninitializedTerm})
		if err != nil {
			return
		}
		if len(entries) != max(p.n-skip, 0) {
			t.Fatalf("%d entries of %d documents, %d skipped", len(entries), p.n, skip)
		}
		for i := range entries {
			if i > 0 && oplog.CompareTimestamps(entries[i-1].OpTime.TS, entries[i].OpTime.TS) >= 0 {
				t.Fatalf("%s behind %s", entries[i].OpTime, entries[i-1].OpTime)
			}
			if !inside(raw, entries[i].Raw) {
				t.Fatal("an entry outside of the reply")
			}
		}
	})
}

// BenchmarkTail measures what the fetcher itself costs: checking, parsing and handing
// on a reply of recorded entries.
func BenchmarkTail(b *testing.B) {
	for _, name := range []string{"mass", "random"} {
		b.Run(name, func(b *testing.B) {
			reply, n := recorded(b, name)
			b.SetBytes(int64(len(reply)))
			b.ReportAllocs()
			for b.Loop() {
				p, err := parsePage(reply, nextBatch)
				must.Succeed(b, err)
				meta, err := parseMetadata(reply)
				must.Succeed(b, err)
				entries, err := p.entries(0, oplog.OpTime{Term: oplog.UninitializedTerm})
				must.Succeed(b, err)
				if entries[len(entries)-1].OpTime.After(meta.Committed) {
					b.Fatal("nothing is handed on")
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/entry")
		})
	}
}
