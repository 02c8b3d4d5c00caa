package history

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

func ids(list []Event) []uint64 {
	out := make([]uint64, len(list))
	for i := range list {
		out[i] = list[i].ID
	}
	return out
}

// TestEvents: events get ids that grow, also if the clock is set back, and are found by
// them.
func TestEvents(t *testing.T) {
	t.Parallel()
	h := New()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	news := h.News()
	for i, d := range []time.Duration{0, time.Second, time.Second, -time.Hour, time.Minute} {
		h.Tell(Event{At: at.Add(d), Level: "INFO", Kind: OfSource, Message: strconv.Itoa(i), Fields: map[string]string{"a.b": "c"}})
	}
	select {
	case <-news:
	default:
		t.Error("nobody was told")
	}
	all := h.EventsAfter(0)
	for i := range all {
		if i > 0 && all[i].ID <= all[i-1].ID || all[i].Message != strconv.Itoa(i) || all[i].Fields["a.b"] != "c" {
			t.Errorf("event %d: %+v", i, all[i])
		}
		if rest := h.EventsAfter(all[i].ID); len(rest) != len(all)-1-i {
			t.Errorf("%d events after %d", len(rest), i)
		}
	}
	if len(all) != 5 || all[0].ID != uint64(at.UnixMicro()) {
		t.Errorf("%+v", all)
	}
}

// TestBurst: a flood of one message does not push the others out, and is not lost in
// silence.
func TestBurst(t *testing.T) {
	t.Parallel()
	h := New()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	h.Tell(Event{At: at, Message: "the one that matters"})
	for i := range 5000 {
		h.Tell(Event{At: at.Add(time.Duration(i) * time.Millisecond), Message: "waiting"})
	}
	h.Tell(Event{At: at.Add(2 * time.Minute), Message: "waiting"})
	all := h.EventsAfter(0)
	if last := all[len(all)-1]; len(all) != 1+mostOften+1 || all[0].Message != "the one that matters" || last.Fields[keyLeftOut] != "4980" {
		t.Errorf("%d events, the last %+v", len(all), last)
	}
}

// TestEventsBounded: neither the number, nor the size of events, nor the texts in them grow.
func TestEventsBounded(t *testing.T) {
	t.Parallel()
	h := New()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	long := strings.Repeat("ü", 1000)
	for i := range 1000 {
		fields := map[string]string{}
		for k := range 40 {
			fields[fmt.Sprint(k, "-", i)] = long
		}
		h.Tell(Event{At: at.Add(time.Duration(i) * time.Second), Message: fmt.Sprint("message ", i, long), Fields: fields})
		if i%100 != 99 {
			continue
		}
		sum := 0
		for _, e := range h.EventsAfter(0) {
			sum += e.size()
			for _, v := range e.Fields {
				if !utf8.ValidString(v) || len(v) > mostText+4 {
					t.Fatalf("%q", v)
				}
			}
		}
		if sum == 0 || sum > mostBytes || len(h.events.list) > mostEvents || len(h.events.often) > mostNames || h.events.bytes != sum {
			t.Fatalf("%d bytes, %d events, %d messages", sum, len(h.events.list), len(h.events.often))
		}
	}
	h = New()
	for i := range 3000 {
		h.Tell(Event{At: at.Add(time.Duration(i) * time.Minute), Message: "small"})
	}
	if list := h.EventsAfter(0); len(list) != mostEvents || !list[mostEvents-1].At.Equal(at.Add(2999*time.Minute)) {
		t.Errorf("%d events", len(list))
	}
}

// TestMerge: events of two processes are in the order of their ids, each once.
func TestMerge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one, two := New(), New()
		for i := range 10 {
			h := one
			if i%2 == 1 {
				h = two
			}
			h.Tell(Event{At: time.Now(), Message: strconv.Itoa(i)})
			time.Sleep(time.Second)
		}
		for range 2 {
			two.Fill(one.Stored())
		}
		for i, e := range two.EventsAfter(0) {
			if e.Message != strconv.Itoa(i) {
				t.Errorf("event %d is %+v", i, e)
			}
		}
		two.Tell(Event{At: time.Now().Add(-time.Hour), Message: "10"})
		if got := ids(two.EventsAfter(0)); len(got) != 11 || got[10] <= got[9] {
			t.Errorf("%v", got)
		}
	})
}
