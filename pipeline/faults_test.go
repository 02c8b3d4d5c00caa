package pipeline_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

func TestChaosSmoke(t *testing.T) {
	source, target := mongosim.StartTest(t, mongosim.Options{Members: 3}), mongosim.StartTest(t, mongosim.Options{Members: 3})
	src, dst := connect(t, source), connect(t, target)
	sc, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(pipeline.Config{
		Link: "t", Scope: sc,
		Observer: func(e event.Event) { fmt.Println(time.Now().Format("05.000"), e.Message(), e.LogValue()) },
	}, pipeline.Connected(src), pipeline.Connected(dst))
	if err != nil {
		t.Fatal(err)
	}
	soft, drain := context.WithCancelCause(t.Context())
	defer drain(nil)
	done := make(chan error, 1)
	go func() { done <- p.Run(t.Context(), soft) }()
	for p.Snapshot().State != pipeline.Steady {
		time.Sleep(10 * time.Millisecond)
	}
	load, stop := context.WithTimeout(t.Context(), 15*time.Second)
	defer stop()
	var g errgroup.Group
	for w := range 4 {
		rnd := rand.New(rand.NewPCG(1, uint64(w)))
		g.Go(func() error {
			for load.Err() == nil {
				coll := fmt.Sprintf("c%d", rnd.IntN(3))
				id := rnd.IntN(200)
				var cmd bson.D
				switch rnd.IntN(4) {
				case 0:
					cmd = bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "w", Value: w}}}}}
				case 1:
					cmd = bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "limit", Value: 1}}}}}
				default:
					f := fmt.Sprintf("f%d", rnd.IntN(5))
					cmd = bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{
						{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: f, Value: rnd.IntN(1000)}}}, {Key: "$inc", Value: bson.D{{Key: "n.x", Value: 1}}}}}, {Key: "upsert", Value: rnd.IntN(2) == 0},
					}}}}
				}
				body, _ := bson.Marshal(cmd)
				_, _ = src.Call(load, call.Command{DB: "shop", Body: body})
			}
			return nil
		})
	}
	for i := 0; load.Err() == nil; i++ {
		select {
		case <-time.After(2 * time.Second):
		case <-load.Done():
		}
		if i%2 == 0 {
			_ = target.StepDown(load)
		} else {
			_ = source.StepDown(load)
		}
	}
	_ = g.Wait()
	if err := source.AwaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	drainWhenCaught(t, p, src)
	drain(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%+v\n", p.Snapshot().Applier)
	h1 := run(t, src, "shop", bson.D{{Key: "dbHash", Value: 1}})
	h2 := run(t, dst, "shop", bson.D{{Key: "dbHash", Value: 1}})
	if !h1.Lookup("md5").Equal(h2.Lookup("md5")) {
		t.Fatalf("%s %s", h1, h2)
	}
}
