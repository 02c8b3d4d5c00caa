package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
)

// Config says what is written.
type Config struct {
	// Primary runs commands on the set's primary.
	Primary call.Caller
	// DB is the database. Default "shop".
	DB string
	// Workers is how many write at once. Default 4.
	Workers int
	// Collections and Documents bound what is written to. Defaults 3 and 200.
	Collections, Documents int
	// Seed decides what each worker writes.
	Seed uint64
	// Commands adds a worker that changes collections and indexes.
	Commands bool
	// Pause is between two writes of a worker. Default: none.
	Pause time.Duration
}

func (c *Config) setDefaults() {
	if c.DB == "" {
		c.DB = "shop"
	}
	if c.Workers == 0 {
		c.Workers = 4
	}
	if c.Collections == 0 {
		c.Collections = 3
	}
	if c.Documents == 0 {
		c.Documents = 200
	}
}

// Workload writes. Make one with New.
type Workload struct {
	cfg           Config
	done, refused atomic.Int64
}

// New returns a workload that writes nothing yet.
func New(cfg Config) (*Workload, error) {
	cfg.setDefaults()
	if cfg.Primary == nil {
		return nil, errors.New("workload: no set to write to")
	}
	return &Workload{cfg: cfg}, nil
}

// Counts returns how many commands were carried out, and how many refused or not
// answered.
func (w *Workload) Counts() (done, refused int64) { return w.done.Load(), w.refused.Load() }

// Run writes until ctx is done.
func (w *Workload) Run(ctx context.Context) {
	var g sync.WaitGroup
	for i := range w.cfg.Workers {
		g.Go(func() { w.writeLoop(ctx, i) })
	}
	if w.cfg.Commands {
		g.Go(func() { w.commandLoop(ctx) })
	}
	g.Wait()
}

// send runs a command, and waits a moment where that failed.
func (w *Workload) send(ctx context.Context, db string, cmd bson.D) bool {
	body, err := bson.Marshal(cmd)
	if err != nil {
		panic(fmt.Sprintf("workload: build %s: %v", cmd[0].Key, err)) // the values are all its own
	}
	_, err = w.cfg.Primary.Call(ctx, call.Command{DB: db, Body: body})
	if err != nil {
		w.refused.Add(1)
		pause(ctx, 5*time.Millisecond)
		return false
	}
	w.done.Add(1)
	return true
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *Workload) writeLoop(ctx context.Context, worker int) {
	rnd := rand.New(rand.NewPCG(w.cfg.Seed, uint64(worker)))
	session := newSession(rnd)
	for ctx.Err() == nil {
		if rnd.IntN(8) == 0 {
			w.transaction(ctx, rnd, session)
		} else {
			w.send(ctx, w.cfg.DB, w.write(rnd))
		}
		pause(ctx, w.cfg.Pause)
	}
}

// write makes a command that writes.
func (w *Workload) write(rnd *rand.Rand) bson.D {
	coll := fmt.Sprintf("c%d", rnd.IntN(w.cfg.Collections))
	one := func() int { return rnd.IntN(w.cfg.Documents) }
	byID := func(id int) bson.D { return bson.D{{Key: "_id", Value: id}} }
	switch rnd.IntN(10) {
	case 0, 1:
		docs := bson.A{}
		for range 1 + rnd.IntN(5) {
			docs = append(docs, document(rnd, one()))
		}
		return bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}, {Key: "ordered", Value: false}}
	case 2:
		return bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: byID(one())}, {Key: "limit", Value: 1}},
		}}}
	case 3:
		return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: byID(one())}, {Key: "u", Value: document(rnd, nil)[1:]}, {Key: "upsert", Value: true}},
		}}}
	case 4: // many at once
		return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "x", Value: rnd.IntN(20)}}}, {Key: "u", Value: change(rnd)}, {Key: "multi", Value: true}},
		}}}
	default:
		return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: byID(one())}, {Key: "u", Value: change(rnd)}, {Key: "upsert", Value: rnd.IntN(2) == 0}},
		}}}
	}
}

func document(rnd *rand.Rand, id any) bson.D {
	return bson.D{
		{Key: "_id", Value: id}, {Key: "x", Value: rnd.IntN(20)}, {Key: "n", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: rnd.Int64()}}},
		{Key: "list", Value: bson.A{1, 2, rnd.IntN(9)}}, {Key: "text", Value: fmt.Sprintf("%040d", rnd.Int64())},
	}
}

func change(rnd *rand.Rand) bson.D {
	switch rnd.IntN(6) {
	case 0:
		return bson.D{{Key: "$inc", Value: bson.D{{Key: "n.count", Value: 1}}}, {Key: "$set", Value: bson.D{{Key: "y", Value: rnd.IntN(99)}}}}
	case 1:
		return bson.D{{Key: "$push", Value: bson.D{{Key: "pushed", Value: bson.D{{Key: "$each", Value: bson.A{rnd.IntN(99)}}, {Key: "$slice", Value: -5}}}}}}
	case 2:
		return bson.D{{Key: "$unset", Value: bson.D{{Key: "y", Value: ""}, {Key: "n.a", Value: ""}}}}
	case 3:
		return bson.D{{Key: "$set", Value: bson.D{{Key: fmt.Sprintf("f%d.g", rnd.IntN(4)), Value: rnd.Int64()}}}}
	case 4:
		return bson.D{{Key: "$rename", Value: bson.D{{Key: "y", Value: "z"}}}}
	default:
		return bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: rnd.IntN(20)}}}, {Key: "$currentDate", Value: bson.D{{Key: "at", Value: true}}}}
	}
}
