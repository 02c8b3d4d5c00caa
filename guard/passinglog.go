package guard

import (
	"bytes"
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// PassOver returns a function that reports whether an entry of the source's oplog, after the given one, has
// come from the target of a way back: nil for every other link. metaDB is the metadata database of both clusters.
func PassOver(ctx context.Context, source, target mongo.Caller, metaDB string, back *checkpoint.Back, after oplog.OpTime) (func(*oplog.Entry) (bool, error), error) {
	if back == nil {
		return nil, nil //nolint:nilnil // There is none, and that is not an error.
	}
	set, err := replset.Identify(ctx, mongo.Reads(target))
	if err != nil {
		return nil, fmt.Errorf("ask the target for its set: %w", err)
	}
	passing, err := LoadPassing(ctx, source, PassingConfig{
		MetaDB: metaDB, Target: set.ReplicaSetID,
		Sessions: func(link, instance string) []bson.Raw {
			return checkpoint.Sessions(metaDB, link, instance, checkpoint.MaxWriters)
		},
		Ended: func(link, instance string) bool { return link == back.Link && instance == back.Instance },
	}, after)
	if err != nil {
		return nil, err
	}
	return passing.Over, nil
}

// LoadPassing returns a Passing for the entries of a source's oplog that follow one. The source's
// metadata have changed since that entry: what they were is found from what they are now, and from the oplog.
//
//	announced ──▶ after ──▶ the command ──▶ answered, and not announced any more ──▶ now
//
// Only announcements that are not in the metadata any more, and are older than the oplog, are not found.
func LoadPassing(ctx context.Context, source mongo.Caller, cfg PassingConfig, after oplog.OpTime) (*Passing, error) {
	var docs [2][]bson.Raw
	for i, name := range []string{metadata.Links, metadata.Commands} {
		all := func(dst []byte) []byte { return dst }
		var err error
		if docs[i], err = metadata.FindAll(ctx, mongo.Retry{}, source, nil, cfg.MetaDB, name, "majority", all); err != nil {
			return nil, fmt.Errorf("read %s.%s of the source: %w", cfg.MetaDB, name, err)
		}
	}
	p, err := NewPassing(cfg, docs[0], nil)
	if err != nil || !p.mayAnnounce(docs[0]) {
		return p, err
	}
	since := changes{cfg: &cfg, inserted: map[string]bool{}, ended: map[string]bool{}}
	if err := since.read(ctx, source, after); err != nil {
		return nil, fmt.Errorf("read what links have announced on the source since %s: %w", after, err)
	}
	if docs[1], err = since.before(ctx, source, after, docs[1]); err != nil {
		return nil, fmt.Errorf("read what links had announced on the source at %s: %w", after, err)
	}
	for i, doc := range docs[0] {
		if name, _ := doc.Lookup("_id").StringValueOK(); since.ended[name] {
			docs[0][i] = without(doc, "over")
		}
	}
	return NewPassing(cfg, docs[0], docs[1])
}

// mayAnnounce reports whether one of the links is from the target, and is not known to have ended.
func (p *Passing) mayAnnounce(links []bson.Raw) bool {
	for _, doc := range links {
		if p.cfg.Target.IsZero() || !doc.Lookup("source", "id").Equal(p.cfg.Target) {
			continue
		}
		r := metadata.NewReader(doc)
		if link, instance := r.Text("_id"), r.Text("instance"); p.cfg.Ended == nil || !p.cfg.Ended(link, instance) {
			return true
		}
	}
	return false
}

// changes are those of the metadata after an entry.
type changes struct {
	cfg *PassingConfig
	// inserted are the _ids of announcements that were made, deleted those that were removed.
	inserted map[string]bool
	deleted  []bson.RawValue
	// ended are the links that have ended.
	ended map[string]bool
}

// read reads the oplog after an entry.
func (c *changes) read(ctx context.Context, source mongo.Caller, after oplog.OpTime) error {
	links, commands := c.cfg.MetaDB+"."+metadata.Links, c.cfg.MetaDB+"."+metadata.Commands
	doc, list := bsoncore.NewDocumentBuilder, bsoncore.NewArrayBuilder
	either := doc().AppendArray("$in", list().AppendString(links).AppendString(commands).Build()).Build()
	docs, err := readLog(ctx, source, doc().
		AppendDocument("ts", doc().AppendTimestamp("$gt", after.TS.T, after.TS.I).Build()).
		AppendArray("$or", list().
			AppendDocument(doc().AppendDocument("ns", either).Build()).
			AppendDocument(doc().AppendDocument("o.applyOps.ns", either).Build()).Build()).Build())
	if err != nil {
		return err
	}
	for _, raw := range docs {
		var e oplog.Entry
		err := e.Parse(raw)
		if err == nil {
			err = c.op(&e.Op)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *changes) op(op *oplog.Op) error {
	if op.Kind == oplog.KindCommand && op.Command == oplog.CommandApplyOps {
		group, err := op.ApplyOps()
		if err != nil {
			return err
		}
		for inner, err := range group.Ops() {
			if err == nil && inner.Kind.IsCRUD() {
				err = c.op(&inner)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	switch announces := op.NS.Collection() == metadata.Commands; {
	case op.NS.DB() != c.cfg.MetaDB:
	case announces && op.Kind == oplog.KindInsert:
		c.inserted[keyOf(op.ID)] = true
	case announces && op.Kind == oplog.KindDelete:
		c.deleted = append(c.deleted, bson.RawValue{Type: op.ID.Type, Value: bytes.Clone(op.ID.Value)})
	case op.NS.Collection() == metadata.Links && op.Kind == oplog.KindUpdate && ends(op.O):
		name, _ := op.ID.StringValueOK()
		c.ended[name] = true
	}
	return nil
}

// before returns the announcements that there were before the changes, given those that there are
// after them.
func (c *changes) before(ctx context.Context, source mongo.Caller, at oplog.OpTime, now []bson.Raw) ([]bson.Raw, error) {
	var then []bson.Raw
	known := map[string]bool{}
	for _, doc := range now {
		id := keyOf(doc.Lookup("_id"))
		if known[id] = true; !c.inserted[id] {
			then = append(then, doc)
		}
	}
	ids := bsoncore.NewArrayBuilder()
	gone := 0
	for _, id := range c.deleted {
		if !known[keyOf(id)] && !c.inserted[keyOf(id)] {
			ids.AppendValue(bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
			gone++
		}
	}
	if gone == 0 {
		return then, nil
	}
	doc := bsoncore.NewDocumentBuilder
	docs, err := readLog(ctx, source, doc().
		AppendDocument("ts", doc().AppendTimestamp("$lte", at.TS.T, at.TS.I).Build()).
		AppendString("op", "i").AppendString("ns", c.cfg.MetaDB+"."+metadata.Commands).
		AppendDocument("o._id", doc().AppendArray("$in", ids.Build()).Build()).Build())
	for _, raw := range docs {
		if o, ok := raw.Lookup("o").DocumentOK(); ok {
			then = append(then, o)
		}
	}
	return then, err
}

func keyOf(id bson.RawValue) string { return string(id.Value) }

// readLog reads the entries of a set's oplog that a filter matches.
func readLog(ctx context.Context, set mongo.Caller, filter bsoncore.Document) ([]bson.Raw, error) {
	doc := bsoncore.NewDocumentBuilder
	body := doc().AppendString("find", "oplog.rs").AppendDocument("filter", filter).
		AppendDocument("readConcern", doc().AppendString("level", "majority").Build()).Build()
	return mongo.Retry{}.ReadAll(ctx, set, nil, "local", bson.Raw(body))
}

// without returns a document without a field.
func without(doc bson.Raw, name string) bson.Raw {
	return metadata.Document(func(dst []byte) []byte {
		for it := rawbson.NewIter(doc); it.Next(); {
			if !it.Is(name) {
				dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
			}
		}
		return dst
	})
}
