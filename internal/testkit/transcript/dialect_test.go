package transcript

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// silent are recordings without a transcript.
var silent = []string{"id-moves", "live"}

// unplayable are recordings that a version refuses.
var unplayable = map[string][]string{
	"4.4": {"timeseries", "update-strange-names"}, // there were none; there was no $setField
	"7.0": {"timeseries"},                         // they have an index more, since 6.3
	"8.0": {"timeseries"},                         // buckets are compressed
}

// TestDialects replays the recordings in every dialect. However a version logs
// the commands, the same data must result, in the member and in a follower that applies
// the log.
func TestDialects(t *testing.T) {
	race.Skip(t, "it replays all recordings in all dialects, each in one goroutine")
	scenarios, err := corpus.Open(corpusDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, dialect := range mongosim.Dialects() {
		for i := range scenarios {
			s := &scenarios[i]
			if s.Name == "failover" || slices.Contains(silent, s.Name) || slices.Contains(unplayable[dialect], s.Name) {
				continue
			}
			t.Run(dialect+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				testDialect(t, dialect, s)
			})
		}
	}
}

func testDialect(t *testing.T, dialect string, s *corpus.Scenario) {
	options := Options{dialect: dialect}
	options.setDefaults()
	p := player{options: options, pairs: newPairs()}
	if err := p.run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for _, d := range p.report.Differences {
		if d.Part == PartData {
			t.Errorf("the member: %s", d)
		}
	}
	store := memstore.New(memstore.Config{TrimCapped: dialect == "4.4"})
	grouper, err := memstore.NewGrouper(txn.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer grouper.Close() //nolint:errcheck // nothing was spilled
	for _, raw := range p.log {
		e, err := oplog.ParseEntry(raw)
		if err != nil {
			t.Fatalf("%s: %s", err, raw)
		}
		g, err := grouper.Add(&e)
		if err == nil {
			err = store.ApplyGroup(&g, memstore.Steady)
		}
		if err != nil {
			t.Fatalf("%s: %s", err, raw)
		}
	}
	got := store.Snapshot()
	for i := range got.Collections {
		c := &got.Collections[i]
		for j, doc := range c.Documents {
			c.Documents[j] = p.restored(doc)
		}
		if c.NS.IsBuckets() {
			p.reorder(c.NS, c.Documents)
		}
	}
	for _, d := range memstore.Diff(p.after, got) {
		t.Errorf("a follower: %s", d)
	}
}
