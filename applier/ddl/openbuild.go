package ddl

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// An open build is one that has a head start, and that the log has neither committed nor
// aborted. It is recorded before its command is sent, and before the position passes its
// startIndexBuild:
//
//	{_id: {link, build: UUID}, ns, uuid, ts, t, indexes: [binary data, …]}
//
// ns and uuid are of the target's collection, ts and t of the startIndexBuild, indexes are
// the definitions of those that have a head start, as the source has them: in binary data,
// because a target before 5.0 stores no {$gt: 5} of a partial index.
type openBuild struct {
	build oplog.UUID
	ns    oplog.Namespace
	uuid  oplog.UUID
	at    oplog.OpTime
	specs []bson.Raw
}

// buildFilter selects the record of a build.
func (s *step) buildFilter(build oplog.UUID) filter {
	return func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "link", s.cfg.Link)
			return bsoncore.AppendBinaryElement(dst, "build", bson.TypeBinaryUUID, build[:])
		})
	}
}

// noteBuild records an open build.
func (s *step) noteBuild(ctx context.Context, b *openBuild) error {
	err := s.put(ctx, metadata.Builds, s.buildFilter(b.build), func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "ns", string(b.ns))
		dst = bsoncore.AppendBinaryElement(dst, "uuid", bson.TypeBinaryUUID, b.uuid[:])
		dst = bsoncore.AppendTimestampElement(dst, "ts", b.at.TS.T, b.at.TS.I)
		dst = bsoncore.AppendInt64Element(dst, "t", b.at.Term)
		list := bsoncore.NewArrayBuilder()
		for _, spec := range b.specs {
			if update.IsInsertOnly(spec) { // a target before 5.0 stores no such document
				list.AppendBinary(bson.TypeBinaryGeneric, spec) // as metadata.AppendRaw does
			} else { // builds of this program before read nothing else
				list.AppendDocument(bsoncore.Document(spec))
			}
		}
		return bsoncore.AppendArrayElement(dst, "indexes", list.Build())
	})
	if err != nil {
		return fmt.Errorf("record the index build of %s: %w", b.ns, err)
	}
	return nil
}

// closeBuild deletes the record of a build, if there is one.
func (s *step) closeBuild(ctx context.Context, build oplog.UUID) error {
	open, err := s.openBuilds(ctx, s.buildFilter(build))
	if err == nil && len(open) > 0 {
		err = s.remove(ctx, metadata.Builds, s.buildFilter(build))
	}
	if err != nil {
		return fmt.Errorf("delete the record of an index build: %w", err)
	}
	return nil
}

// openBuilds reads records.
func (s *step) openBuilds(ctx context.Context, which filter) ([]openBuild, error) {
	docs, err := readMetadata(ctx, s.reader, s.cfg.MetaDB, metadata.Builds, which)
	if err != nil {
		return nil, fmt.Errorf("read the open index builds of %s.%s: %w", s.cfg.MetaDB, metadata.Builds, err)
	}
	var all []openBuild
	for _, doc := range docs {
		r := metadata.NewReader(doc)
		id, _ := r.Doc("_id", false)
		b := openBuild{
			build: id.UUID("build"), ns: oplog.Namespace(r.Text("ns")), uuid: r.UUID("uuid"),
			at: oplog.OpTime{TS: r.Timestamp("ts"), Term: r.Int64("t")},
		}
		r.Take(id)
		r.List("indexes", func(e *rawbson.Elem) bool {
			spec, ok := metadata.RawOf(e)
			if doc, is := e.Document(); is {
				spec, ok = bytes.Clone(doc), true
			}
			b.specs = append(b.specs, spec)
			return ok
		})
		if err := r.Err(); err != nil {
			return nil, fmt.Errorf("read the open index builds of %s.%s: %w: %s", s.cfg.MetaDB, metadata.Builds, err, doc)
		}
		all = append(all, b)
	}
	return all, nil
}

// OpenBuilds returns the head starts of earlier attempts that the log has neither committed
// nor aborted, to be run again: the target continues a build, or builds it again.
func (e *Executor) OpenBuilds(ctx context.Context) ([]*HeadStart, error) {
	s := e.separate(&oplog.Op{Kind: oplog.KindCommand, Command: oplog.CommandStartIndexBuild})
	open, err := s.openBuilds(ctx, ofLink(s.cfg.Link))
	if err != nil {
		return nil, err
	}
	var all []*HeadStart
	for i := range open {
		b := &open[i]
		if _, in := s.cfg.Scope.Source(b.ns); !in {
			continue // it is left out for a resync
		}
		coll, exists, err := s.cfg.Catalog.Get(ctx, b.ns)
		switch {
		case err != nil:
			return nil, s.wrap(b.ns, err)
		case exists && coll.UUID == b.uuid:
			all = append(all, e.headStart(b, coll))
			continue
		}
		if err := s.closeBuild(ctx, b.build); err != nil {
			return nil, s.wrap(b.ns, err)
		}
	}
	return all, nil
}

// ease ends all head starts of a collection, for a command that the target refuses until they
// have ended. They are built at their commit.
func (s *step) ease(ctx context.Context, coll *catalog.Collection) error {
	open, err := s.openBuilds(ctx, func(dst []byte) []byte {
		return bsoncore.AppendStringElement(ofLink(s.cfg.Link)(dst), "ns", string(coll.NS))
	})
	if err != nil {
		return err
	}
	for i := range open {
		if err := s.endBuild(ctx, open[i].build); err != nil {
			return err
		}
		_, building, err := catalog.IndexBuilds(ctx, s.reader, coll.NS)
		if err != nil {
			return err
		}
		for _, present := range building {
			names := common(present, open[i].specs)
			if len(names) != len(present) {
				continue
			}
			if _, err := s.run(ctx, dropping(coll, names)); err != nil && !says(err, servererr.IsNoIndex) && !busy(err) {
				return err
			}
		}
	}
	return nil
}
