package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/printable"
)

// violationsFlag says where documents are listed that violate a unique index.
type violationsFlag struct {
	Violations string `settings:"no" placeholder:"FILE" help:"If documents violate a unique index: list all of them there, a line of JSON for each key. - is the standard output."`
}

// checkFile returns an error if the file is there already, or cannot be written: that must not be found once the documents are read.
func (f *violationsFlag) checkFile() error {
	if f.Violations == "" || f.Violations == "-" {
		return nil
	}
	file, err := f.create()
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("--violations: %s is there already: name another file", f.Violations)
	case err == nil:
		err = errors.Join(file.Close(), os.Remove(f.Violations))
	}
	if err != nil {
		return fmt.Errorf("--violations: %w", err)
	}
	return nil
}

// create creates the file, which must not be there.
func (f *violationsFlag) create() (*os.File, error) {
	return os.OpenFile(f.Violations, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// listAll lists the documents that violate the unique indexes of specs, as of a cut or, for nil, now. Nothing is
// done without the flag.
func (f *violationsFlag) listAll(ctx context.Context, out cli.Output, target mongo.Caller, specs ddl.Specs, cut *checkpoint.Cut) error {
	if f.Violations == "" || len(specs) == 0 {
		return nil
	}
	w := out.Results
	done := func() error { return nil }
	if f.Violations != "-" {
		file, err := f.create()
		if err != nil {
			return fmt.Errorf("--violations: %w", err)
		}
		w, done = file, func() error { return errors.Join(file.Sync(), file.Close()) }
	}
	lines := bufio.NewWriter(w)
	keys, err := cutover.ListViolations(ctx, target, specs, cut, lines)
	err = errors.Join(err, lines.Flush(), done())
	if err == nil {
		out.Complain("%d keys that several documents have in a unique index are listed in %s.", keys, printable.Text(f.Violations))
	}
	return err
}

// listRefused lists the documents that violate the indexes which could not become unique.
func (f *violationsFlag) listRefused(ctx context.Context, out cli.Output, target mongo.Caller, metaDB, link string, list ddl.RefusedErrors) error {
	if f.Violations == "" || len(list) == 0 {
		return nil
	}
	specs, err := ddl.ReadDeferred(ctx, target, metaDB, link)
	if err != nil {
		return err
	}
	specs = slices.DeleteFunc(specs, func(h ddl.DeferredSpec) bool {
		return !slices.ContainsFunc(list, func(e *ddl.RefusedError) bool { return e.NS == h.NS && e.Index == h.Index })
	})
	return f.listAll(ctx, out, target, specs, nil)
}
