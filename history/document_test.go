package history

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/metadata"
)

// TestCodes: every code stands for one value, values are exact to a thousandth, and greater
// ones have greater codes.
func TestCodes(t *testing.T) {
	t.Parallel()
	for code := range uint16(math.MaxUint16) {
		if got := encode(decode(code)); got != code {
			t.Fatalf("code %d is %v, which is %d", code, decode(code), got)
		}
		if code > 0 && decode(code) <= decode(code-1) {
			t.Fatalf("code %d is %v, the one before %v", code, decode(code), decode(code-1))
		}
	}
	if v := decode(encode(float32(math.NaN()))); !math.IsNaN(float64(v)) {
		t.Errorf("what is not known is %v", v)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := float32(math.Exp(rapid.Float64Range(-7, 36).Draw(t, "log")))
		if got := decode(encode(v)); math.Abs(float64(got-v)) > float64(v)/1000 {
			t.Fatalf("%v becomes %v", v, got)
		}
	})
	for v, want := range map[float32]float32{0: 0, 0.0001: 0, -5: 0, math.MaxFloat32: decode(unknown - 1)} {
		if got := decode(encode(v)); got != want {
			t.Errorf("%v becomes %v", v, got)
		}
	}
}

// full is a history with as much as it can have, and with values that cannot be
// compressed.
func full(begin time.Time) *History {
	h := New()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range int64(24 * 3600 / 5) {
		var v Values
		for s := range v {
			v[s] = math.Exp(r.Float64() * 30)
		}
		h.Add(begin.Add(time.Duration(5*i)*time.Second), v)
	}
	for i := range mostEvents {
		h.Tell(Event{
			At: begin.Add(time.Duration(i) * time.Minute), Level: "WARN", Kind: OfSource, Message: fmt.Sprint("message ", i),
			Fields: map[string]string{"a.b": strings.Repeat("x", i), "$c": strconv.Itoa(i)},
		})
	}
	return h
}

func documentOf(s *Stored) bson.Raw {
	return metadata.Document(func(dst []byte) []byte { return s.document(metadata.ByID("dr")(dst)) })
}

// TestDocument: a stored history is read back, to a thousandth, and is never larger than 100
// KB.
func TestDocument(t *testing.T) {
	t.Parallel()
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	h := full(begin)
	s := h.Stored()
	s.Term, s.At = 7, begin.Add(time.Hour)
	doc := documentOf(s)
	t.Logf("%d bytes", len(doc))
	if len(doc) > 100_000 {
		t.Errorf("the document has %d bytes", len(doc))
	}
	got, err := parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	if got.Term != 7 || !got.At.Equal(s.At) || len(got.events) == 0 {
		t.Errorf("%d %s %d events", got.Term, got.At, len(got.events))
	}
	if diff := cmp.Diff(s.newest(), got.events, cmpopts.IgnoreFields(Event{}, "Seq")); diff != "" {
		t.Error(diff)
	}
	now := begin.Add(24*time.Hour - time.Second)
	after := New()
	after.Fill(got)
	for _, span := range spans {
		one, err := h.View(span, now)
		two, err2 := after.View(span, now)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		for s := range one.Series {
			for i, want := range one.Series[s] {
				if got := two.Series[s][i]; !(math.IsNaN(float64(got)) && math.IsNaN(float64(want))) && math.Abs(float64(got-want)) > float64(want)/1000 {
					t.Fatalf("%s, %s, point %d: %v, want %v", span, Series(s), i, got, want)
				}
			}
		}
	}
	// A document that was read is stored unchanged.
	again := after.Stored()
	again.Term, again.At = s.Term, s.At
	if !bytes.Equal(documentOf(again), doc) {
		t.Error("stored again, it is another document")
	}
}

// TestQuietDocument: the history of a quiet link is small.
func TestQuietDocument(t *testing.T) {
	t.Parallel()
	h := New()
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range int64(24 * 3600 / 5) {
		v := Unknown()
		v[LagSeconds], v[InsertsPerSecond], v[LatencyP99Seconds] = 0.1*r.Float64(), 100+r.Float64(), 0.04+0.01*r.Float64()
		v[OplogWindowSeconds], v[BufferBytes], v[UpdatesPerSecond] = float64(50_000+i), 0, 0
		h.Add(begin.Add(time.Duration(5*i)*time.Second), v)
	}
	n := len(documentOf(h.Stored()))
	t.Logf("%d bytes", n)
	if n > 25_000 {
		t.Errorf("the document has %d bytes", n)
	}
}

