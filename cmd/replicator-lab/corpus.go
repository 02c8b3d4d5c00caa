package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/internal/testkit/transcript"
)

// mirrorWork bounds how many settings a recording is mirrored with: all of them
// for one of a few thousand entries, fewer for one of many.
const mirrorWork = 100_000

type corpusCommand struct {
	Dir  string   `arg:"" optional:"" default:"testdata/corpus" help:"Folder of recordings, or one recording."`
	Only []string `placeholder:"NAME" help:"Only the recording of this name. May be given again."`
	Seed uint64   `default:"1" help:"Seed for which parts of a long log are applied again, and with which settings it is mirrored."`
}

// Run proves the recordings one after the other: what their logs do to data, that
// the embedded replica set answers as the recorded one did, and that the pipeline
// mirrors them from one such set into another. A failure does not stop the rest:
// a recording that cannot be read gets its line too.
func (c *corpusCommand) Run(ctx context.Context, out cli.Output) error {
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
		bad, err := c.prove(ctx, &scenarios[i], out)
		if bad && err == nil {
			failed++
		}
		if is[*cli.Error](err) { // it was stopped
			return err
		}
		broken = errors.Join(broken, err)
	}
	if failed > 0 {
		err = failedError(fmt.Errorf("%d of %d recordings failed, with seed %d", failed, len(scenarios), c.Seed))
	}
	return errors.Join(broken, err)
}

// prove proves one recording and prints a line for each of the three levels. The
// error says why it could not be proved.
func (c *corpusCommand) prove(ctx context.Context, s *corpus.Scenario, out cli.Output) (bad bool, err error) {
	applied := corpus.Verify(ctx, s, corpus.Options{Seed: c.Seed})
	if err := c.print(ctx, s, out, applied.String()); err != nil {
		return false, err
	}
	if applied.Err != nil {
		return false, fmt.Errorf("prove %s: %w", s.Name, applied.Err)
	}
	replayed := transcript.Replay(ctx, s, transcript.Options{})
	if err := c.print(ctx, s, out, replayed.String()); err != nil {
		return false, err
	}
	if file, ok := errors.AsType[*corpus.FileError](replayed.Err); ok {
		return false, fmt.Errorf("replay %s: %w", s.Name, file)
	}
	ended := mirrored.Prove(ctx, s, mirrored.Options{Work: mirrorWork, Seed: c.Seed})
	if err := c.print(ctx, s, out, ended.String()); err != nil {
		return false, err
	}
	return !applied.OK() || !replayed.OK() || !ended.OK(), nil
}

func (c *corpusCommand) print(ctx context.Context, s *corpus.Scenario, out cli.Output, line string) error {
	if ctx.Err() != nil {
		return cli.Stopped(ctx, fmt.Errorf("prove %s: %w", s.Name, context.Cause(ctx)))
	}
	if _, err := fmt.Fprintln(out.Results, line); err != nil {
		return fmt.Errorf("write the result of %s: %w", s.Name, err)
	}
	return nil
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
			return nil, cli.Usage(fmt.Errorf("no recording %q in %s; there are %s", name, c.Dir, strings.Join(names, ", ")))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
