package driver

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// roundCommands and roundBytes limit a round, the commands that are written at once.
	// At most two rounds are in flight, because a server that cannot write its replies
	// does not read. The replies to two rounds nearly always fit into the socket buffers;
	// if they do not, conn reads them during writes.
	roundCommands = 64
	roundBytes    = 4 << 20
)

var _ mongo.Pipeliner = (*Set)(nil)

// CallAll implements mongo.Pipeliner. The commands go to the same server as in Call,
// which executes all commands of a connection in order. A reply is valid until each
// returns.
func (s *Set) CallAll(ctx context.Context, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(cmds) > 1 {
		if srv, direct := s.now(); srv != nil {
			conn, err := srv.Connection(ctx)
			if err == nil {
				return s.sender.sendAll(ctx, srv.Server, conn, cmds, each, direct)
			}
			if err := s.final(ctx, srv.Server, err); err != nil {
				return err
			}
		}
	}
	// One by one if there is no server yet, which is rare.
	for i := range cmds {
		reply, err := s.Call(ctx, cmds[i])
		if err == nil {
			err = each(i, reply)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendAll sends commands, reads their replies, and returns the connection to its pool.
func (s *sender) sendAll(
	ctx context.Context, srv *topology.Server, conn *mnet.Connection, cmds []mongo.Command, each func(i int, reply bson.Raw) error, direct bool,
) error {
	defer conn.Close() //nolint:errcheck // Nothing is told by it that was not told before.
	defer s.passing(ctx, conn)()
	answered := s.asking(conn)
	x := exchanges{
		sender: s, srv: srv, conn: conn, under: s.streamOf(ctx, conn), cmds: cmds, direct: direct, ids: make([]int32, 0, len(cmds)), each: each,
	}
	within := ctx
	if _, ok := ctx.Deadline(); ok && x.under == nil {
		// As in exchange: a deadline is turned into a cancellation, so that the driver closes
		// the connection.
		var cancel context.CancelCauseFunc
		within, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	}
	for x.first == nil && x.answered < len(cmds) {
		// The next round is written before the replies to the last one are read.
		for x.first == nil && len(x.ids) < len(cmds) && len(x.ids)-x.answered <= roundCommands {
			x.first = x.write(ctx, within)
		}
		x.read(ctx, within)
	}
	// All pending replies are read before the connection is used again.
	for !x.broken && x.answered < len(x.ids) {
		x.read(ctx, within)
	}
	if x.under != nil && !x.under.stop() {
		x.broken = true // The connection was closed, but the replies that came before are returned.
	}
	if x.broken && x.refused && ctx.Err() != nil {
		x.first = context.Cause(ctx) // There was no time to authenticate again.
	}
	if x.broken {
		// The driver would keep a connection after a timeout, and read one reply from it,
		// but several may be pending.
		expire(conn)
		return x.first
	}
	answered()
	if x.refused {
		return x.again(ctx)
	}
	return x.first
}

// exchanges is the state of pipelined commands on one connection.
type exchanges struct {
	*sender
	srv    *topology.Server
	conn   *mnet.Connection
	under  *stream // nil with TLS
	cmds   []mongo.Command
	direct bool
	each   func(i int, reply bson.Raw) error

	ids      []int32 // of the messages written
	answered int
	// first is the first error; refused reports that it is that of an expired
	// authentication, in the reply to the command at, and that all later replies have it,
	// too. Later replies are read and discarded.
	first   error
	refused bool
	at      int
	// broken reports that the connection cannot be used any more.
	broken     bool
	prefetched byte
}

// prefetch prefetches the first documents of a command. Of many commands with few documents each,
// one document is far from the other, and no cache has them when they are copied into the message.
func prefetch(docs []bson.Raw) (sum byte) {
	const most = 32
	for _, doc := range docs[:min(most, len(docs))] {
		sum += rawbson.Prefetch(doc)
	}
	return sum
}

// write writes the messages of a round.
func (x *exchanges) write(ctx, within context.Context) error {
	from, size := len(x.ids), 0
	to := from
	for to < len(x.cmds) && to-from < roundCommands {
		n := sizeOf(&x.cmds[to])
		if to > from && size+n > roundBytes {
			break
		}
		size += n
		x.prefetched = prefetch(x.cmds[to].Docs)
		to++
	}
	size += (to - from) * len(x.clock.GetClusterTime())
	buf := bufferFor(size)
	defer release(buf)
	wm := slices.Grow((*buf)[:0], size)
	for i := from; i < to; i++ {
		id := wiremessage.NextRequestID()
		var err error
		if len(x.compressors) == 0 {
			wm, err = x.message(wm, id, x.conn, &x.cmds[i], x.direct)
		} else {
			var one []byte
			one, err = x.message(nil, id, x.conn, &x.cmds[i], x.direct)
			wm = append(wm, one...)
		}
		if err != nil {
			// No message of this round has been written.
			x.ids = x.ids[:from]
			return err
		}
		x.ids = append(x.ids, id)
	}
	*buf = wm
	if x.cmds[from].Overdue() {
		x.ids = x.ids[:from]
		return fmt.Errorf("mongo: a command to %s: %w", x.conn.Address().String(), mongo.ErrTooLate)
	}
	var err error
	if x.under != nil {
		err = x.under.send(ctx, wm)
	} else {
		err = x.conn.Write(within, wm)
	}
	if err != nil {
		x.broken = true
		notice(ctx, x.srv, x.conn, err)
		return lost(ctx, x.conn.Address().String(), err)
	}
	return nil
}

// read reads the next reply, if one is pending.
func (x *exchanges) read(ctx, within context.Context) {
	if x.broken || x.answered == len(x.ids) {
		return
	}
	i := x.answered
	x.answered++
	var answer []byte
	var err error
	if x.under != nil {
		answer, err = x.under.receive(ctx)
	} else {
		answer, err = x.conn.Read(within)
	}
	if err != nil {
		x.broken = true
		notice(ctx, x.srv, x.conn, err)
		x.fail(lost(ctx, x.conn.Address().String(), err))
		return
	}
	reply, v, err := x.sender.read(x.srv, x.conn, x.ids[i], answer)
	switch {
	case err != nil:
		x.broken = true
		x.fail(err)
	case x.first != nil:
		// Commands may only be sent again if all of them, from the first error on, were
		// rejected for the expired authentication.
		x.refused = x.refused && !v.ok && v.code == errReauthenticate
	case !v.ok:
		x.refused, x.at = v.code == errReauthenticate && x.login != nil, i
		x.fail(mongo.Check(reply))
	default:
		x.first = x.each(i, reply)
	}
}

func (x *exchanges) fail(err error) {
	if x.first == nil {
		x.first = err
	}
}

// again reauthenticates, and sends the rejected commands, from the one at on, one by
// one.
func (x *exchanges) again(ctx context.Context) error {
	if err := x.reauthenticate(ctx, x.conn); err != nil {
		return err
	}
	for i := x.at; i < len(x.cmds); i++ {
		reply, v, err := x.exchange(ctx, x.srv, x.conn, &x.cmds[i], x.direct)
		switch {
		case err != nil:
			return err
		case !v.ok:
			return mongo.Check(reply)
		}
		if err := x.each(i, reply); err != nil {
			return err
		}
	}
	return nil
}

// reauthenticate authenticates a connection again.
func (s *sender) reauthenticate(ctx context.Context, conn *mnet.Connection) error {
	err := s.login.Reauth(ctx, &driver.AuthConfig{
		Description: conn.Description(), Connection: conn, ClusterClock: s.clock,
	})
	if err != nil {
		expire(conn)
		host := conn.Address().String()
		return lost(ctx, host, &AuthError{Host: host, Err: err})
	}
	return nil
}
