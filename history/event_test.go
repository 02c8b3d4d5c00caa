package history

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
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
		for i, e := range two.listed(t) {
			if e.Message != strconv.Itoa(i) {
				t.Errorf("event %d is %+v", i, e)
			}
		}
		two.Tell(Event{At: time.Now().Add(-time.Hour), Message: "10"})
		if got := ids(two.listed(t)); len(got) != 11 || got[10] <= got[9] {
			t.Errorf("%v", got)
		}
	})
}

// listed returns the events as a View has them.
func (h *History) listed(t testing.TB) []Event {
	t.Helper()
	v, err := h.View(time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return v.Events
}

// TestMergedAreTold: followers get an event of another process that is older than the newest one known
// here, once, and with its id.
func TestMergedAreTold(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	leader, standby := New(), New()
	leader.Tell(Event{At: at, Message: "of the leader"})
	standby.Tell(Event{At: at.Add(time.Minute), Message: "of the standby"})
	had := standby.EventsAfter(0)[0].Seq
	news := standby.News()
	standby.Replace(leader.Stored())
	select {
	case <-news:
	default:
		t.Error("nobody was told")
	}
	told := standby.EventsAfter(had)
	if len(told) != 1 || told[0].Message != "of the leader" || told[0].ID != uint64(at.UnixMicro()) || told[0].Seq <= had {
		t.Fatalf("%+v", told)
	}
	news = standby.News()
	standby.Replace(leader.Stored())
	select {
	case <-news:
		t.Error("told again")
	default:
	}
	standby.Tell(Event{At: at.Add(2 * time.Minute), Message: "later"})
	if rest := standby.EventsAfter(told[0].Seq); len(rest) != 1 || rest[0].Message != "later" || rest[0].Seq != rest[0].ID {
		t.Errorf("%+v", rest)
	}
}

// TestFollow: whatever two processes tell, merge and restart with, and whatever their clocks, a client that
// follows one of them by the last Seq gets every event once.
func TestFollow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		both := [2]*History{New(), New()}
		var last uint64
		got := map[uint64]int{}
		poll := func() {
			for _, e := range both[0].EventsAfter(last) {
				if e.Seq <= last {
					t.Fatalf("seq %d after %d", e.Seq, last)
				}
				last = e.Seq
				got[e.ID]++
			}
		}
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			which := rapid.IntRange(0, 1).Draw(t, "process")
			now = now.Add(time.Duration(rapid.IntRange(-3, 10).Draw(t, "passed")) * time.Second)
			switch rapid.SampledFrom([]string{"tell", "fill", "replace", "poll"}).Draw(t, "step") {
			case "tell":
				// No two processes see something in the same microsecond.
				both[which].Tell(Event{At: now.Add(time.Duration(2*i+which) * time.Microsecond), Message: strconv.Itoa(i)})
			case "fill":
				both[which].Fill(both[1-which].Stored())
			case "replace":
				both[which].Replace(both[1-which].Stored())
			case "poll":
				poll()
			}
		}
		poll()
		list := both[0].events.list
		for i := range list {
			if got[list[i].ID] != 1 || i > 0 && list[i].ID <= list[i-1].ID {
				t.Fatalf("event %d was told %d times: %v", list[i].ID, got[list[i].ID], ids(list))
			}
		}
		if len(got) != len(list) {
			t.Fatalf("%d events were told, and there are %d", len(got), len(list))
		}
	})
}
