package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// commands are the names of commands that log entries without a session: all that change
// collections, and writes that are neither in a transaction nor retryable.
var commands = map[string]bool{
	"create": true, "createIndexes": true, "drop": true, "dropIndexes": true, "collMod": true, "renameCollection": true,
	"emptycapped": true, "insert": true, "update": true, "delete": true,
}

// Gate announces commands to the target's oplog before it sends them: see the package. It is safe
// for concurrent use.
//
//	insert into commands ──▶ the command ──▶ answered: delete the announcement
//	                                     └─▶ outcome unknown: it stays
type Gate struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// DB is the metadata database.
	DB, Link string

	mu   sync.Mutex // guards open
	open map[key]*announcement
}

// Announce returns a Cluster whose commands pass through a Gate. Commands sent
// together (mongo.Pipeliner) are in transactions, and need no announcement.
func Announce(c mongo.Cluster, db, link string) mongo.Cluster {
	gate := &Gate{Target: c, DB: db, Link: link}
	if p, ok := c.(mongo.Pipeliner); ok {
		return mongo.Route(c, gatePipeliner{gate, p})
	}
	return mongo.Route(c, gate)
}

// gatePipeliner is a Gate whose Target is a mongo.Pipeliner.
type gatePipeliner struct {
	*Gate
	pipeliner mongo.Pipeliner
}

// CallAll implements mongo.Pipeliner.
func (g gatePipeliner) CallAll(ctx context.Context, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error {
	return g.pipeliner.CallAll(ctx, cmds, each)
}

// key is what a command may log.
type key struct {
	command string
	ns, to  oplog.Namespace
}

// announcement is a document of commands. Commands in flight share one that is the same.
type announcement struct {
	id bson.ObjectID
	// at is when it was made. It is used for half of forgetAfter: then its document may be gone.
	at time.Time
	// ready is closed once the document is written, or err says why it is not, and givenUp that it was due to the command alone.
	ready   chan struct{}
	err     error
	givenUp bool
	users   int
	// unknown means that the outcome of a command is not known: the document stays.
	unknown bool
}

// Call implements mongo.Caller.
func (g *Gate) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	k, announce := g.keyOf(&cmd)
	if !announce {
		return g.Target.Call(ctx, cmd)
	}
	a, err := g.announce(ctx, k, cmd.SendBy)
	if err != nil {
		return nil, err
	}
	reply, err := g.Target.Call(ctx, cmd)
	g.answered(ctx, k, a, err)
	return reply, err
}

// keyOf returns what a command may log without a session, false for nothing.
func (g *Gate) keyOf(cmd *mongo.Command) (key, bool) {
	it := rawbson.NewIter(cmd.Body)
	if !it.Next() || !commands[it.Name()] || cmd.DB == g.DB || cmd.DB == "config" || cmd.DB == "local" {
		return key{}, false
	}
	k := key{command: string(it.Key)}
	text, _ := it.Text()
	switch {
	case k.command == "renameCollection":
		to, _ := rawbson.Lookup(cmd.Body, "to")
		name, _ := to.Text()
		k.ns, k.to = oplog.Namespace(text), oplog.Namespace(name)
	case cmd.DB == "admin":
		return key{}, false // not watched
	default:
		k.ns = oplog.NewNamespace(cmd.DB, text)
	}
	if _, numbered := rawbson.Lookup(cmd.Body, "txnNumber"); numbered {
		return key{}, false
	}
	k.ns, k.to = k.ns.Clone(), k.to.Clone()
	return k, true
}

// announce writes the document, unless there is one that says the same. That another command, which has begun to write it, is given
// up before it has does not matter to this one.
func (g *Gate) announce(ctx context.Context, k key, sendBy time.Time) (*announcement, error) {
	for {
		a, first := g.join(k)
		if first {
			return a, g.write(ctx, k, a, sendBy)
		}
		select {
		case <-a.ready:
		case <-ctx.Done():
			g.leave(k, a, true)
			return nil, context.Cause(ctx)
		}
		if a.err == nil {
			return a, nil
		}
		if g.leave(k, a, true); !a.givenUp {
			return nil, a.err
		}
	}
}

