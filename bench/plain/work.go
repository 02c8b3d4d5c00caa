package plain

import (
	"errors"
	"fmt"
	"hash/maphash"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/oplog"
)

// Work is a workload divided over writers, ready to be written: by document, or
// where there are many more collections than writers by collection, so that a bulk
// write, which is of one collection, has something to do.
type Work struct {
	// Ops is how many operations it has, Bytes the size of the documents, or
	// of filter and update, that are sent for them.
	Ops   int
	Bytes int64

	writers [][]operation
}

// operation is one that is ready to be written.
type operation struct {
	ns    oplog.Namespace
	key   uint64 // of the document
	kind  oplog.Kind
	model mongo.WriteModel
}

// manyCollections is how many collections for each writer are enough to divide a
// workload by them.
const manyCollections = 8

// ErrCommands is a workload that has commands.
var ErrCommands = errors.New("it has commands, which a plain client does not write")

// Prepare divides a workload over writers. Transactions are taken apart: each
// operation is written by itself. A workload with commands is refused.
func Prepare(w workload.Workload, writers int) (*Work, error) {
	if writers < 1 {
		return nil, fmt.Errorf("divide the workload %s: %d writers", w.Name, writers)
	}
	gen, err := workload.New(w)
	if err != nil {
		return nil, fmt.Errorf("divide the workload %s: %w", w.Name, err)
	}
	work := &Work{writers: make([][]operation, writers)}
	seed := maphash.MakeSeed()
	byCollection := w.Namespaces >= manyCollections*writers
	for {
		op, ok, err := gen.Next()
		if err == nil && ok && op.Kind == oplog.KindCommand {
			err = ErrCommands
		}
		if err != nil {
			return nil, fmt.Errorf("divide the workload %s: %w", w.Name, err)
		}
		if !ok {
			return work, nil
		}
		o := operation{ns: op.NS, key: keyOf(seed, &op), kind: op.Kind, model: modelOf(&op)}
		to := o.key
		if byCollection {
			to = maphash.String(seed, string(op.NS))
		}
		i := to % uint64(writers)
		work.writers[i] = append(work.writers[i], o)
		work.Ops++
		work.Bytes += sizeOf(&op)
	}
}

// keyOf returns a key of a document. Collisions do no harm.
func keyOf(seed maphash.Seed, op *workload.Op) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(string(op.NS))
	_ = h.WriteByte(byte(op.ID.Type))
	_, _ = h.Write(op.ID.Value)
	return h.Sum64()
}

func filterOf(op *workload.Op) bson.Raw {
	return bsoncore.BuildDocument(nil, bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{
		Type: bsoncore.Type(op.ID.Type), Data: op.ID.Value,
	}))
}

// modelOf is what the driver is given for an operation.
func modelOf(op *workload.Op) mongo.WriteModel {
	switch {
	case op.Kind == oplog.KindInsert:
		return mongo.NewInsertOneModel().SetDocument(op.Doc)
	case op.Kind == oplog.KindDelete:
		return mongo.NewDeleteOneModel().SetFilter(filterOf(op))
	case op.Doc != nil:
		return mongo.NewReplaceOneModel().SetFilter(filterOf(op)).SetReplacement(op.Doc)
	default:
		return mongo.NewUpdateOneModel().SetFilter(filterOf(op)).SetUpdate(updateOf(op))
	}
}

// updateOf is the update as the driver takes it: a document, or the stages of a
// pipeline.
func updateOf(op *workload.Op) any {
	if !op.IsPipeline {
		return op.Modifier
	}
	values, _ := op.Modifier.Values() // made by ourselves, and valid
	stages := make([]bson.Raw, len(values))
	for i, v := range values {
		stages[i] = v.Document()
	}
	return stages
}

func sizeOf(op *workload.Op) int64 {
	return int64(max(len(op.Doc), len(op.ID.Value)+len(op.Modifier)))
}
