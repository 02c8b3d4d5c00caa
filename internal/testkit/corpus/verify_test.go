package corpus

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/race"
)

const recordings = "../../../testdata/corpus"

// TestCorpus proves every recording. The seed of a failure is in its message. Under
// the race detector parts are applied again in fewer rounds: one goroutine does all.
func TestCorpus(t *testing.T) {
	options := Options{Seed: 1}
	if race.Enabled {
		options.Rounds = 2
	}
	scenarios, err := Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			r := Verify(t.Context(), &s, options)
			if !r.OK() {
				t.Fatalf("seed %d: %s", r.Seed, r.String())
			}
			t.Log(r.String())
			if r.Converged == 0 {
				t.Error("it was not applied again")
			}
			if fuzzy := len(r.Notes) > 0; fuzzy != (s.Name == "fuzzy-clone") {
				t.Errorf("notes: %q", r.Notes)
			}
		})
	}
}

// TestVerifyFinds changes what must result: the proof has to fail, and to say
// where.
func TestVerifyFinds(t *testing.T) {
	tests := []struct {
		name, scenario string
		change         func(t *testing.T, s *Scenario)
		want           string
	}{
		{"a changed document", "types", func(t *testing.T, s *Scenario) {
			file := filepath.Join(s.path("after"), "types.a.bson")
			docs := split(t, readFile(t, file))
			var d bson.D
			if err := bson.Unmarshal(docs[0], &d); err != nil {
				t.Fatal(err)
			}
			last := len(d) - 1
			d[last-1], d[last] = d[last], d[last-1]
			var err error
			if docs[0], err = bson.Marshal(d); err != nil {
				t.Fatal(err)
			}
			writeFile(t, file, join(docs...))
		}, "types.a: _id"},
		{"a missing document", "types", func(t *testing.T, s *Scenario) {
			file := filepath.Join(s.path("after"), "types.a.bson")
			docs := split(t, readFile(t, file))
			writeFile(t, file, join(docs[1:]...))
		}, "want none"},
		{"another natural order", "ddl", func(t *testing.T, s *Scenario) {
			file := filepath.Join(s.path("after"), "ddl.capped.bson")
			docs := split(t, readFile(t, file))
			docs[0], docs[1] = docs[1], docs[0]
			writeFile(t, file, join(docs...))
		}, "ddl.capped: document 0 in natural order"},
		{"another option", "ddl", func(t *testing.T, s *Scenario) {
			replaceInCatalog(t, s, `"moderate"`, `"strict"`)
		}, "ddl.valid: option validationLevel: "},
		{"another index", "ddl", func(t *testing.T, s *Scenario) {
			replaceInCatalog(t, s, `"268435456"`, `"268435457"`)
		}, "other.moved: index ttl_1"},
		{"another view", "ddl", func(t *testing.T, s *Scenario) {
			replaceInCatalog(t, s, `"viewOn":"plain"`, `"viewOn":"other"`)
		}, "ddl.view1: option viewOn: "},
		{"a document after a moving copy", "fuzzy-clone", func(t *testing.T, s *Scenario) {
			file := filepath.Join(s.path("after"), "rnd0.c0.bson")
			writeFile(t, file, join(split(t, readFile(t, file))[1:]...))
		}, "initial sync: rnd0.c0: _id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := copyOf(t, tt.scenario)
			tt.change(t, &s)
			r := Verify(t.Context(), &s, Options{})
			if r.OK() || r.Err != nil {
				t.Fatalf("got %s, want a failure", &r)
			}
			if text := r.String(); !strings.HasPrefix(text, "FAIL ") || !strings.Contains(text, tt.want) {
				t.Errorf("got %s\nwant %q in it", text, tt.want)
			}
		})
	}
}

// TestSteadyIsStricter has a log that only a member in steady state stops at.
func TestSteadyIsStricter(t *testing.T) {
	const catalog = `[{"ns": "d.c", "type": "collection", "options": {}, "indexes": []}]`
	insert := bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: "d.none"}, {Key: "o", Value: bson.D{{Key: "_id", Value: 1}}}}
	s := record(t, catalog, nil, nil, insert)
	if err := os.RemoveAll(s.path("before")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(s.path("after"), catalogFile), []byte("[]"))
	if err := os.Remove(filepath.Join(s.path("after"), "d.c.bson")); err != nil {
		t.Fatal(err)
	}
	r := Verify(t.Context(), &s, Options{})
	if len(r.Failures) != 1 || r.Failures[0].Way != "steady" || !strings.Contains(r.String(), "NamespaceNotFound") {
		t.Errorf("got %s", &r)
	}
}

func replaceInCatalog(t *testing.T, s *Scenario, old, text string) {
	t.Helper()
	file := filepath.Join(s.path("after"), catalogFile)
	data := string(readFile(t, file))
	if !strings.Contains(strings.ReplaceAll(data, " ", ""), old) {
		t.Fatalf("no %s in the catalog", old)
	}
	data = strings.ReplaceAll(data, `"viewOn": "`, `"viewOn":"`)
	writeFile(t, file, []byte(strings.ReplaceAll(data, old, text)))
}

