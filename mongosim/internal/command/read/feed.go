package read

import (
	"context"
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// shape is the output form of a find.
type shape struct {
	projection *serverquery.Projection
	// recordID appends $recordId.
	recordID bool
}

func (s *shape) apply(f found) (bson.Raw, error) {
	doc := f.doc
	if s.projection != nil && !s.projection.Empty() {
		var err error
		if doc, err = s.projection.Apply(doc); err != nil {
			return nil, err
		}
	}
	if s.recordID {
		doc = withRecordID(doc, f.id)
	}
	return doc, nil
}

func withRecordID(doc bson.Raw, id storage.RecordID) bson.Raw {
	start, dst := bsoncore.AppendDocumentStart(make([]byte, 0, len(doc)+20))
	dst = append(dst, doc[4:len(doc)-1]...)
	dst = bsoncore.AppendInt64Element(dst, "$recordId", int64(id))
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// scanFeed passes on a scan's documents as they are read.
type scanFeed struct {
	scan  *scan
	shape shape
	// skip is how many are left out first, limit how many are left to hand out; 0
	// means no limit.
	skip, limit int64
	// single is true if the scan can have one document only.
	single bool
	// done is true once the last document has been passed on.
	done bool
}

// Fill hands on documents: see [dispatch.Feed].
func (f *scanFeed) Fill(ctx context.Context, look dispatch.Looker, take func(doc bson.Raw) bool) (bool, error) {
	if f.done {
		return true, nil
	}
	var fault error
	visit := func(d found) bool {
		if f.skip > 0 {
			f.skip--
			return true
		}
		var doc bson.Raw
		if doc, fault = f.shape.apply(d); fault != nil {
			return false
		}
		if f.limit > 0 {
			f.limit--
			f.done = f.limit == 0
		}
		f.done = f.done || f.single
		return take(doc) && !f.done
	}
	for {
		var state scanState
		err := look(func(s dispatch.Sight) (err error) {
			state, err = f.scan.run(s, visit)
			return err
		})
		if err == nil {
			err = fault
		}
		if err != nil || state != scanPaused {
			return f.done || state == scanEnded, err
		}
		if ctx.Err() != nil {
			return false, dispatch.Interrupted(ctx)
		}
	}
}

// Close frees what the feed uses: see [dispatch.Feed].
func (f *scanFeed) Close() {}

// sortFeed passes on a scan's documents in order. It reads all of them first.
type sortFeed struct {
	scan        *scan
	sort        *serverquery.Sort
	shape       shape
	skip, limit int64

	read  bool
	docs  []bson.Raw
	ids   map[*byte]storage.RecordID // by the document's first byte, if they are shown
	given int
}

// Fill hands on documents: see [dispatch.Feed].
func (f *sortFeed) Fill(ctx context.Context, look dispatch.Looker, take func(doc bson.Raw) bool) (bool, error) {
	if !f.read {
		if err := f.load(ctx, look); err != nil {
			return false, err
		}
	}
	for f.given < len(f.docs) {
		doc := f.docs[f.given]
		f.docs[f.given] = nil
		f.given++
		out, err := f.shape.apply(found{doc, f.ids[&doc[0]]})
		if err != nil {
			return false, err
		}
		if !take(out) {
			break
		}
	}
	return f.given == len(f.docs), nil
}

func (f *sortFeed) load(ctx context.Context, look dispatch.Looker) error {
	if f.shape.recordID {
		f.ids = map[*byte]storage.RecordID{}
	}
	err := f.scan.all(ctx, look, func(d found) bool {
		f.docs = append(f.docs, d.doc)
		if f.ids != nil {
			f.ids[&d.doc[0]] = d.id
		}
		return true
	})
	if err != nil {
		return err
	}
	if err := f.sort.Docs(f.docs); err != nil {
		return err
	}
	f.docs = f.docs[min(f.skip, int64(len(f.docs))):]
	if f.limit > 0 {
		f.docs = f.docs[:min(f.limit, int64(len(f.docs)))]
	}
	f.read = true
	return nil
}

// Close frees what the feed uses: see [dispatch.Feed].
func (f *sortFeed) Close() {}

// all visits all that a scan finds, until visit returns false.
func (sc *scan) all(ctx context.Context, look dispatch.Looker, visit func(d found) bool) error {
	for {
		var state scanState
		err := look(func(s dispatch.Sight) (err error) {
			state, err = sc.run(s, visit)
			return err
		})
		if err != nil || state != scanPaused {
			return err
		}
		if ctx.Err() != nil {
			return dispatch.Interrupted(ctx)
		}
	}
}

// Any reports whether the scan's collection holds anything: a tailable cursor
// on an empty collection is closed.
func (sc *scan) Any(look dispatch.Looker) (ok bool, err error) {
	err = look(func(s dispatch.Sight) error {
		if sc.ns == dispatch.OplogNamespace {
			ok = s.Log.Len() > 0
			return nil
		}
		coll, found := s.ByUUID(sc.uuid)
		ok = found && coll.Len() > 0
		return nil
	})
	return ok, err
}

// pipeFeed passes on the output of a pipeline on a scan. The pipeline runs as a
// coroutine: it yields a document at a time, and reads through the looker of the calling
// command.
type pipeFeed struct {
	// start makes the pipeline's output from its input.
	start func(in iter.Seq[bson.Raw]) iter.Seq2[bson.Raw, error]
	// source is nil for a pipeline that brings its own documents.
	source *scan

	next func() (bson.Raw, error, bool)
	stop func()

	// Of the calling command, set by each fill.
	ctx   context.Context //nolint:containedctx // input and output of one pipeline meet here
	look  dispatch.Looker
	fault error
}

// Fill hands on documents: see [dispatch.Feed].
func (f *pipeFeed) Fill(ctx context.Context, look dispatch.Looker, take func(doc bson.Raw) bool) (bool, error) {
	f.ctx, f.look = ctx, look
	if f.next == nil {
		f.next, f.stop = iter.Pull2(f.start(f.input))
	}
	for {
		doc, err, ok := f.next()
		switch {
		case f.fault != nil:
			return false, f.fault
		case err != nil:
			return false, err
		case !ok:
			return true, nil
		case !take(doc):
			return false, nil
		}
		if ctx.Err() != nil {
			return false, dispatch.Interrupted(ctx)
		}
	}
}

// interrupt returns the error that ends the calling command, if any.
func (f *pipeFeed) interrupt() error {
	if f.ctx.Err() != nil {
		return dispatch.Interrupted(f.ctx)
	}
	return nil
}

// input yields the scan's documents, a piece at a time: the pipeline itself runs
// without any lock, and may read other collections.
func (f *pipeFeed) input(yield func(doc bson.Raw) bool) {
	if f.source == nil {
		return
	}
	var piece []bson.Raw
	for {
		piece = piece[:0]
		var state scanState
		f.fault = f.look(func(s dispatch.Sight) (err error) {
			state, err = f.source.run(s, func(d found) bool {
				piece = append(piece, d.doc)
				return len(piece) < scanPiece
			})
			return err
		})
		if f.fault != nil {
			return
		}
		for _, doc := range piece {
			if !yield(doc) {
				return
			}
		}
		if state == scanEnded {
			return
		}
		if f.ctx.Err() != nil {
			f.fault = dispatch.Interrupted(f.ctx)
			return
		}
	}
}

// Close frees what the feed uses: see [dispatch.Feed].
func (f *pipeFeed) Close() {
	if f.stop != nil {
		f.stop()
	}
}
