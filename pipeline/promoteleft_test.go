package pipeline_test

import (
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/promote"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/scope"
)

// TestPromoteLeftOutMeanwhile: what the relay log has of a collection is not applied if the link leaves that out, also if the promotion was not to
// know that yet when it read the link: a process that leads was about to leave it out, or the target's primary was just elected.
func TestPromoteLeftOutMeanwhile(t *testing.T) {
	t.Parallel()
	o, _ := newBehind(t)
	conn := connect(t, o.target.Set, theProgram)
	target := &client.Elected{Caller: conn}
	documents := func() int {
		reply := must.Get(conn.Call(t.Context(), mongo.Command{DB: "db", Body: must.Marshal(t, bson.D{{Key: "find", Value: "c"}})}))(t)
		return len(must.Get(mongo.ReadBatch(reply))(t).Docs)
	}
	before := documents()
	target.Elect(t)
	links := must.Get(checkpoint.New(checkpoint.Config{Target: conn, Link: o.cfg.Link}))(t)
	link := must.Get(links.Acquire(t.Context(), 0))(t)
	store := request.New(links)
	must.Succeed(t, store.Resync(t.Context(), "db.c"))
	must.Succeed(t, store.LeaveOut(t.Context(), link, request.Resync{NS: "db.c", Asked: time.Now(), State: request.Asked}))
	cfg := &promote.Config{Pipeline: o.cfg, By: "test", AcceptLeftOut: true, OnStep: func(s string) { t.Log(s) }}
	cfg.Pipeline.Scope = must.Get(scope.New(scope.Config{}))(t)
	got := must.Get(promote.Run(t.Context(), cfg, mongo.Route(conn, target)))(t)
	if !slices.Equal(got.LeftOut, []oplog.Namespace{"db.c"}) {
		t.Errorf("it is said that %v are left out", got.LeftOut)
	}
	if after := documents(); after != before {
		t.Errorf("the collection that is left out has %d documents, and had %d", after, before)
	}
}
