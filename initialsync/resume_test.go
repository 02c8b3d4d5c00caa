package initialsync

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// everyKind is a world with every case that may occur in a copy.
func everyKind(t testing.TB) *world {
	w := newWorld(t)
	w.source = []sourceCollection{
		{name: "large", docs: 9, perRange: 2, indexes: []string{"a", "b"}},
		{name: "log", docs: 3, capped: true, indexes: []string{"l"}},
		{name: "emptylog", capped: true},
		{name: "plain", docs: 2},
		{name: "empty", indexes: []string{"e"}},
		{name: "badly", docs: 1, indexes: []string{"g1", "bad1", "bad2", "g2"}},
		{name: "alone", docs: 1, indexes: []string{"bad3"}},
		{name: "going", docs: 6, perRange: 2, goneAfter: 3, indexes: []string{"x"}},
		{name: "neverseen", docs: 2, goneFirst: true, indexes: []string{"x"}},
	}
	w.views = []string{"v1", "badview", "v2"}
	w.refused["bad1"] = servererr.New(servererr.DuplicateKey, "a duplicate")
	w.refused["bad2"] = servererr.New(servererr.CannotCreateIndex, "no such index type")
	w.refused["bad3"] = servererr.New(servererr.BadValue, "what is that")
	w.refused["db.badview"] = servererr.New(servererr.InvalidPipelineOperator, "unknown stage")
	w.target["db.old"] = &targetCollection{kind: "collection", docs: map[string]int{"x": 5}}
	w.target["db.plain"] = &targetCollection{kind: "collection", docs: map[string]int{"x": 5}}
	w.target["db.oldview"] = &targetCollection{kind: "view"}
	w.target["db.system.views"] = &targetCollection{kind: "collection"}
	w.target["db.series"] = &targetCollection{kind: "timeseries"}
	w.target["db.system.buckets.series"] = &targetCollection{kind: "collection"}
	w.target["other.mine"] = &targetCollection{kind: "collection", docs: map[string]int{"x": 1}}
	w.held["gone.c/i"] = true
	w.held["db.old/i"] = true
	return w
}

func copyWhole(t testing.TB, cfg Config, lanes int) (string, int) {
	t.Helper()
	w := everyKind(t)
	must.Succeed(t, w.start(cfg, lanes).Run(t.Context()))
	return w.state(), w.calls
}

// TestResume ends the process at each change that it makes, before or after the change,
// and resumes.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Workers: 1, IndexWorkers: 1},
		{Workers: 3, IndexWorkers: 2},
		{Workers: 3, IndexWorkers: 2, IndexesFirst: true},
		{Workers: 2, IndexWorkers: 2, NoHoles: true},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("workers=%d first=%t whole=%t late=%t", cfg.Workers, cfg.IndexesFirst, cfg.NoHoles, late), func(t *testing.T) {
				t.Parallel()
				want, calls := copyWhole(t, cfg, 4)
				if calls < 50 {
					t.Fatalf("only %d changes", calls)
				}
				for at := 1; at < calls; at++ {
					w := everyKind(t)
					c := w.start(cfg, 4)
					w.crashAt, w.late = at, late
					if err := c.Run(t.Context()); !errors.Is(err, errDead) {
						t.Fatalf("change %d: %v", at, err)
					}
					w.crashAt = 0
					c = w.start(cfg, 4)
					if err := c.Run(t.Context()); err != nil {
						t.Fatalf("after change %d: %v", at, err)
					}
					if diff := cmp.Diff(want, w.state()); diff != "" {
						t.Fatalf("after change %d: %s", at, diff)
					}
					checkProgress(t, c, at)
				}
			})
		}
	}
}

// checkProgress checks that the progress includes everything done, by any process.
func checkProgress(t *testing.T, c *Copier, at int) {
	t.Helper()
	p := c.Progress()
	type sums struct {
		Step                          Step
		Collections, TotalCollections int
		Docs, TotalDocs, Bytes        int64
		Indexes, TotalIndexes, Failed int
	}
	failed := 0
	for _, f := range p.Failed {
		if f.Name != "" {
			failed++ // views are reported by the process that created them
		}
	}
	got := sums{p.Step, p.Collections, p.TotalCollections, p.Docs, p.TotalDocs, p.Bytes, p.Indexes, p.TotalIndexes, failed}
	want := sums{StepDone, 9, 9, 20 - 1, 20 - 1, 1900, 6, 9, 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after change %d: the progress: %s", at, diff)
	}
	if p.Left != 0 || len(p.Current) != 0 {
		t.Errorf("after change %d: %s left, current %v", at, p.Left, p.Current)
	}
}

// TestResumeAgain repeatedly ends the process, with other settings each time.
func TestResumeAgain(t *testing.T) {
	t.Parallel()
	want, _ := copyWhole(t, Config{}, 8)
	rapid.Check(t, func(rt *rapid.T) {
		w := everyKind(t)
		for lives := 0; ; lives++ {
			cfg := Config{
				Workers: rapid.IntRange(1, 5).Draw(rt, "workers"), IndexWorkers: rapid.IntRange(1, 3).Draw(rt, "indexWorkers"),
				IndexesFirst: rapid.Bool().Draw(rt, "indexesFirst"),
			}
			c := w.start(cfg, rapid.IntRange(1, 6).Draw(rt, "lanes"))
			w.crashAt, w.late = rapid.IntRange(1, 30).Draw(rt, "crash"), rapid.Bool().Draw(rt, "late")
			err := c.Run(t.Context())
			if err == nil {
				break
			}
			if !errors.Is(err, errDead) {
				rt.Fatal(err)
			}
			if lives > 200 {
				rt.Fatal("it does not get on")
			}
		}
		if diff := cmp.Diff(want, w.state()); diff != "" {
			rt.Fatal(diff)
		}
	})
}

// TestLost damages the documents of a copy.
func TestLost(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *world){
		"no ranges":    func(w *world) { clear(w.ranges) },
		"a range gone": func(w *world) { delete(w.ranges, rangeKeyOf("large", 1)) },
		"a document":   func(w *world) { delete(w.docs, uuidOf("large")) },
		"a state":      func(w *world) { d := w.docs[uuidOf("large")]; d.State = "x"; w.docs[d.UUID] = d },
		"a range undone": func(w *world) {
			r := w.ranges[rangeKeyOf("large", 1)]
			r.Done = false
			w.ranges[rangeKeyOf("large", 1)] = r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := everyKind(t)
			must.Succeed(t, w.start(Config{}, 4).Run(t.Context()))
			damage(w)
			err := w.start(Config{}, 4).Run(t.Context())
			if !isDamaged(err) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func rangeKeyOf(name string, i int) string { return fmt.Sprintf("%x/%d", uuidOf(name), i) }

func isDamaged(err error) bool {
	_, ok := errors.AsType[*metadata.DamagedError](err)
	return ok
}
