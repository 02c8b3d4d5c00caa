package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/oplogrep/replicator/bench/report"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/cli"
)

type benchCompare struct {
	Old string `arg:"" help:"The earlier results."`
	New string `arg:"" help:"The newer ones."`
}

// Run compares two files of results.
func (c *benchCompare) Run(out cli.Output) error {
	old, err := result.Read(c.Old)
	if err != nil {
		return benchFileError(err)
	}
	now, err := result.Read(c.New)
	if err != nil {
		return benchFileError(err)
	}
	return compareResults(out, old, now)
}

type benchReport struct {
	Results []string `arg:"" help:"Files of results."`
	Out     string   `default:"bench-report" placeholder:"FOLDER" help:"Where it is written to."`
}

// Run draws results.
func (c *benchReport) Run(out cli.Output) error {
	reports := make([]*result.Report, 0, len(c.Results))
	for _, name := range c.Results {
		r, err := result.Read(name)
		if err != nil {
			return benchFileError(err)
		}
		reports = append(reports, r)
	}
	file, err := report.Write(c.Out, reports)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out.Results, file); err != nil {
		return fmt.Errorf("print the name of the report's file: %w", err)
	}
	return nil
}

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(value); err != nil {
		return fmt.Errorf("print it as JSON: %w", err)
	}
	return nil
}
