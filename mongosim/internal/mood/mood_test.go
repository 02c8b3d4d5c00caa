package mood

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// statement is a write of a transaction, where many moods may occur.
func statement() *Place {
	return &Place{Command: "update", Version: [2]int{5, 0}, Primary: true, Several: true, Writes: true, InTxn: true, Session: true}
}

func temper(t *testing.T, cfg Config) *Temper {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// play returns what n commands meet.
func play(m *Temper, n int, place func() *Place) []string {
	var names []string
	for range n {
		name := ""
		if s := m.Meet(place(), false); s != nil {
			name = s.Name
		}
		names = append(names, name)
	}
	return names
}

// TestList: each mood says all that there is to say of it, and has a name of its own.
func TestList(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range All() {
		if m.Name == "" || seen[m.Name] {
			t.Errorf("the name %q is empty, or there twice", m.Name)
		}
		seen[m.Name] = true
		if m.Where == "" || m.Answer == "" || m.Fact == "" || m.OneIn < 1 || m.Kind == 0 || m.at == nil {
			t.Errorf("%s does not say all: %+v", m.Name, m)
		}
		if named := slices.Contains([]string{"Refuse", "Statement", "Unmet", "Shut", "Kill"}, m.Kind.String()); named != (m.Code != 0 && m.Text != "") {
			t.Errorf("%s has code %d and text %q", m.Name, m.Code, m.Text)
		}
	}
}

// TestDocs: docs/embedded-set.md has the list as a table.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/embedded-set.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "| mood |")
	text, _, _ = strings.Cut(text, "\n\n")
	got := strings.Split(text, "\n")[2:]
	var want []string
	for _, m := range All() {
		since := ""
		if m.Since != [2]int{} {
			since = fmt.Sprintf("%d.%d", m.Since[0], m.Since[1])
		}
		rate := strconv.Itoa(m.OneIn)
		if m.Standing {
			rate += " sets"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s | %s | %s | %s |", m.Name, m.Where, m.Answer, since, rate, m.Fact))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the page has another table: %s", diff)
	}
}

// TestSeed: the seed alone decides, and another one decides otherwise.
func TestSeed(t *testing.T) {
	t.Parallel()
	const places = 5000
	first := play(temper(t, Config{Seed: 1}), places, statement)
	if diff := cmp.Diff(first, play(temper(t, Config{Seed: 1}), places, statement)); diff != "" {
		t.Errorf("the same seed: %s", diff)
	}
	if slices.Equal(first, play(temper(t, Config{Seed: 2}), places, statement)) {
		t.Error("another seed changes nothing")
	}
}

// TestRates: a mood occurs about as often as it says, and commands are spared after
// one that is an error.
func TestRates(t *testing.T) {
	t.Parallel()
	const places = 60_000
	met := play(temper(t, Config{Seed: 3, Names: []string{"short-batch"}}), places, func() *Place { return &Place{Command: "find", Batch: true} })
	n := places - count(met, "")
	if want := places / 6; n < want*9/10 || n > want*11/10 {
		t.Errorf("%d of %d batches are short, want about %d", n, places, want)
	}
	last, spared := -1, 0
	for i, name := range play(temper(t, Config{Seed: 4}), places, statement) {
		if name == "" || slices.Contains([]string{"short-batch", "slow-majority"}, name) {
			continue
		}
		if i-last <= spared {
			t.Fatalf("%s at place %d, %d after the mood before, want more than %d", name, i, i-last, spared)
		}
		last, spared = i, max(Rest, spared+Calm)
	}
	if last < 0 {
		t.Error("no mood that is an error")
	}
	elections := 0
	m := temper(t, Config{Seed: 5, Elect: func() { elections++ }})
	if got := count(play(m, places, statement), "election"); got != 1 || elections != 1 {
		t.Errorf("%d elections, %d asked for; one set has one", got, elections)
	}
}

func count(names []string, name string) int {
	n := 0
	for _, other := range names {
		if other == name {
			n++
		}
	}
	return n
}

