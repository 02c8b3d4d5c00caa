package cutover_test

import (
	"testing"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestAgainIsTheSame: a process that goes on once it has its lock again leaves a cutover alone that another operator has
// begun since.
func TestAgainIsTheSame(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	for name, do := range map[string]func(*cutover.Config) (*record.Record, error){
		"resumed":   func(cfg *cutover.Config) (*record.Record, error) { return cutover.Resume(t.Context(), cfg) },
		"cancelled": func(cfg *cutover.Config) (*record.Record, error) { return cutover.Cancel(t.Context(), cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMoved(t, target, "dr-"+name)
			first := &record.Record{Link: m.link, ID: "first", State: record.Running, Options: *byBlock, Steps: []record.Taken{}}
			must.Succeed(t, m.records.Put(t.Context(), nil, first))
			cut := &crash{Caller: target, at: 3}
			cfg := m.config(cut, m.source)
			if _, err := do(cfg); err == nil {
				t.Fatal("it was not interrupted")
			}
			was := must.Get(m.records.Get(t.Context(), m.link))(t)
			second := first.Clone()
			second.ID, second.By = "second", "another"
			must.Succeed(t, m.records.Put(t.Context(), was, second))
			cut.at = never
			_, err := do(cfg)
			must.Fail(t, err, record.ErrChanged)
			if is := must.Get(m.records.Get(t.Context(), m.link))(t); is.Save != second.Save {
				t.Errorf("the record is %+v", is)
			}
		})
	}
}
