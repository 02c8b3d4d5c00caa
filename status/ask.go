package status

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// staleAnswers is after how many questions without an answer the last one is
// forgotten.
const staleAnswers = 3

// askLoop asks both sides until ctx is done. What cannot be answered is not known:
// that the side is away is the pipeline's to say.
func (t *Tracker) askLoop(ctx context.Context) {
	tick := time.NewTicker(t.cfg.AskEvery)
	defer tick.Stop()
	for {
		t.askSource(ctx)
		t.askTarget(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

var (
	oldestEntry = bson.Raw(bsoncore.NewDocumentBuilder().
			AppendString("find", "oplog.rs").
			AppendDocument("sort", bsoncore.NewDocumentBuilder().AppendInt32("$natural", 1).Build()).
			AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("ts", 1).Build()).
			AppendInt32("limit", 1).AppendBoolean("singleBatch", true).Build())
	hello = bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("hello", 1).Build())
)

// askSource asks for the oldest entry of the oplog, unless the pipeline knows it.
func (t *Tracker) askSource(ctx context.Context) {
	if live := t.follows(); live != nil {
		if p := live(); knowsWindow(&p, time.Now()) {
			return
		}
	}
	reply, ok := t.ask(ctx, t.cfg.Source, "local", oldestEntry)
	if !ok {
		return
	}
	oldest, ok := firstTimestamp(reply)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.oldest, t.asked = oldest, time.Now()
}

// firstTimestamp reads the ts of a cursor's first document. What the driver has for
// it panics where something inside is damaged.
func firstTimestamp(reply bson.Raw) (bson.Timestamp, bool) {
	doc := reply
	for _, name := range []string{"cursor", "firstBatch", "0"} {
		e, ok := rawbson.Lookup(doc, name)
		if !ok || e.Type != bson.TypeEmbeddedDocument && e.Type != bson.TypeArray {
			return bson.Timestamp{}, false
		}
		doc = e.Value
	}
	e, ok := rawbson.Lookup(doc, "ts")
	if !ok {
		return bson.Timestamp{}, false
	}
	return e.Timestamp()
}

// askTarget asks for the set and its primary.
func (t *Tracker) askTarget(ctx context.Context) {
	reply, ok := t.ask(ctx, t.cfg.Target, "admin", hello)
	if !ok {
		return
	}
	set, _ := reply.Lookup("setName").StringValueOK()
	host, _ := reply.Lookup("primary").StringValueOK()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.targetSet, t.targetHost = set, host
}

// ask runs one command, for no longer than until the next one is due.
func (t *Tracker) ask(ctx context.Context, c mongo.Caller, db string, cmd bson.Raw) (bson.Raw, bool) {
	if c == nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.AskEvery)
	defer cancel()
	reply, err := c.Call(ctx, mongo.Command{DB: db, Body: cmd})
	return reply, err == nil
}
