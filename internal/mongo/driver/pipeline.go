package driver

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// roundCommands and roundBytes bound what is written at once. There are two
	// rounds without an answer at most: a server that cannot write its replies
	// does not read. The replies to two rounds of writes fit into what a socket
	// holds, nearly always; conn takes them in where they do not.
	roundCommands = 16
	roundBytes    = 4 << 20
)

var _ mongo.Pipeliner = (*Set)(nil)

// CallAll implements mongo.Pipeliner: commands go to the primary as in Call, which
// carries them out in order, as all commands of one connection. A reply is valid
// until each returns.
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
	// One by one where a server has to be waited for, which is rare.
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

// sendAll sends commands and reads their replies, and gives the connection back.
func (s *sender) sendAll(
	ctx context.Context, srv *topology.Server, conn *mnet.Connection, cmds []mongo.Command, each func(i int, reply bson.Raw) error, direct bool,
) error {
	defer conn.Close() //nolint:errcheck // Nothing is told by it that was not told before.
	// As in exchange: a deadline is made a cancellation, at which the driver closes
	// the connection.
	within := ctx
	if _, ok := ctx.Deadline(); ok {
		var cancel context.CancelCauseFunc
		within, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	}
	x := exchanges{sender: s, srv: srv, conn: conn, cmds: cmds, direct: direct, ids: make([]int32, 0, len(cmds)), each: each}
	for x.first == nil && x.answered < len(cmds) {
		// The next round is on its way before the answers to the last one are read.
		for x.first == nil && len(x.ids) < len(cmds) && len(x.ids)-x.answered <= roundCommands {
			x.first = x.write(ctx, within)
		}
		x.read(ctx, within)
	}
	// What is due is read, so that nobody else finds it.
	for !x.broken && x.answered < len(x.ids) {
		x.read(ctx, within)
	}
	switch {
	case x.broken:
		// The driver would keep one that has timed out, and read one reply from it:
		// more may be on their way.
		expire(conn)
	case x.refused:
		return x.again(ctx)
	}
	return x.first
}

// exchanges are commands of one connection, of which some are written and some of
// these answered.
type exchanges struct {
	*sender
	srv    *topology.Server
	conn   *mnet.Connection
	cmds   []mongo.Command
	direct bool
	each   func(i int, reply bson.Raw) error

	ids      []int32 // of the messages that are written
	answered int
	// first is the first error; refused is set if it is that of a login that has
	// expired, and is the answer to the command at. What is answered behind it is
	// read, and nothing more.
	first   error
	refused bool
	at      int
	// broken is a connection that is of no use any more.
	broken bool
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
		to++
	}
	buf := bufferFor(size)
	defer release(buf)
	wm := (*buf)[:0]
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
			// Nothing of this round has been written.
			x.ids = x.ids[:from]
			return err
		}
		x.ids = append(x.ids, id)
	}
	*buf = wm
	if err := x.conn.Write(within, wm); err != nil {
		x.broken = true
		x.srv.ProcessError(err, x.conn)
		return lost(ctx, x.conn.Address().String(), err)
	}
	return nil
}

// read reads the next reply, if one is due.
func (x *exchanges) read(ctx, within context.Context) {
	if x.broken || x.answered == len(x.ids) {
		return
	}
	i := x.answered
	x.answered++
	answer, err := x.conn.Read(within)
	if err != nil {
		x.broken = true
		x.srv.ProcessError(err, x.conn)
		x.fail(lost(ctx, x.conn.Address().String(), err))
		return
	}
	reply, v, err := x.sender.read(x.srv, x.conn, x.ids[i], answer)
	switch {
	case err != nil:
		x.broken = true
		x.fail(err)
	case x.first != nil:
		// Only what was refused may be sent again: where something behind it was not,
		// nothing is.
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

// again logs in again, and sends what was refused one by one: all from the command
// at on.
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

// reauthenticate logs in again on a connection.
func (s *sender) reauthenticate(ctx context.Context, conn *mnet.Connection) error {
	err := s.login.Reauth(ctx, &driver.AuthConfig{
		Description: conn.Description(), Connection: conn, ClusterClock: s.clock, ServerAPI: s.serverAPI(),
	})
	if err != nil {
		expire(conn)
		host := conn.Address().String()
		return lost(ctx, host, &AuthError{Host: host, Err: err})
	}
	return nil
}
