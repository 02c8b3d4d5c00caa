package ddl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// maxLooks limits how often the target may contradict the catalog.
	maxLooks = 3
	// lookPause is the pause before the effect of an expired command is read.
	lookPause = 100 * time.Millisecond
)

// contradicts reports whether the target refused because it differs from the catalog.
func contradicts(err error) bool {
	if _, changed := errors.AsType[*changedError](err); changed {
		return true
	}
	return says(err, servererr.ContradictsCatalog) && !isTyped(err)
}

// expired reports whether a command was ended because of its time limit.
func expired(err error) bool {
	return servererr.Classify(err) == servererr.Expired && !isTyped(err)
}

// lookAgain reads the operation's namespaces again.
func (s *step) lookAgain(ctx context.Context) error {
	var names []oplog.Namespace
	if s.op.Kind.IsCRUD() {
		if ns, err := viewName(s.op); err == nil {
			names = append(names, ns)
		}
	} else {
		ns, to, err := s.op.Target()
		if err != nil {
			return err
		}
		names = append(names, ns, to)
	}
	for _, source := range names {
		if !source.IsCollection() {
			continue
		}
		ns, in := s.target(source)
		if !in {
			continue
		}
		if err := s.cfg.Catalog.Refresh(ctx, ns); err != nil {
			return err
		}
		if !ns.IsBuckets() {
			continue
		}
		if err := s.cfg.Catalog.Refresh(ctx, ns.Series()); err != nil {
			return err
		}
	}
	if s.op.Command != oplog.CommandDropDatabase && !slices.ContainsFunc(names, oplog.Namespace.IsSystemViews) {
		return nil
	}
	left, err := s.left(ctx, s.op.NS.DB())
	if err != nil {
		return err
	}
	for _, coll := range left {
		if err := s.cfg.Catalog.Refresh(ctx, coll.NS); err != nil {
			return err
		}
	}
	return nil
}
