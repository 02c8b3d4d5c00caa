package ddl

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// Check returns the error with which Apply would end for an operation whatever collections the target has: a field that is not
// understood, or names that the link cannot map. It changes nothing. An operation that it accepts may still be refused by the target.
// Of c it needs Target, Scope and Link.
func Check(ctx context.Context, c Config, op *oplog.Op) error {
	c.setDefaults()
	e := &Executor{cfg: c, reader: readOnly{c.Target}}
	if in, err := e.InScope(op); err != nil || !in {
		return err
	}
	s := e.step(op, Once)
	ns, err := s.check(ctx)
	if err != nil {
		return s.wrap(ns, err)
	}
	return nil
}

// check is Check for an operation in scope. It returns its namespace, as far as that is known.
func (s *step) check(ctx context.Context) (ns oplog.Namespace, err error) {
	if s.op.Kind.IsCRUD() {
		return s.op.NS, s.checkView(ctx)
	}
	switch s.op.Command {
	case oplog.CommandCreate:
		return s.checkCreate()
	case oplog.CommandCreateIndexes, oplog.CommandCommitIndexBuild:
		ns, _, err = s.indexSpecs()
	case oplog.CommandAbortIndexBuild:
		_, err = s.op.IndexBuild()
	case oplog.CommandDropIndexes:
		_, err = s.op.DropIndexes()
	case oplog.CommandCollMod:
		_, err = s.op.CollMod()
	case oplog.CommandDrop:
		_, err = s.op.Drop()
	case oplog.CommandDropDatabase:
	case oplog.CommandRenameCollection:
		_, ns, err = s.renaming()
	case oplog.CommandEmptyCapped:
		_, err = s.op.EmptyCapped()
	case oplog.CommandImportCollection:
		return s.imported()
	default:
		return s.noRule()
	}
	return ns, err
}

// checkCreate checks the creation of a collection.
func (s *step) checkCreate() (oplog.Namespace, error) {
	entry, err := s.op.Create()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(entry.NS)
	options := split(entry.Options)
	if _, isView := options.get("viewOn"); isView {
		_, err := s.whole(entry.NS, options.without("idIndex"))
		return ns, err
	}
	if _, series := options.get("timeseries"); series || ns.IsBuckets() {
		_, err = s.seriesOptions(ns, options)
	}
	return ns, err
}

// checkView checks a write to system.views that brings a whole definition.
func (s *step) checkView(ctx context.Context) error {
	source, err := viewName(s.op)
	if err != nil || s.op.Kind == oplog.KindDelete {
		return nil //nolint:nilerr // A definition without a name is left out.
	}
	if s.op.Kind == oplog.KindUpdate {
		switch form, err := update.Classify(s.op.O); {
		case err != nil:
			return s.op.Fault("o", err)
		case form != update.FormReplacement:
			return nil
		}
	}
	if faultOf(s.op.O) != "" {
		return nil // It is left out.
	}
	_, refused := s.whole(source, split(s.op.O).without("_id"))
	if refused == nil {
		return nil
	}
	ns, _ := s.target(source)
	left, err := s.leftView(ctx, ns)
	if err != nil {
		return fmt.Errorf("read what is left out: %w", err)
	}
	if left != nil && faultOf(left.Def) == "" {
		return nil // It stays left out.
	}
	return refused
}
