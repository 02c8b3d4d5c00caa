package pipeline_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

func run(t *testing.T, c call.Caller, db string, cmd bson.D) bson.Raw {
	t.Helper()
	body, err := bson.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := c.Call(t.Context(), call.Command{DB: db, Body: body})
	if err != nil {
		t.Fatalf("%s: %v", cmd[0].Key, err)
	}
	return reply
}

func TestMirror(t *testing.T) {
	source, target := mongosim.StartTest(t, mongosim.Options{Members: 3}), mongosim.StartTest(t, mongosim.Options{Members: 3})
	src, dst := connect(t, source), connect(t, target)
	sc, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pipeline.New(pipeline.Config{
		Link: "t", Scope: sc,
		Observer: func(e event.Event) {
			slog.Default().Log(t.Context(), e.Level(), e.Message(), "e", e.LogValue())
		},
	}, pipeline.Connected(src), pipeline.Connected(dst))
	if err != nil {
		t.Fatal(err)
	}
	soft, drain := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	started := make(chan struct{})
	go func() { close(started); done <- p.Run(t.Context(), soft) }()
	<-started
	for p.Snapshot().State != pipeline.Steady {
		time.Sleep(10 * time.Millisecond)
	}
	for i := range 50 {
		docs := bson.A{}
		for j := range 20 {
			docs = append(docs, bson.D{{Key: "_id", Value: i*20 + j}, {Key: "x", Value: 1}})
		}
		run(t, src, "shop", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: docs}})
	}
	for i := range 100 {
		run(t, src, "shop", bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: i}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "y.z", Value: i}}}}},
		}}}})
	}
	run(t, src, "shop", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "name", Value: "x_1"}}}}})
	run(t, src, "shop", bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 900}}}}}, {Key: "limit", Value: 0}}}}})
	drainWhenCaught(t, p, src)
	drain(nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	fmt.Println(run(t, dst, "shop", bson.D{{Key: "count", Value: "a"}}).Lookup("n"))
	h1 := run(t, src, "shop", bson.D{{Key: "dbHash", Value: 1}}).Lookup("md5")
	h2 := run(t, dst, "shop", bson.D{{Key: "dbHash", Value: 1}}).Lookup("md5")
	if !h1.Equal(h2) {
		t.Fatalf("%s %s", h1, h2)
	}
}

func drainWhenCaught(t *testing.T, p *pipeline.Pipeline, src call.Caller) {
	hello := run(t, src, "admin", bson.D{{Key: "hello", Value: 1}})
	ts, i, _ := hello.Lookup("lastWrite", "opTime", "ts").TimestampOK()
	want := bson.Timestamp{T: ts, I: i}
	for {
		s := p.Snapshot()
		if got := s.Progress.Applied.TS; got.T > want.T || got.T == want.T && got.I >= want.I {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("ended")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
