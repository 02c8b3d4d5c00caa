package fault_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/mongosim/fault"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]fault.Fault{
		"latency 5ms":                {Kind: fault.Latency, Delay: 5 * time.Millisecond},
		"latency 1s in":              {Kind: fault.Latency, Delay: time.Second, Direction: fault.In},
		"latency 5ms jitter=2ms":     {Kind: fault.Latency, Delay: 5 * time.Millisecond, Jitter: 2 * time.Millisecond},
		"latency out jitter=2us 0s ": {Kind: fault.Latency, Jitter: 2 * time.Microsecond, Direction: fault.Out},
		"drop":                       {Kind: fault.Drop},
		"  half-open   in":           {Kind: fault.HalfOpen, Direction: fault.In},
		"half-open out":              {Kind: fault.HalfOpen, Direction: fault.Out},
		"cut":                        {Kind: fault.Cut},
		"reset after=120":            {Kind: fault.Reset, Bytes: 120},
		"reset out after=0":          {Kind: fault.Reset, Direction: fault.Out},
		"rate 1000":                  {Kind: fault.Rate, Bytes: 1000},
		"rate 1 in":                  {Kind: fault.Rate, Bytes: 1, Direction: fault.In},
		"freeze":                     {Kind: fault.Freeze},
	} {
		if got, err := fault.Parse(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const kinds = "known are cut, drop, freeze, half-open, latency, rate, reset"
	for text, want := range map[string]string{
		"":                        "no word; " + kinds,
		"  ":                      "no word; " + kinds,
		"latncy 5ms":              `unknown word "latncy"; ` + kinds,
		"Drop":                    `unknown word "Drop"; ` + kinds,
		"latency":                 "no DURATION",
		"latency 5":               `"5" is not DURATION`,
		"latency in":              "no DURATION",
		"latency 5ms 6ms":         "DURATION twice",
		"latency 5ms jitter":      `"jitter" is not DURATION`,
		"latency 5ms jitter=x":    `"jitter=x" is not jitter=DURATION`,
		"latency 5ms delay=1s":    `unknown word "delay=1s" after latency; known are DURATION, jitter=DURATION, in, out`,
		"latency 5ms in out":      "a direction twice",
		"latency -5ms":            "a time below 0",
		"latency 5ms jitter=-1ns": "a time below 0",
		"latency 2562047h":        "a time above 24h0m0s",
		"latency 0s jitter=9223372036854775807ns": "a time above 24h0m0s",
		"drop in":                      `unknown word "in" after drop`,
		"half-open":                    "no direction; known are in, out",
		"half-open up":                 `unknown word "up" after half-open; known are in, out`,
		"half-open in in":              "a direction twice",
		"cut now":                      `unknown word "now" after cut`,
		"reset":                        "no after=BYTES",
		"reset 120":                    `unknown word "120" after reset`,
		"reset after=":                 `"after=" is not after=BYTES`,
		"reset after=-1":               "a number of bytes below 0",
		"reset after=1 after=2":        "after=BYTES twice",
		"rate 0":                       "a rate below 1",
		"rate 1k":                      `"1k" is not BYTES`,
		"rate in":                      "no BYTES",
		"rate 9223372036854775808":     "is not BYTES",
		"freeze 5s":                    `unknown word "5s" after freeze`,
		"latency 5ms, drop":            `"5ms," is not DURATION`,
		"reset after=1 in=1 something": `unknown word "in=1"`,
	} {
		f, err := fault.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, error %v, want %q", text, f, err, want)
		}
	}
}

func faults() *rapid.Generator[fault.Fault] {
	return rapid.Custom(func(t *rapid.T) fault.Fault {
		f := fault.Fault{Kind: fault.Kind(rapid.IntRange(int(fault.Latency), int(fault.Freeze)).Draw(t, "kind"))}
		duration := rapid.Int64Range(0, int64(24*time.Hour))
		some := rapid.SampledFrom([]fault.Direction{fault.Both, fault.In, fault.Out})
		switch f.Kind {
		case fault.Latency:
			f.Delay = time.Duration(duration.Draw(t, "delay"))
			f.Jitter = time.Duration(duration.Draw(t, "jitter"))
			f.Direction = some.Draw(t, "direction")
		case fault.HalfOpen:
			f.Direction = rapid.SampledFrom([]fault.Direction{fault.In, fault.Out}).Draw(t, "direction")
		case fault.Reset:
			f.Bytes = rapid.Int64Min(0).Draw(t, "bytes")
			f.Direction = some.Draw(t, "direction")
		case fault.Rate:
			f.Bytes = rapid.Int64Min(1).Draw(t, "bytes")
			f.Direction = some.Draw(t, "direction")
		case fault.Drop, fault.Cut, fault.Freeze:
		}
		return f
	})
}

func TestTextFormIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := faults().Draw(t, "fault")
		if got, err := fault.Parse(want.String()); err != nil || got != want {
			t.Fatalf("%q is read as %+v, %v, want %+v", want, got, err, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"latency 5ms jitter=2ms in", "half-open out", "reset after=120", "rate 1", "drop", "cut", "freeze"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := fault.Parse(text)
		if err != nil {
			return
		}
		if again, err := fault.Parse(got.String()); err != nil || again != got {
			t.Errorf("%q is %+v, whose text %q is %+v, %v", text, got, got, again, err)
		}
	})
}

func TestValidateRefuses(t *testing.T) {
	for _, f := range []fault.Fault{
		{},
		{Kind: fault.Freeze + 1},
		{Kind: fault.Drop, Direction: fault.In},
		{Kind: fault.Cut, Bytes: 1},
		{Kind: fault.Freeze, Delay: 1},
		{Kind: fault.HalfOpen},
		{Kind: fault.HalfOpen, Direction: fault.Out + 1},
		{Kind: fault.Latency, Delay: -1},
		{Kind: fault.Latency, Jitter: -1},
		{Kind: fault.Latency, Bytes: 1},
		{Kind: fault.Latency, Direction: -1},
		{Kind: fault.Rate},
		{Kind: fault.Rate, Bytes: 1, Jitter: 1},
		{Kind: fault.Reset, Bytes: -1},
	} {
		if invalid, ok := errors.AsType[*fault.InvalidError](f.Validate()); !ok || invalid.Fault != f {
			t.Errorf("%+v: error is %v", f, f.Validate())
		}
	}
}

func TestKindsAreListedInOrder(t *testing.T) {
	_, err := fault.Parse("?")
	e, ok := errors.AsType[*fault.ParseError](err)
	if !ok || !slices.IsSorted(e.Known) || len(e.Known) != int(fault.Freeze) {
		t.Errorf("error is %v", err)
	}
}
