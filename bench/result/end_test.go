package result

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// anyEnd is an end as it may be.
var anyEnd = rapid.Custom(func(t *rapid.T) End {
	e := End{Kind: rapid.SampledFrom([]EndKind{"", EndMemory, EndDiscard, EndNull, EndEmbedded, EndReal}).Draw(t, "kind")}
	if e.Set() {
		e.Version = rapid.SampledFrom([]string{"5.0", "5.0.7", "8.0.0-rc3-12-gabc", ""}).Draw(t, "version")
		e.Members = rapid.IntRange(0, 50).Draw(t, "members")
	}
	return e
})

// TestEndWords: an end is written in words, and is after reading what it was.
func TestEndWords(t *testing.T) {
	for want, e := range map[string]End{
		"":                         {},
		"memory":                   {Kind: EndMemory},
		"null":                     {Kind: EndNull},
		"discard":                  {Kind: EndDiscard},
		"embedded 5.0 (3 members)": {Kind: EndEmbedded, Version: "5.0", Members: 3},
		"embedded 5.0 (1 member)":  {Kind: EndEmbedded, Version: "5.0", Members: 1},
		"real 5.0.7 (3 members)":   {Kind: EndReal, Version: "5.0.7", Members: 3},
		"embedded":                 {Kind: EndEmbedded},
	} {
		if got := e.String(); got != want {
			t.Errorf("%#v is %q, want %q", e, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		want := Run{Source: anyEnd.Draw(t, "source"), Target: anyEnd.Draw(t, "target")}
		text, err := json.Marshal(&want)
		if err != nil {
			t.Fatal(err)
		}
		if none := want.Source == (End{}); strings.Contains(string(text), `"source"`) == none {
			t.Fatalf("source %q: %s", want.Source, text)
		}
		var got Run
		if err := json.Unmarshal(text, &got); err != nil || got.Source != want.Source || got.Target != want.Target {
			t.Fatalf("%v: %q to %q, was %q to %q", err, got.Source, got.Target, want.Source, want.Target)
		}
	})
}

func TestEndUnknown(t *testing.T) {
	for _, text := range []string{"nowhere", "real 5.0.7 (three members)", "embedded 5.0 (3 members) or so", "null 5.0", "7", "5.0.7", "real5.0.7"} {
		var e End
		if err := e.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %#v", text, e)
		}
	}
}

func TestMixed(t *testing.T) {
	embedded, server, null := End{Kind: EndEmbedded, Version: "5.0", Members: 1}, End{Kind: EndReal, Version: "5.0.7", Members: 3}, End{Kind: EndNull}
	for _, c := range []struct {
		ends                []End
		mixed, onAnEmbedded bool
	}{
		{[]End{embedded, embedded, embedded, embedded}, false, true},
		{[]End{server, server, server, server}, false, false},
		{[]End{{}, server, null, server}, false, false},
		{[]End{{}, embedded, {}, embedded}, false, true},
		{[]End{server, embedded, server, embedded}, true, true}, // a run of its own is one already
		{[]End{embedded, server, embedded, server}, true, true},
		{[]End{server, server, embedded, embedded}, true, true},
		{[]End{embedded, embedded, {}, server}, true, true},
	} {
		a, b := &Run{Source: c.ends[0], Target: c.ends[1]}, &Run{Source: c.ends[2], Target: c.ends[3]}
		if Mixed(a, b) != c.mixed || Mixed(b, a) != c.mixed || OnEmbedded(a, b) != c.onAnEmbedded {
			t.Errorf("%s and %s: mixed %t, embedded %t", a.Ends(), b.Ends(), Mixed(a, b), OnEmbedded(a, b))
		}
	}
}
