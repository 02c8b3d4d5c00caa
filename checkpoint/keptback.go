package checkpoint

import (
	"context"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// KeptBack is a collection of the target whose operations wait for an index build while
// the lanes continue with those of the others. Which of its operations are in the target
// is not shown by the lanes:
//
//	operation at     is in the target if it is not after
//	<= Since         the position of its lane, or the barrier's
//	>  Since         the barrier's position
type KeptBack struct {
	NS    oplog.Namespace
	Since Position
}

// KeepBack replaces the list of the collections that are kept back. The list is
// majority-committed when KeepBack returns. A collection may be added while none of its
// operations after its Since was handed to a lane, and removed when the barrier is not
// before any operation that was handed to one.
func (h *Link) KeepBack(ctx context.Context, list []KeptBack) error {
	return h.locked(ctx, func() error {
		return h.update(ctx, func(dst []byte) []byte { return changeKeptBack(dst, list) }, func(*mongo.Txn) error { return nil })
	}, "record that %d collections are kept back", len(list))
}

// changeKeptBack appends the update that replaces the list of a link's document. As long as
// the list is not empty, releases that do not know it refuse the document: they would
// consider operations applied that are not.
func changeKeptBack(dst []byte, list []KeptBack) []byte {
	dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
		dst = bsoncore.AppendInt32Element(dst, "version", versionOf(list))
		if len(list) == 0 {
			return dst
		}
		i, dst := bsoncore.AppendArrayElementStart(dst, "keptBack")
		for j := range list {
			dst = metadata.AppendDoc(dst, strconv.Itoa(j), func(dst []byte) []byte {
				return appendPosition(bsoncore.AppendStringElement(dst, "ns", string(list[j].NS)), list[j].Since)
			})
		}
		return metadata.CloseDoc(dst, i)
	})
	if len(list) > 0 {
		return dst
	}
	return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "keptBack", "") })
}

// versionOf returns the format of a link's document with this list.
func versionOf(list []KeptBack) int32 {
	if len(list) > 0 {
		return keeping
	}
	return plain
}

// readKeptBack reads the collections that are kept back.
func readKeptBack(r *metadata.Reader) []KeptBack {
	if !r.Has("keptBack") {
		return nil
	}
	var list []KeptBack
	r.Docs("keptBack", func(sub *metadata.Reader) {
		list = append(list, KeptBack{NS: oplog.Namespace(sub.Text("ns")), Since: readPosition(sub)})
	})
	return slices.Clip(list)
}
