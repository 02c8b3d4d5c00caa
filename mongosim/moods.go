package mongosim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/oplogrep/replicator/mongosim/internal/mood"
)

// Environment variables that choose the moods of tests.
const (
	// envMoods is "all", "off", or names with commas between them: each as it is, with
	// "=N", once in N places, or with "-" before it, all but those.
	envMoods = "REPLICATOR_MOODS"
	// envSeed is the seed, a number.
	envSeed = "REPLICATOR_SEED"
)

// program is the application name of the replicator.
const program = "replicator"

// Stage is the application name of clients that meet only the moods that are not errors,
// whatever Moods.App is: for tests of a part that does not retry.
const Stage = "replicator stage"

// Moods choose which rare answers of a real server a set gives: a lock timeout, a killed
// cursor, a reply that is lost after the command was executed. The page
// docs/embedded-set.md lists them. Only clients whose application name is App meet them.
// The zero value is all moods for [StartTest], except in benchmarks, and none for [Start].
type Moods struct {
	// All enables all moods, also with Start.
	All bool
	// None, if not empty, disables moods; the text is the reason.
	None string
	// Gentle, if not empty, disables moods that are errors; the text is the
	// reason.
	Gentle string
	// Without disables moods by name; the values are the reasons.
	Without map[string]string
	// Seed decides at which commands they occur; 0 is REPLICATOR_SEED, or a random one.
	Seed uint64
	// OneIn, if not nil, enables only these moods, each at one in that many
	// occasions.
	OneIn map[string]int
	// App is the application name of the clients that meet moods, default "replicator".
	App string
}

// NoMoods disables moods, for this reason.
func NoMoods(reason string) Moods { return Moods{None: reason} }

// GentleMoods enables only the moods that are not errors, for this reason.
func GentleMoods(reason string) Moods { return Moods{Gentle: reason} }

// MoodsWithout enables all moods but one, for this reason.
func MoodsWithout(name, reason string) Moods {
	return Moods{All: true, Without: map[string]string{name: reason}}
}

// But returns m with one more mood disabled, for this reason.
func (m Moods) But(name, reason string) Moods {
	without := maps.Clone(m.Without)
	if without == nil {
		without = map[string]string{}
	}
	without[name] = reason
	m.Without = without
	return m
}

// TestMoods returns what StartTest uses by default: all moods, or those that the
// environment variable REPLICATOR_MOODS asks for.
func TestMoods() (Moods, error) {
	m := Moods{All: true}
	err := m.fromEnvironment()
	return m, err
}

// isZero reports whether no field is set.
func (m *Moods) isZero() bool {
	return !m.All && m.None == "" && m.Gentle == "" && len(m.Without) == 0 && m.OneIn == nil
}

// fromEnvironment applies the environment to a test that has moods. It does not
// override moods that a test chose by rate.
func (m *Moods) fromEnvironment() error {
	if m.Seed == 0 {
		m.Seed = rand.Uint64()
		if text := os.Getenv(envSeed); text != "" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return fmt.Errorf("mongosim: %s=%q: want a number", envSeed, text)
			}
			m.Seed = n
		}
	}
	if m.None != "" || m.OneIn != nil {
		return nil
	}
	switch text := os.Getenv(envMoods); text {
	case "":
	case "all":
		m.All = true
	case "off":
		m.None = envMoods
	default:
		return m.choose(text)
	}
	return nil
}

// choose enables the moods that a text names.
func (m *Moods) choose(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		name, rate, given := strings.Cut(word, "=")
		name, without := strings.CutPrefix(name, "-")
		i := slices.Index(mood.Names(), name)
		switch {
		case i < 0:
			return fmt.Errorf("mongosim: %s: no mood %q", envMoods, name)
		case without:
			*m = m.But(name, envMoods)
			m.All = true
			continue
		case m.OneIn == nil:
			m.OneIn = map[string]int{}
		}
		if m.OneIn[name] = mood.All()[i].OneIn; given {
			n, err := strconv.Atoi(rate)
			if err != nil {
				return fmt.Errorf("mongosim: %s: %q is no rate", envMoods, word)
			}
			m.OneIn[name] = n
		}
	}
	return nil
}

// temper returns the Temper of the moods, nil for no moods.
func (m *Moods) temper(elect func()) (*mood.Temper, error) {
	if m.isZero() || m.None != "" {
		return nil, nil //nolint:nilnil // a nil Temper has no moods
	}
	app := m.App
	if app == "" {
		app = program
	}
	cfg := mood.Config{
		Seed: m.Seed, App: app, GentleApp: Stage, Gentle: m.Gentle != "", OneIn: m.OneIn,
		Without: slices.Sorted(maps.Keys(m.Without)), Elect: elect,
	}
	if m.OneIn != nil {
		cfg.Names = slices.Sorted(maps.Keys(m.OneIn))
	}
	t, err := mood.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("mongosim: %w", err)
	}
	return t, nil
}

// elect makes the primary step down, as a mood. It does nothing if there is no
// primary now, or no other member can be elected.
func (s *Set) elect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.electing.Go(func() {
		if err := s.StepDown(s.ctx); err != nil && !errors.Is(err, context.Canceled) {
			s.opts.Log.Debug("no election", keyError, err)
		}
	})
}

// Moods returns how often each mood has occurred so far, by name.
func (s *Set) Moods() map[string]int { return s.temper.Struck() }

// tell logs the seed and the moods that occurred, if the test has failed.
func (s *Set) tell(t TB) {
	log, ok := t.(interface {
		Failed() bool
		Logf(format string, args ...any)
	})
	if !ok || s.temper == nil || !log.Failed() {
		return
	}
	log.Logf("moods of %s: %s=%d; there were: %s", s.URI(), envSeed, s.opts.Moods.Seed, s.temper)
}
