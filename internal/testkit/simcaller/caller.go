package simcaller

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim"
)

// Caller is a mongo.Caller for the primary of a set, or for one of its members. It is safe
// for concurrent use.
type Caller struct {
	Set *mongosim.Set
	// mu guards the fields below.
	mu     sync.Mutex
	to     *mongosim.Member // nil means the primary
	before func(cmd mongo.Command) (err error, sent bool)
}

// Intercept makes c call before with each command. If that returns an error, Call returns
// it, and sent reports whether the command is sent to the server nevertheless. Nil ends it.
func (c *Caller) Intercept(before func(cmd mongo.Command) (err error, sent bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = before
}

// Direct makes c send commands to one member, or with nil to the primary again.
func (c *Caller) direct(m *mongosim.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = m
}

// Call implements mongo.Caller.
func (c *Caller) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.mu.Lock()
	to, before := c.to, c.before
	c.mu.Unlock()
	if before != nil {
		if err, sent := before(cmd); err != nil {
			if sent {
				_, _ = c.send(ctx, to, cmd)
			}
			return nil, err
		}
	}
	return c.send(ctx, to, cmd)
}

func (c *Caller) send(ctx context.Context, to *mongosim.Member, cmd mongo.Command) (bson.Raw, error) {
	if to == nil {
		var err error
		if to, err = c.Set.AwaitPrimary(ctx); err != nil {
			return nil, &mongo.LostError{Err: err}
		}
	}
	return Send(ctx, to, cmd)
}

// Send sends a command to a member.
func Send(ctx context.Context, to *mongosim.Member, cmd mongo.Command) (bson.Raw, error) {
	reply, err := to.Call(ctx, whole(cmd))
	if err != nil {
		return nil, &mongo.LostError{Host: to.Host(), Err: err}
	}
	return reply, mongo.Check(reply)
}

// whole returns a command as one document.
func whole(cmd mongo.Command) bson.Raw {
	var rest []byte
	if cmd.Sequence != "" {
		docs := make([]bsoncore.Value, len(cmd.Docs))
		for i, doc := range cmd.Docs {
			docs[i] = bsoncore.Value{Type: bsoncore.TypeEmbeddedDocument, Data: doc}
		}
		rest = bsoncore.AppendArrayElement(rest, cmd.Sequence, bsoncore.BuildArray(nil, docs...))
	}
	return mongo.With(cmd.Body, bsoncore.AppendStringElement(rest, "$db", cmd.DB))
}

// Name returns the name of a command.
func Name(cmd mongo.Command) string {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	return string(it.Key)
}
