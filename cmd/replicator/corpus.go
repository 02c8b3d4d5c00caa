package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/internal/corpus"
)

type corpusCommand struct {
	Dir  string   `arg:"" optional:"" default:"testdata/corpus" help:"Folder of recordings, or one recording."`
	Only []string `placeholder:"NAME" help:"Only the recording of this name. May be given again."`
	Seed uint64   `default:"1" help:"Seed for which parts of a long log are applied again."`
}

// Run proves the recordings one after the other. All of them are tried, whatever
// comes of the first: one that cannot be read gets its line too.
func (c *corpusCommand) Run(ctx context.Context, out output) error {
	scenarios, err := corpus.Open(c.Dir)
	if err != nil {
		return err
	}
	if scenarios, err = c.choose(scenarios); err != nil {
		return err
	}
	var broken error
	var failed int
	for i := range scenarios {
		report := corpus.Verify(ctx, &scenarios[i], corpus.Options{Seed: c.Seed})
		if ctx.Err() != nil {
			return stoppedError{fmt.Errorf("prove %s: %w", scenarios[i].Name, context.Cause(ctx))}
		}
		if _, err := fmt.Fprintln(out.results, report.String()); err != nil {
			return fmt.Errorf("write the result of %s: %w", report.Name, err)
		}
		if report.Err != nil {
			broken = errors.Join(broken, fmt.Errorf("prove %s: %w", report.Name, report.Err))
		} else if !report.OK() {
			failed++
		}
	}
	if failed > 0 {
		err = failedError{fmt.Errorf("%d of %d recordings failed, with seed %d", failed, len(scenarios), c.Seed)}
	}
	return errors.Join(broken, err)
}

func (c *corpusCommand) choose(all []corpus.Scenario) ([]corpus.Scenario, error) {
	if len(c.Only) == 0 {
		return all, nil
	}
	var chosen []corpus.Scenario
	for _, name := range c.Only {
		i := slices.IndexFunc(all, func(s corpus.Scenario) bool { return s.Name == name })
		if i < 0 {
			var names []string
			for _, s := range all {
				names = append(names, s.Name)
			}
			return nil, usageError{fmt.Errorf("no recording %q in %s; there are %s", name, c.Dir, strings.Join(names, ", "))}
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
