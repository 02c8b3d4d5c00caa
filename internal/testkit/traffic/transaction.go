package traffic

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// large is from how many statements on a transaction counts as one.
const large = 100

// transaction writes statements to several collections at once. A refused, lost
// or conflicting statement aborts the transaction; it is not retried.
func (c *client) transaction(ctx context.Context, statements int) error {
	var cmds []bson.D
	count := 0
	if c.rnd.IntN(12) == 0 { // a collection that comes into being with the transaction, with an index
		cmds = append(cmds, bson.D{{Key: "create", Value: fresh}}, bson.D{{Key: "createIndexes", Value: fresh}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: one("n.x", int32(1))}, {Key: "name", Value: "n.x_1"}},
		}}})
	}
	// Each key is taken once: two statements on one document are tried by the
	// updates of a command.
	for count < statements {
		n := min(statements-count, 1+c.rnd.IntN(1+statements/4))
		coll := pick(c, orders, orders, users, names, hot, fresh)
		switch c.rnd.IntN(4) {
		case 0:
			docs := bson.A{}
			for range n {
				c.serial++
				d := c.document(c.key())
				d[0].Value = fmt.Sprintf("txn-%d-%d", c.no, c.serial%(4*c.cfg.Keys))
				docs = append(docs, d)
			}
			cmds = append(cmds, bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
		case 1:
			list := bson.A{}
			for range n {
				id := any(fmt.Sprintf("txn-%d-%d", c.no, c.rnd.IntN(4*c.cfg.Keys)))
				list = append(list, bson.D{{Key: "q", Value: one("_id", id)}, {Key: "limit", Value: int32(1)}})
			}
			cmds = append(cmds, bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: list}})
		default:
			list := bson.A{}
			for range n {
				list = append(list, c.statement())
			}
			cmds = append(cmds, bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: list}})
		}
		count += n
	}
	return c.commit(ctx, cmds, count, c.rnd.IntN(10) == 0)
}

// chain makes one transaction that is too large for one entry of the log.
func (c *client) chain(ctx context.Context) error {
	const each = 400_000
	var cmds []bson.D
	pad := strings.Repeat("0123456789", each/10)
	n := c.cfg.ChainBytes/each + 1
	for i := range n {
		cmds = append(cmds, bson.D{{Key: "insert", Value: orders}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: fmt.Sprintf("chain-%d", i)}, {Key: "pad", Value: pad}},
		}}})
	}
	// The space is not needed any longer than for that.
	cmds = append(cmds, bson.D{{Key: "update", Value: orders}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: one("_id", "chain-0")}, {Key: "u", Value: one("$unset", one("pad", ""))},
	}}}})
	return c.commit(ctx, cmds, n+1, false)
}

// sessionID returns the id of a new session. Another run must not meet the numbers of this one.
func (c *client) sessionID(of string) bson.Raw {
	return mongo.SessionID("traffic", of, strconv.Itoa(c.no), strconv.FormatInt(time.Now().UnixNano(), 10))
}

// commit runs commands in a transaction, and aborts it at the end if told to.
func (c *client) commit(ctx context.Context, cmds []bson.D, statements int, abort bool) error {
	if c.session == nil {
		first, err := mongo.FirstNumber(0)
		if err != nil {
			return fmt.Errorf("traffic: %w", err)
		}
		c.session = mongo.NewSession(c.cluster, c.sessionID("transactions"), first+1)
	}
	txn := c.session.Begin()
	err := c.inside(ctx, txn, cmds)
	if err == nil && !abort {
		if _, err = txn.Commit(ctx, c.rnd.IntN(2) == 0); err == nil {
			c.w.stats.transactions.Add(1)
			if statements >= large {
				c.w.stats.large.Add(1)
			}
			return nil
		}
	}
	txn.Abort(ctx)
	c.w.stats.aborted.Add(1)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch dispositionOf(err) {
	case lost:
		c.w.stats.lost.Add(1)
		return c.wait(ctx, retryPause)
	case conflict, refused:
		c.w.stats.refused.Add(1)
		return nil
	default:
		return fmt.Errorf("traffic: transaction: %w", err)
	}
}

func (c *client) inside(ctx context.Context, txn *mongo.Txn, cmds []bson.D) error {
	for _, cmd := range cmds {
		body, err := bson.Marshal(cmd)
		if err != nil {
			return fmt.Errorf("build %s: %w", cmd[0].Key, err)
		}
		reply, err := txn.Call(ctx, mongo.Command{DB: c.cfg.DB, Body: body})
		if err != nil {
			return err
		}
		if err := c.checkWrites(reply); err != nil {
			return err
		}
	}
	return nil
}
