package process

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/request"
)

// TestKillPaused: the process is killed while its link is paused. The next one says that the link
// is paused, and applies nothing; once it is resumed it applies all of it, once.
func TestKillPaused(t *testing.T) {
	t.Parallel()
	h := &harness{
		TB: t, program: build(t),
		source: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1}),
		target: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 2}),
	}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	store := request.New(must.Get(checkpoint.New(checkpoint.Config{Target: h.to, Link: link}))(t))
	write := func(from, to int) {
		t.Helper()
		docs := bson.A{}
		for id := from; id <= to; id++ {
			docs = append(docs, bson.D{{Key: "_id", Value: id}})
		}
		body := must.Get(bson.Marshal(bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: docs}}))(t)
		must.Get(mongo.Twice(h.from).Call(t.Context(), mongo.Command{DB: "shop", Body: body}))(t)
	}
	ask := func(l *life, kind request.Kind) {
		t.Helper()
		r := must.Get(store.Ask(t.Context(), request.Ask{Kind: kind, By: "test", Args: json.RawMessage(`{}`)}))(t)
		l.until(patience, func() bool {
			now, err := store.Get(t.Context(), r.ID)
			return err == nil && now.State == request.Done
		})
	}
	spool := []string{"--spool-dir", t.TempDir()}
	const paused = "the link is paused: nothing is applied before it is resumed"

	l := h.start(spool...)
	l.until(time.Minute, h.exists)
	write(1, 10)
	l.until(patience, func() bool { return h.count("shop", "a") == 10 })
	ask(l, request.Pause)
	write(11, 20)
	l.kill()
	write(21, 30)
	l = h.start(spool...)
	l.until(patience, func() bool {
		return strings.Contains(l.said.String(), paused) && strings.Contains(l.said.String(), "reading the oplog")
	})
	if n := h.count("shop", "a"); n != 10 {
		t.Errorf("%d documents of a paused link", n)
	}
	ask(l, request.Resume)
	want := h.newest()
	l.until(patience, func() bool { return !h.reached().Before(want) })
	l.end()
	if n := h.count("shop", "a"); n != 30 {
		t.Errorf("%d documents after it was resumed", n)
	}
	h.equal()
}
