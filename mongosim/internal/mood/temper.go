package mood

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// After a mood that is not gentle, Rest commands are spared such moods, and Calm more
// for each earlier one, so that work that restarts each time eventually ends.
const (
	Rest = 40
	Calm = 10
)

// Config says which moods a set has.
type Config struct {
	// Seed decides at which places they occur.
	Seed uint64
	// App is the application name of clients that meet them, and GentleApp that of
	// clients that meet the gentle ones only.
	App, GentleApp string
	// Names are the enabled moods; nil is all.
	Names []string
	// Without are the disabled ones.
	Without []string
	// Gentle leaves out all that are errors.
	Gentle bool
	// OneIn, by name, overrides the list's rates.
	OneIn map[string]int
	// Elect makes the primary step down. It must not block; nil means no elections.
	Elect func()
}

// Temper decides which moods a set has, and when. It is safe for concurrent use; a nil
// Temper has none.
type Temper struct {
	cfg   Config
	moods []Mood

	// era counts how often connections were dropped.
	era atomic.Int64

	mu     sync.Mutex // guards the fields below
	met    []uint64   // number of places of each mood, by index
	struck []int      // how often it occurred
	rest   int        // commands still spared
	errors int        // number of moods so far that are not gentle
}

// Strike is a mood that occurs.
type Strike struct {
	*Mood
	// Draw is a random number for further decisions, such as the length of a short
	// batch.
	Draw uint64
}

// New makes a Temper. A name that is not in the list is an error.
func New(cfg Config) (*Temper, error) {
	t := &Temper{cfg: cfg}
	all := All()
	var faults []error
	for _, name := range slices.Concat(cfg.Names, cfg.Without, slices.Sorted(maps.Keys(cfg.OneIn))) {
		if !slices.ContainsFunc(all, func(m Mood) bool { return m.Name == name }) {
			faults = append(faults, fmt.Errorf("mood: no mood %q; there are %s", name, strings.Join(Names(), ", ")))
		}
	}
	for name, n := range cfg.OneIn {
		if n < 1 {
			faults = append(faults, fmt.Errorf("mood: %s at one in %d places", name, n))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	for i := range all {
		m := &all[i]
		named := cfg.Names == nil || slices.Contains(cfg.Names, m.Name)
		if !named || slices.Contains(cfg.Without, m.Name) || cfg.Gentle && !m.gentle() || m.Kind == Elect && cfg.Elect == nil {
			continue
		}
		if n, ok := cfg.OneIn[m.Name]; ok {
			m.OneIn = n
		}
		t.moods = append(t.moods, *m)
	}
	t.met, t.struck = make([]uint64, len(t.moods)), make([]int, len(t.moods))
	return t, nil
}

// Moods returns the names of the enabled moods, in the order of the list.
func (t *Temper) Moods() []string {
	if t == nil {
		return nil
	}
	var names []string
	for i := range t.moods {
		names = append(names, t.moods[i].Name)
	}
	return names
}

// Names returns the names of all moods, in the order of the list.
func Names() []string {
	var names []string
	for _, m := range All() {
		names = append(names, m.Name)
	}
	return names
}

// Touches reports whether a client of an application meets moods, and whether only
// gentle ones.
func (t *Temper) Touches(app string) (touched, gentle bool) {
	if t == nil || app == "" {
		return false, false
	}
	return app == t.cfg.App || app == t.cfg.GentleApp, app != t.cfg.App
}

// Era is the age of a connection that is made now: see [Kind] Drop.
func (t *Temper) Era() int64 {
	if t == nil {
		return 0
	}
	return t.era.Load()
}

// Meet returns the mood that a command meets, nil for none. gentle restricts it to
// those that are not errors.
func (t *Temper) Meet(p *Place, gentle bool) *Strike {
	t.mu.Lock()
	defer t.mu.Unlock()
	var strike *Strike
	spared := gentle || t.rest > 0
	if t.rest > 0 && !gentle {
		t.rest--
	}
	for i := range t.moods {
		m := &t.moods[i]
		if p.Version[0] < m.Since[0] || p.Version[0] == m.Since[0] && p.Version[1] < m.Since[1] || !m.at(p) {
			continue
		}
		n := t.met[i]
		if !m.Standing {
			t.met[i]++
		}
		draw := t.draw(m.Name, n)
		if m.Standing {
			if strike == nil && !gentle && draw%uint64(m.OneIn) == 0 {
				t.struck[i]++
				strike = &Strike{Mood: m}
			}
			continue
		}
		if strike != nil || draw%uint64(m.OneIn) != 0 || spared && !m.gentle() || m.Most > 0 && t.struck[i] >= m.Most {
			continue
		}
		t.struck[i]++
		strike = &Strike{Mood: m, Draw: draw / uint64(m.OneIn)}
	}
	if strike == nil {
		return nil
	}
	if !strike.gentle() && !strike.Standing {
		t.rest = Rest + Calm*t.errors
		t.errors++
	}
	switch strike.Kind { //nolint:exhaustive // The caller does all others.
	case Drop:
		t.era.Add(1)
	case Elect:
		t.cfg.Elect()
	}
	return strike
}

// draw is the number of the n-th place of a mood.
func (t *Temper) draw(name string, n uint64) uint64 {
	h := fnv.New64a()
	var key [16]byte
	for i := range 8 {
		key[i], key[8+i] = byte(t.cfg.Seed>>(8*i)), byte(n>>(8*i))
	}
	_, _ = h.Write(key[:])
	_, _ = h.Write([]byte(name))
	// FNV's low bits are weak for inputs that differ in few bits.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// Struck returns how often each mood has occurred, by name; those that have not are
// left out.
func (t *Temper) Struck() map[string]int {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	struck := map[string]int{}
	for i := range t.moods {
		if t.struck[i] > 0 {
			struck[t.moods[i].Name] = t.struck[i]
		}
	}
	return struck
}

// String describes the moods that have occurred.
func (t *Temper) String() string {
	struck := t.Struck()
	words := make([]string, 0, len(struck))
	for _, name := range slices.Sorted(maps.Keys(struck)) {
		words = append(words, fmt.Sprintf("%s %d", name, struck[name]))
	}
	return strings.Join(words, ", ")
}