// join begins to use an announcement, and reports whether it is to be written first.
func (g *Gate) join(k key) (a *announcement, first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a = g.open[k]
	if a != nil && time.Since(a.at) < forgetAfter/2 {
		a.users++
		return a, false
	}
	a = &announcement{id: bson.NewObjectID(), at: time.Now(), ready: make(chan struct{}), users: 1}
	if g.open == nil {
		g.open = map[key]*announcement{}
	}
	g.open[k] = a
	return a, true
}

// write writes the document of an announcement.
func (g *Gate) write(ctx context.Context, k key, a *announcement, sendBy time.Time) error {
	defer close(a.ready)
	// With w: 1 a failover before the command could take the announcement back, and not the command.
	cmd := metadata.Majority(metadata.Write(g.DB, "insert", metadata.Commands, "documents", metadata.Document(func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "_id", func(dst []byte) []byte { return g.appendID(dst, a) })
		dst = appendCommand(dst, k.command, k.ns, k.to)
		return bsoncore.AppendDateTimeElement(dst, fieldAt, a.at.UnixMilli())
	})))
	cmd.SendBy = sendBy
	if err := metadata.Run(ctx, g.Target, cmd, 1); err != nil {
		a.err, a.givenUp = fmt.Errorf("announce %s of %s: %w", k.command, k.ns, err), ctx.Err() != nil || errors.Is(err, mongo.ErrTooLate)
		g.mu.Lock()
		delete(g.open, k) // The next one is another document: this one may have been written.
		g.mu.Unlock()
	}
	return a.err
}

func (g *Gate) appendID(dst []byte, a *announcement) []byte {
	dst = bsoncore.AppendStringElement(dst, fieldLink, g.Link)
	return bsoncore.AppendObjectIDElement(dst, fieldNumber, a.id)
}

func appendCommand(dst []byte, command string, ns, to oplog.Namespace) []byte {
	dst = bsoncore.AppendStringElement(dst, fieldCommand, command)
	dst = bsoncore.AppendStringElement(dst, fieldNS, string(ns))
	return bsoncore.AppendStringElement(dst, fieldTo, string(to))
}

// leave ends the use of an announcement, and reports whether nothing needs it any more.
func (g *Gate) leave(k key, a *announcement, known bool) (unneeded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a.users--
	a.unknown = a.unknown || !known
	unneeded = a.users == 0 && !a.unknown
	if unneeded && g.open[k] == a {
		delete(g.open, k)
	}
	return unneeded
}

// retractWithin limits the time for deleting an announcement.
const retractWithin = 5 * time.Second

// answered deletes the announcement of a command that has an answer.
func (g *Gate) answered(ctx context.Context, k key, a *announcement, err error) {
	if !g.leave(k, a, isAnswer(err)) {
		return
	}
	if errors.Is(err, mongo.ErrTooLate) {
		// It is sent again, and must not wait for a majority then.
		g.mu.Lock()
		if g.open[k] == nil {
			g.open[k] = a
		}
		g.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retractWithin)
	defer cancel()
	// If it fails the command stays announced: an alarm may be missing, none is false.
	_ = metadata.Run(ctx, g.Target, metadata.PrimaryOnly(metadata.Delete(g.DB, metadata.Commands, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte { return g.appendID(dst, a) })
	})), -1)
}

// isAnswer reports whether the target executes nothing of a command any more.
func isAnswer(err error) bool {
	if err == nil || errors.Is(err, mongo.ErrTooLate) {
		return true
	}
	switch servererr.Classify(err) {
	case servererr.Isolate, servererr.Transient, servererr.Split, servererr.Full, servererr.Auth, servererr.Unsupported:
		return true
	default:
		return false
	}
}
