package ddl

import (
	"context"
	"log/slog"
	"slices"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// make builds indexes of a collection without their deferred parts, and those of version 1 without options that no server
// knows. Servers before 3.4 stored any; later ones keep and list those of their indexes, and refuse them in a command
// (validateIndexSpecFieldNames in index_key_validate.cpp). An unknown option of version 2 is a new one: such an index is left out.
func (s *step) make(ctx context.Context, coll *catalog.Collection, specs []*DeferredSpec) error {
	refused := s.sendBuild(ctx, coll, specs)
	if says(refused, servererr.IsReservedIndex) {
		return s.makeReserved(ctx, coll, specs, refused)
	}
	if !says(refused, servererr.IsUnknownIndexOption) {
		return refused
	}
	known := make([]*DeferredSpec, len(specs))
	var unknown [][]slog.Attr
	for i, h := range specs {
		own := *h
		spec := split(h.Spec)
		for _, f := range spec {
			if isOld(spec) && !slices.Contains(indexNames, f.name) {
				spec = spec.without(f.name)
				unknown = append(unknown, []slog.Attr{slog.String(keyNS, string(coll.NS)), slog.String(keyIndex, h.Index), slog.String(keyOption, f.name)})
			}
		}
		own.Spec = spec.document()
		known[i] = &own
	}
	if len(unknown) == 0 {
		return refused
	}
	if err := s.sendBuild(ctx, coll, known); err != nil {
		return err
	}
	for _, attrs := range unknown {
		s.log(slog.LevelWarn, "option of an index that no server knows is left out", append(attrs, slog.Any(keyError, refused))...)
	}
	return nil
}

// isOld reports whether an index is of a version before 2, which 3.4 has introduced.
func isOld(spec fields) bool {
	v, ok := spec.get("v")
	n, isNumber := (&rawbson.Elem{Type: v.Type, Value: v.Value}).Int64()
	return ok && isNumber && n < 2
}
