package workload

import (
	"context"
	"encoding/binary"
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// session is a worker's logical session.
type session struct {
	id     bson.D
	number int64
}

func newSession(rnd *rand.Rand) *session {
	id := make([]byte, 16)
	binary.BigEndian.PutUint64(id, rnd.Uint64())
	binary.BigEndian.PutUint64(id[8:], rnd.Uint64())
	return &session{id: bson.D{{Key: "id", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id}}}}
}

// in adds the fields of the session's transaction to a command.
func (s *session) in(cmd bson.D, first bool) bson.D {
	cmd = append(cmd, bson.E{Key: "lsid", Value: s.id}, bson.E{Key: "txnNumber", Value: s.number}, bson.E{Key: "autocommit", Value: false})
	if first {
		cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
	}
	return cmd
}

// transaction writes several things as one, and now and then gives them up.
func (w *Workload) transaction(ctx context.Context, rnd *rand.Rand, s *session) {
	s.number++
	for i := range 2 + rnd.IntN(4) {
		if !w.send(ctx, w.cfg.DB, s.in(w.write(rnd), i == 0)) {
			break // a refusal has ended it
		}
	}
	end := "commitTransaction"
	if rnd.IntN(10) == 0 {
		end = "abortTransaction"
	}
	w.send(ctx, "admin", s.in(bson.D{{Key: end, Value: 1}}, false))
}