// TestDamaged: what cannot be used is an error, whatever is wrong with it.
func TestDamaged(t *testing.T) {
	t.Parallel()
	good := documentOf(full(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)).Stored())
	var fields bson.D
	if err := bson.Unmarshal(good, &fields); err != nil {
		t.Fatal(err)
	}
	bomb := func() bson.Binary {
		var out bytes.Buffer
		w, err := flate.NewWriter(&out, flate.BestCompression)
		if err == nil {
			_, err = w.Write(make([]byte, 8<<20))
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return bson.Binary{Data: out.Bytes()}
	}
	ring := func(step, last int64) bson.D {
		return bson.D{{Key: "step", Value: step}, {Key: "last", Value: last}, {Key: "begun", Value: true}}
	}
	event := func(key string, value any) bson.A {
		e := bson.D{
			{Key: "id", Value: int64(5)},
			{Key: "at", Value: bson.DateTime(5)},
			{Key: "level", Value: "INFO"},
			{Key: "kind", Value: "ddl"},
			{Key: "message", Value: "m"},
			{Key: "fields", Value: bson.A{"odd"}},
		}
		for i := range e {
			if e[i].Key == key {
				e[i].Value = value
			}
		}
		return bson.A{e}
	}
	for _, tt := range []struct {
		field string
		value any
		ok    bool
	}{
		{"version", int32(2), false},
		{"version", "1", false},
		{"term", "x", false},
		{"rings", bson.A{ring(5, 1), ring(30, 1)}, false},
		{"rings", bson.A{ring(5, 1), ring(30, 1), ring(60, 1)}, false},
		{"rings", bson.A{ring(5, 1), ring(30, 1), ring(120, 1), ring(120, 1)}, false},
		{"rings", bson.A{ring(5, -1), ring(30, 1), ring(120, 1)}, false},
		{"rings", bson.A{ring(5, math.MaxInt64), ring(30, 1), ring(120, 1)}, false},
		{"rings", bson.A{ring(5, 1), ring(30, 1), ring(120, 1)}, true},
		{"series", bson.A{"lagSeconds"}, false},
		{"series", bson.A{1}, false},
		{"points", bson.Binary{Data: []byte("no")}, false},
		{"points", bomb(), false},
		{"points", "text", false},
		{"events", bson.A{"no"}, false},
		{"events", event("id", int64(-1)), false},
		{"events", event("id", int64(math.MaxInt64)), false},
		{"events", event("at", bson.DateTime(math.MinInt64)), false},
		{"events", event("message", 3), false},
		{"events", event("kind", "of a later release"), true},
		{"events", event("", nil), true},
	} {
		changed := bson.D{}
		for _, f := range fields {
			if f.Key == tt.field {
				f.Value = tt.value
			}
			changed = append(changed, f)
		}
		doc, err := bson.Marshal(changed)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(doc)
		if (err == nil) != tt.ok || tt.value == int32(2) && !errors.Is(err, errVersion) {
			t.Errorf("%s %.60v: %v", tt.field, tt.value, err)
		}
		if err == nil && tt.field == "events" && (s.events[0].Kind != OfDDL && s.events[0].Kind != Other || len(s.events[0].Fields) != 0) {
			t.Errorf("%+v", s.events)
		}
	}
	for i := range fields {
		without := append(append(bson.D{}, fields[:i]...), fields[i+1:]...)
		doc, err := bson.Marshal(without)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parse(doc); (err == nil) != (fields[i].Key == "_id") {
			t.Errorf("without %s: %v", fields[i].Key, err)
		}
	}
}

// FuzzParse: no document makes the reader panic or take more memory than a history, and what
// it takes is stored as a document that it takes again.
func FuzzParse(f *testing.F) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Add([]byte(documentOf(New().Stored())))
	h := New()
	v := Unknown()
	v[LagSeconds] = 3
	h.Add(begin, v)
	h.Tell(Event{At: begin, Level: "INFO", Kind: OfDDL, Message: "m", Fields: map[string]string{"a": "b"}})
	f.Add([]byte(documentOf(h.Stored())))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parse(data)
		if err != nil {
			return
		}
		h := New()
		h.Fill(s)
		again, err := parse(documentOf(h.Stored()))
		if err != nil {
			t.Fatalf("stored again: %v", err)
		}
		two := New()
		two.Replace(again)
		if got := len(two.EventsAfter(0)); got > len(s.events) {
			t.Errorf("%d events become %d", len(s.events), got)
		}
		for _, span := range spans {
			view, err := two.View(span, begin)
			if err == nil {
				_, err = view.MarshalJSON()
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestMemory: a history takes less than a mebibyte, however long it runs and whatever is
// told.
func TestMemory(t *testing.T) {
	if size := unsafe.Sizeof(rings{}); size > 160<<10 {
		t.Errorf("the rings take %d bytes", size)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	h := full(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("it takes %d bytes", grown)
	}
	runtime.KeepAlive(h)
	v := Unknown()
	v[LagSeconds] = 1
	at := time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	if n := testing.AllocsPerRun(1000, func() {
		at = at.Add(time.Second)
		h.Add(at, v)
	}); n != 0 {
		t.Errorf("a sample makes %v allocations", n)
	}
}
