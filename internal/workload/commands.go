package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// commandPause is between two commands, so that writes are most of it.
const commandPause = 100 * time.Millisecond

// commandLoop changes collections and indexes until ctx is done.
func (w *Workload) commandLoop(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(w.cfg.Seed, 1<<32))
	db := w.cfg.DB
	w.send(ctx, db, bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	for n := 0; ctx.Err() == nil; n++ {
		coll := fmt.Sprintf("c%d", rnd.IntN(w.cfg.Collections))
		temp := fmt.Sprintf("temp%d", n)
		switch rnd.IntN(6) {
		case 0:
			field := []string{"x", "y", "n.b"}[rnd.IntN(3)]
			w.send(ctx, db, bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
				bson.D{{Key: "key", Value: bson.D{{Key: field, Value: 1}}}, {Key: "name", Value: field + "_1"}},
			}}})
		case 1:
			w.send(ctx, db, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: "*"}})
		case 2:
			w.send(ctx, db, bson.D{{Key: "create", Value: temp}})
			w.send(ctx, db, bson.D{{Key: "insert", Value: temp}, {Key: "documents", Value: bson.A{document(rnd, n)}}})
			w.send(ctx, "admin", bson.D{
				{Key: "renameCollection", Value: db + "." + temp}, {Key: "to", Value: db + ".renamed"}, {Key: "dropTarget", Value: true},
			})
		case 3:
			w.send(ctx, db, bson.D{{Key: "insert", Value: temp}, {Key: "documents", Value: bson.A{document(rnd, 1), document(rnd, 2)}}})
			w.send(ctx, db, bson.D{{Key: "drop", Value: temp}})
		case 4:
			w.send(ctx, db, bson.D{{Key: "drop", Value: coll}})
		case 5:
			w.send(ctx, db, bson.D{{Key: "insert", Value: "capped"}, {Key: "documents", Value: bson.A{document(rnd, n), document(rnd, -n-1)}}})
		}
		pause(ctx, commandPause)
	}
}