// TestChoice: a set has the moods that it should, and no others.
func TestChoice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  Config
		want func(m *Mood) bool
	}{
		"all":      {Config{Elect: func() {}}, func(*Mood) bool { return true }},
		"no elect": {Config{}, func(m *Mood) bool { return m.Kind != Elect }},
		"named":    {Config{Names: []string{"interrupted", "cursor-gone"}}, func(m *Mood) bool { return m.Name == "interrupted" || m.Name == "cursor-gone" }},
		"none":     {Config{Names: []string{}}, func(*Mood) bool { return false }},
		"without":  {Config{Elect: func() {}, Without: []string{"election"}}, func(m *Mood) bool { return m.Kind != Elect }},
		"gentle": {Config{Elect: func() {}, Gentle: true}, func(m *Mood) bool {
			return slices.Contains([]string{"short-batch", "early-return", "slow-majority"}, m.Name)
		}},
	} {
		m := temper(t, c.cfg)
		var want []string
		got := m.Moods()
		for _, one := range All() {
			if c.want(&one) {
				want = append(want, one.Name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, cfg := range []Config{{Names: []string{"x"}}, {Without: []string{"x"}}, {OneIn: map[string]int{"x": 1}}, {OneIn: map[string]int{"election": 0}}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}

// TestStanding: a refusal for lack of a privilege is the same each time, in as many sets
// as the list says, and other moods occur after it as ever.
func TestStanding(t *testing.T) {
	t.Parallel()
	const sets = 600
	refused := 0
	asks := func() *Place { return &Place{Command: "serverStatus", Primary: true} }
	for seed := range uint64(sets) {
		m := temper(t, Config{Seed: seed, Names: []string{"no-status", "unreachable"}})
		met := play(m, 50, asks)
		switch n := count(met, "no-status"); n {
		case 0:
		case len(met):
			refused++
			if next := play(temper(t, Config{Seed: seed, Names: []string{"no-status"}}), 50, asks); !slices.Equal(met, next) {
				t.Errorf("seed %d: the same set is refused otherwise", seed)
			}
			if m.rest != 0 || m.Struck()["no-status"] != len(met) {
				t.Errorf("seed %d: rests %d, refused %v", seed, m.rest, m.Struck())
			}
		default:
			t.Errorf("seed %d: refused %d times of %d", seed, n, len(met))
		}
		if s := m.Meet(asks(), true); s != nil {
			t.Errorf("seed %d: a gentle client meets %s", seed, s.Name)
		}
	}
	if want := sets / 6; refused < want*2/3 || refused > want*3/2 {
		t.Errorf("%d of %d sets refuse, want about %d", refused, sets, want)
	}
}

// TestVersions: an earlier version does not give a later version's answers.
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[[2]int]bool{{5, 0}: false, {6, 0}: true, {8, 0}: true} {
		m := temper(t, Config{Names: []string{"too-busy"}, OneIn: map[string]int{"too-busy": 1}})
		if got := m.Meet(&Place{Command: "insert", Version: version, Writes: true}, false) != nil; got != want {
			t.Errorf("%v: %t", version, got)
		}
	}
}

// TestApps: which clients meet moods, and which the gentle ones only.
func TestApps(t *testing.T) {
	t.Parallel()
	m := temper(t, Config{App: "a", GentleApp: "b", OneIn: map[string]int{"interrupted": 1, "short-batch": 1}, Names: []string{"interrupted", "short-batch"}})
	for app, want := range map[string][2]bool{"a": {true, false}, "b": {true, true}, "c": {false, true}, "": {}} {
		touched, gentle := m.Touches(app)
		if got := [2]bool{touched, gentle}; got != want {
			t.Errorf("%q: %v, want %v", app, got, want)
		}
	}
	find := &Place{Command: "find", Batch: true}
	for _, want := range []string{"short-batch", "short-batch"} {
		if s := m.Meet(find, true); s == nil || s.Name != want {
			t.Errorf("a gentle client meets %v", s)
		}
	}
	if s := m.Meet(find, false); s == nil || s.Name != "interrupted" {
		t.Errorf("another one meets %v", s)
	}
}

// TestNone: a nil Temper has no moods and touches no client.
func TestNone(t *testing.T) {
	t.Parallel()
	var m *Temper
	if touched, _ := m.Touches("replicator"); touched || m.Era() != 0 || m.Struck() != nil || m.String() != "" {
		t.Error("a nil Temper has moods")
	}
}
