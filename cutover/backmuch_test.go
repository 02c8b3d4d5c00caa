package cutover_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// oplogBytes is a set that counts how much of its oplog is read.
type oplogBytes struct {
	mongo.Caller
	n int
}

// Call implements mongo.Caller.
func (c *oplogBytes) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := c.Caller.Call(ctx, cmd)
	if cmd.DB == "local" {
		c.n += len(reply)
	}
	return reply, err
}

// TestBackTouchedMuch: where the old side was written to a lot, not all of that is read, which memory may not suffice for.
func TestBackTouchedMuch(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	text := strings.Repeat("x", 12<<10)
	for i := range 36 {
		docs := bson.A{}
		for j := range 100 {
			docs = append(docs, bson.D{{Key: "_id", Value: 1000 + 100*i + j}, {Key: "text", Value: text}})
		}
		body := must.Get(bson.Marshal(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}}))(t)
		must.Get(s.last.Call(t.Context(), mongo.Command{DB: "shop", Body: body}))(t)
	}
	last := &oplogBytes{Caller: s.last}
	err := s.begin(last)
	if !errors.Is(err, cutover.ErrTouched) || !strings.Contains(err.Error(), "1000 or more writes that no link made") || last.n > 24<<20 {
		t.Errorf("%d bytes are read, %v", last.n, err)
	}
	s.is("touched", 3600)
}