// TestMustConverge has a log that does not end where it ended when it is applied
// again, as capped collections need not.
func TestMustConverge(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name    string
		said    *bool
		ok      bool
		because string
	}{
		{"found out", nil, true, "a capped collection gets an _id twice"},
		{"must", &yes, false, ""},
		{"must not", &no, true, "the recording says that it cannot be applied again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := cappedTwice(t)
			s.Meta.Reappliable = tt.said
			r := Verify(t.Context(), &s, Options{})
			if r.Err != nil || r.OK() != tt.ok || r.NotReapplied != tt.because {
				t.Errorf("got %s", &r)
			}
			if tt.because != "" && !strings.Contains(r.String(), "applied once") {
				t.Errorf("got %s, want it to say that it was applied once", &r)
			}
		})
	}
}

// cappedTwice is a recording in which a document comes back in front of another:
// applied again, it comes back after it.
func cappedTwice(t *testing.T) Scenario {
	t.Helper()
	const catalog = `[{"ns": "d.c", "type": "collection", "options": {"capped": true}, "indexes": [],
		"uuid": {"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAQ==", "subType": "04"}}}]`
	id := func(n int) bson.D { return bson.D{{Key: "_id", Value: n}} }
	op := func(op string, n int) bson.D {
		uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: append(make([]byte, 15), 1)}
		return bson.D{{Key: "op", Value: op}, {Key: "ns", Value: "d.c"}, {Key: "ui", Value: uuid}, {Key: "o", Value: id(n)}}
	}
	return record(
		t, catalog, nil, []bson.D{id(2), id(1), id(3)},
		op("i", 1), op("i", 2), op("d", 1), op("i", 1), op("i", 3),
	)
}

func TestFeatureCompatibilityVersion(t *testing.T) {
	s := record(t, "[]", nil, nil, bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: "admin.system.version"},
		{Key: "o", Value: bson.D{{Key: "_id", Value: "featureCompatibilityVersion"}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: "featureCompatibilityVersion"}}},
	})
	for _, part := range []string{"before", "after"} {
		if err := os.Remove(filepath.Join(s.path(part), "d.c.bson")); err != nil {
			t.Fatal(err)
		}
	}
	r := Verify(t.Context(), &s, Options{})
	if !r.OK() || r.NotReapplied == "" {
		t.Errorf("got %s", &r)
	}
	for fcv, want := range map[string]bool{"": false, "4.4": true, "5.0": false, "10.0": false, "x": false} {
		s.Meta.FCV = fcv
		if s.trimsCapped() != want {
			t.Errorf("feature compatibility version %q trims: %v", fcv, !want)
		}
	}
	for version, want := range map[string]bool{"": false, "4.4.10": true, "5.0.7": false, "8.0.0-rc1": false} {
		s.Meta.FCV, s.Meta.ServerVersion = "", version
		if s.trimsCapped() != want {
			t.Errorf("server version %q trims: %v", version, !want)
		}
		s.Meta.FCV = "5.0"
		if s.trimsCapped() {
			t.Errorf("server version %q with feature compatibility version 5.0 trims", version)
		}
	}
}

func TestVerifyStops(t *testing.T) {
	all, err := Open(filepath.Join(recordings, "mass"))
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stopped by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if r := Verify(ctx, &all[0], Options{}); !errors.Is(r.Err, stop) {
		t.Errorf("stopped before: got %v", r.Err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(stop) })
	if r := Verify(ctx, &all[0], Options{Rounds: 1 << 20}); !errors.Is(r.Err, stop) {
		t.Errorf("stopped in between: got %v", r.Err)
	}
}

func TestRounds(t *testing.T) {
	p := proof{groups: make([]memstore.Group, 3)}
	if n := len(p.rounds()); n != 16 {
		t.Errorf("got %d rounds for 3 groups, want every pair, 16", n)
	}
	p.groups = make([]memstore.Group, 100_000)
	if n := len(p.rounds()); n != minRounds {
		t.Errorf("got %d rounds for many groups, want %d", n, minRounds)
	}
	for _, n := range []int{3, 1000} {
		p.groups = make([]memstore.Group, n)
		p.bytesPerRound = bytesPerScenario / 10
		if got := len(p.rounds()); got != 10 {
			t.Errorf("got %d rounds for %d groups with large documents, want 10", got, n)
		}
		p.bytesPerRound = 10 * bytesPerScenario
		if got := len(p.rounds()); got != minRoundsOfBytes {
			t.Errorf("got %d rounds for %d groups with documents too large, want %d", got, n, minRoundsOfBytes)
		}
	}
	p.options = Options{Seed: 7, Rounds: 5}
	first := p.rounds()
	if !slices.Equal(first, p.rounds()) || len(first) != 5 {
		t.Errorf("a seed does not fix the sample: %v", first)
	}
	p.groups = nil
	if n := len(p.rounds()); n > 5 {
		t.Errorf("got %d rounds for an empty log", n)
	}
}
