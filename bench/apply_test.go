package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// presetOf is a preset with few operations.
func presetOf(t testing.TB, preset string, ops int) workload.Workload {
	t.Helper()
	w := must.Get(workload.Preset(preset))(t)
	w.Seed, w.Ops = 7, ops
	if w.Documents > 0 {
		w.Documents = ops
	}
	w.Namespaces = min(max(w.Namespaces, 4), 50)
	return w
}

// played is a set that has applied the log of a workload, by other means than those
// that are measured.
func played(t *testing.T, w workload.Workload) *ends.End {
	t.Helper()
	end, _, err := ends.Start(t.Context(), nil, ends.What{Kind: ends.Played, Seed: sourceSeed, Workload: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end.Close)
	return end
}

// TestApplied: after each measured round the target contains the documents of the
// workload, whether the applier or the plain driver has written them.
func TestApplied(t *testing.T) {
	for _, preset := range []string{"mixed", "coalesce", "txn"} {
		t.Run(preset, func(t *testing.T) {
			w := presetOf(t, preset, 400)
			want := played(t, w)
			c := Config{Workload: w, Rounds: 2, Writers: 4, BatchOps: 100, FlushDocs: 30, CeilingBatch: 20}
			c.setDefaults()
			to, err := openTarget(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := to.done(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			for name, contend := range map[string]func(Config, *target) (*contender, error){"apply": newApplying, "ceiling": newCeiling} {
				one, err := contend(c, to)
				if err != nil {
					t.Fatal(err)
				}
				must.Succeed(t, turns(t.Context(), c, one))
				if err := same(t.Context(), want, to.End, "none", to.collections); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

func TestApplyToNull(t *testing.T) {
	w := presetOf(t, "small-inserts", 1000)
	run := must.Get(Apply(t.Context(), Config{Workload: w, Target: nullEnd, Rounds: 3, Writers: 4}))(t)
	f := runFigures{run, "apply/small-inserts/null/writers=4/ops=1000"}
	f.check(t, "apply", 1000, 3)
	if run.Ends() != "→ null" || run.Settings["writers"] != 4 || run.Settings["size"] != 200 {
		t.Errorf("from %q to %q with %v", run.Source, run.Target, run.Settings)
	}
	// Every insert was acknowledged, and no other one.
	if len(run.Notes) != 1 || !strings.Contains(run.Notes[0], "acknowledged 1000 statements") {
		t.Errorf("notes %q", run.Notes)
	}
}

func TestApplyWithCeiling(t *testing.T) {
	apply, ceiling, err := ApplyWithCeiling(t.Context(), Config{Workload: presetOf(t, "updates", 300), Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []runFigures{
		{apply, "apply/updates/set/ops=300/documents=300"},
		{ceiling, "ceiling/updates/set/ops=300/documents=300"},
	} {
		f.check(t, f.Kind, 300, 2)
	}
	if apply.Kind != "apply" || ceiling.Kind != "ceiling" || ceiling.Settings["batch"] != defaultCeilingBatch {
		t.Errorf("%s and %s with %v", apply.Kind, ceiling.Kind, ceiling.Settings)
	}
}

// TestRefuseOverwrite: databases that a connection string leads to are left alone
// unless it is said that they are not wanted.
func TestRefuseOverwrite(t *testing.T) {
	end, err := ends.StartEmbedded(t.Context(), targetSeed, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	w := presetOf(t, "updates", 50)
	collections, err := collectionsOf(w)
	if err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, end.Fill(t.Context(), collections))
	c := Config{Workload: w, Target: end.URI, Rounds: 2}
	for name, run := range map[string]func() error{
		"apply":   func() error { return onlyError(Apply(t.Context(), c)) },
		"ceiling": func() error { return onlyError(Ceiling(t.Context(), c)) },
	} {
		err := run()
		if there, ok := errors.AsType[*ExistsError](err); !ok || !slices.Equal(there.Databases, []string{workload.Database}) {
			t.Errorf("%s: %v", name, err)
		}
		var n int64
		for i := range collections {
			there, err := count(t.Context(), end.Set, collections[i].NS)
			if err != nil {
				t.Fatal(err)
			}
			n += there
		}
		if n != 50 {
			t.Errorf("%s: %d documents of 50 are left", name, n)
		}
	}
	c.Overwrite = true
	run, err := Apply(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if run.Target != oneEmbedded {
		t.Errorf("the target is shown as %q, though it plays a version only", run.Target)
	}
	left, err := end.Existing(t.Context(), []string{workload.Database, ends.MetaDB})
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestApplyRecording: a recording makes its collections by itself, in databases of its
// own: they are gone before each round and after the last, and those of others stay.
func TestApplyRecording(t *testing.T) {
	end, err := ends.StartEmbedded(t.Context(), targetSeed, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	c := Config{Workload: workload.Workload{Name: "types", File: "../testdata/corpus/types/oplog.bson"}, Target: end.URI, Rounds: 2}
	dbs, err := databases(c.Workload)
	if err != nil || len(dbs) == 0 {
		t.Fatalf("it writes to %v, %v", dbs, err)
	}
	run, err := Apply(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Rounds) != 2 || run.Ops == 0 {
		t.Errorf("%d rounds with %d operations", len(run.Rounds), run.Ops)
	}
	left, err := end.Existing(t.Context(), append(dbs, ends.MetaDB))
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	// Its commands are carried out on a server that keeps no documents, too; a plain client
	// has none.
	null := c
	null.Target = nullEnd
	if to, err := Apply(t.Context(), null); err != nil || to.Ops != run.Ops {
		t.Errorf("to a null target: %+v, %v", to, err)
	}
	null.Target = ""
	if _, err := Ceiling(t.Context(), null); err == nil || !strings.Contains(err.Error(), "commands") {
		t.Errorf("a ceiling with commands: %v", err)
	}
	theirs := workload.Collection{NS: oplog.NewNamespace(dbs[0], "theirs")}
	must.Succeed(t, end.Fill(t.Context(), []workload.Collection{theirs}))
	if there, ok := errors.AsType[*ExistsError](onlyError(Apply(t.Context(), c))); !ok || !slices.Equal(there.Databases, dbs[:1]) {
		t.Errorf("with somebody's collection there: %v", there)
	}
	if left, err := end.Existing(t.Context(), dbs); err != nil || !slices.Equal(left, dbs[:1]) {
		t.Errorf("%v are left, %v", left, err)
	}
}

func onlyError[T any](_ T, err error) error { return err }

func TestConfig(t *testing.T) {
	c := Config{Workload: presetOf(t, "updates", 50)}
	c.setDefaults()
	if err := c.validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for want, spoil := range map[string]func(*Config){
		"0 writers":              func(c *Config) { c.Writers = 0 },
		"-1 rounds":              func(c *Config) { c.Rounds = -1 },
		"-1 operations of a":     func(c *Config) { c.BatchOps = -1 },
		"-2 documents":           func(c *Config) { c.FlushDocs = -2 },
		"a buffer of 1 bytes":    func(c *Config) { c.BufferBytes = 1 },
		"-1 operations a second": func(c *Config) { c.Rate = -1 },
		"-3 ranges":              func(c *Config) { c.CloneWorkers = -3 },
		"a bulk write":           func(c *Config) { c.CeilingBatch = -1 },
	} {
		bad := c
		spoil(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := plain.Prepare(c.Workload, 0); err == nil {
		t.Error("divided over nobody")
	}
}
