package checkpoint

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease"
)

// Sessions returns the ids of the sessions, {id: UUID}, in which a link of an instance writes
// documents: those of the lanes of so many writers, then the barrier's and the link's own. Link
// may be a part.
func Sessions(db, link, instance string, writers int) []bson.Raw {
	names := append(laneIDs(link, writers), lease.OwnSession)
	ids := make([]bson.Raw, len(names))
	for i, name := range names {
		ids[i] = lease.SessionID(db, link, instance, name)
	}
	return ids
}
