package checkpoint

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// laneIDs returns the _ids of all lanes of a link: the writers', then the barrier's.
func laneIDs(link string, writers int) []string {
	ids := make([]string, 0, writers+1)
	for i := range writers {
		ids = append(ids, laneID(link, i))
	}
	return append(ids, barrierID(link))
}

// laneDocs returns new documents of the writers' lanes from..to-1.
func laneDocs(link string, from, to int, term int64, at Position) []bson.Raw {
	var docs []bson.Raw
	for i := from; i < to; i++ {
		l := laneDoc{id: laneID(link, i), term: term, position: at}
		docs = append(docs, l.marshal())
	}
	return docs
}

// lanesCommand returns the command that reads all lanes of a link.
func lanesCommand(db, link string, writers int) mongo.Command {
	return metadata.Find(db, metadata.Lanes, writers+1, metadata.AnyOf(laneIDs(link, writers)))
}

// readLanes reads the reply to lanesCommand: the writers' lanes in order, then
// the barrier's.
func readLanes(link string, writers int, reply bson.Raw) ([]laneDoc, error) {
	docs, err := metadata.Found(reply)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]laneDoc, len(docs))
	for _, doc := range docs {
		l, err := readLane(link, doc)
		if err != nil {
			return nil, err
		}
		byName[l.id] = l
	}
	lanes := make([]laneDoc, 0, writers+1)
	for _, id := range laneIDs(link, writers) {
		l, ok := byName[id]
		if !ok {
			return nil, &metadata.DamagedError{Link: link, What: fmt.Sprintf("there is no document %q in %s", id, metadata.Lanes)}
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

// readLane reads one lane in a transaction.
func (h *Link) readLane(ctx context.Context, txn *mongo.Txn, id string) (laneDoc, error) {
	doc, err := metadata.FindOne(ctx, txn, h.store.cfg.DB, metadata.Lanes, metadata.ByID(id))
	switch {
	case err != nil:
		return laneDoc{}, err
	case doc == nil:
		return laneDoc{}, fmt.Errorf("lane %s: its document is gone: %w", id, lease.ErrRewound)
	}
	return readLane(h.store.cfg.Link, doc)
}

// notBefore checks that a lane has the lease's term and is not before want, its
// acknowledged position.
func (h *Link) notBefore(l *laneDoc, want Position) error {
	if err := h.lease.Compare("lane "+l.id, l.term); err != nil {
		return err
	}
	if l.position.Compare(want) < 0 {
		return fmt.Errorf("lane %s is at %s, not %s: %w", l.id, l.position, want, lease.ErrRewound)
	}
	return nil
}
