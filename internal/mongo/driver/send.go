package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/description"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/session" //nolint:staticcheck // The driver's logins share its clock.
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/topology"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// sender sends commands on connections. All servers of a deployment share it.
type sender struct {
	clock       *session.ClusterClock //nolint:staticcheck // The driver's logins share it.
	login       driver.Authenticator  // nil without one
	compressors []string
	dialer      *dialer
	// throughDriver: even many commands in a row are sent and received by the driver.
	throughDriver bool
}

// errReauthenticate is the code for a connection whose authentication has expired.
const errReauthenticate = 391

// send sends a command once, reads its reply, and returns the connection to its pool.
// Direct reports that the server was not selected as the primary.
func (s *sender) send(ctx context.Context, srv *topology.Server, conn *mnet.Connection, cmd *mongo.Command, direct bool) (bson.Raw, error) {
	defer conn.Close() //nolint:errcheck // Nothing is told by it that was not told before.
	reply, v, err := s.exchange(ctx, srv, conn, cmd, direct)
	if err == nil && !v.ok && v.code == errReauthenticate && s.login != nil {
		if err := s.reauthenticate(ctx, conn); err != nil {
			return nil, err
		}
		reply, v, err = s.exchange(ctx, srv, conn, cmd, direct)
		if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	if !v.ok {
		return nil, mongo.Check(reply)
	}
	return reply, nil
}

// exchange writes a command and reads its reply, which may be an error.
func (s *sender) exchange(ctx context.Context, srv *topology.Server, conn *mnet.Connection, cmd *mongo.Command, direct bool) (bson.Raw, verdict, error) {
	buf := bufferFor(sizeOf(cmd))
	defer release(buf)
	id := wiremessage.NextRequestID()
	wm, err := s.message((*buf)[:0], id, conn, cmd, direct)
	*buf = wm
	if err != nil {
		return nil, verdict{}, err
	}
	host := conn.Address().String()

	// After a deadline the driver keeps the connection, to read the late reply, and the
	// server would continue to execute the command. So the deadline is turned into a
	// cancellation, after which the driver closes the connection.
	within := ctx
	if _, ok := ctx.Deadline(); ok {
		var cancel context.CancelCauseFunc
		within, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	}
	if cmd.Overdue() {
		return nil, verdict{}, fmt.Errorf("mongo: a command to %s: %w", host, mongo.ErrTooLate)
	}
	if heard := mongo.Heard(ctx); heard != nil {
		if under := s.dialer.of(conn); under != nil {
			under.hears(heard)
			defer under.hears(nil)
		}
	}
	defer s.passing(ctx, conn)()
	answered := s.asking(conn)
	if err = conn.Write(within, wm); err == nil {
		var answer []byte
		if answer, err = conn.Read(within); err == nil {
			answered()
			return s.read(srv, conn, id, answer)
		}
	}
	notice(ctx, srv, conn, err)
	return nil, verdict{}, lost(ctx, host, err)
}

// asking tells a connection that a command is about to be sent, until answered is called.
func (s *sender) asking(conn *mnet.Connection) (answered func()) {
	under := s.dialer.of(conn)
	if under == nil {
		return func() {}
	}
	under.asked.Store(true)
	return func() { under.asked.Store(false) }
}

// passing makes a connection tell the context of the bytes that pass, until stop is called.
func (s *sender) passing(ctx context.Context, conn *mnet.Connection) (stop func()) {
	passed := mongo.Passing(ctx)
	if passed == nil {
		return func() {}
	}
	under := s.dialer.of(conn)
	if under == nil {
		return func() {}
	}
	under.passing(passed)
	return func() { under.passing(nil) }
}

// notice tells the monitor of a server of an error of a connection. A server from which no reply has come is
// checked, and its connections are not used again: the network may have lost all that are as old. That the
// caller has ended the context for any other reason says nothing about the server.
func notice(ctx context.Context, srv *topology.Server, conn *mnet.Connection, err error) {
	if silent, ok := errors.AsType[*mongo.SilentError](context.Cause(ctx)); ok {
		err = topology.ConnectionError{ConnectionID: conn.ID(), Wrapped: silent}
	}
	srv.ProcessError(err, conn)
}

// message builds the message of a command, compressed if that was negotiated.
func (s *sender) message(dst []byte, id int32, conn *mnet.Connection, cmd *mongo.Command, direct bool) ([]byte, error) {
	o, err := outlineOf(cmd)
	if err != nil {
		return dst, err
	}
	var add additions
	if !o.hasTime {
		add.clusterTime = s.clock.GetClusterTime()
	}
	if slices.Contains(concerned, o.name) {
		add.local = !o.hasConcern && !o.inTransaction
		versions := conn.Description().WireVersion
		add.unlimited = !o.hasLimit && versions != nil && versions.Max >= defaultTime
	}
	if direct && !o.hasPreference && !o.inTransaction {
		kind := conn.Description().Kind
		add.preferred = kind&description.ServerKindRSMember != 0
	}
	if dst, err = appendMessage(dst, id, cmd, add); err != nil {
		if errors.Is(err, errTooLarge) {
			return dst, servererr.TooLarge("%s on %s: %v", o.name, cmd.DB, err)
		}
		return dst, fmt.Errorf("run %s on %s: %w", o.name, cmd.DB, err)
	}
	if len(s.compressors) == 0 || slices.Contains(plainOnly, o.name) || conn.Compressor == nil {
		return dst, nil
	}
	if !slices.ContainsFunc(conn.Description().Compression, func(c string) bool { return slices.Contains(s.compressors, c) }) {
		return dst, nil
	}
	packed, err := conn.CompressWireMessage(dst, nil)
	if err != nil {
		return dst, fmt.Errorf("compress %s on %s: %w", o.name, cmd.DB, err)
	}
	return packed, nil
}

// read parses a reply, and reports its errors to the monitor of the server.
func (s *sender) read(srv *topology.Server, conn *mnet.Connection, id int32, answer []byte) (bson.Raw, verdict, error) {
	reply, err := readMessage(answer, id)
	var v verdict
	if err == nil {
		v, err = verdictOf(reply)
	}
	if err != nil {
		host := conn.Address().String()
		expire(conn)
		return nil, v, &mongo.LostError{Host: host, Err: fmt.Errorf("read the reply: %w", err)}
	}
	s.advance(v.clusterTime)
	if !v.ok || v.concern {
		reply = bytes.Clone(reply) // an error may refer to it, after its memory is used again
		srv.ProcessError(driver.ExtractErrorFromServerResponse(bsoncore.Document(reply)), conn)
	}
	return reply, v, nil
}

// advance advances the cluster time. The clock gets a copy, because a view would keep
// the whole reply in memory.
func (s *sender) advance(t rawbson.Elem) {
	if doc, ok := t.Document(); ok {
		have := s.clock.GetClusterTime()
		if len(have) == len(doc)+clusterTimeFrame && bytes.Equal(have[clusterTimeFrame-1:len(have)-1], doc) {
			return
		}
		s.clock.AdvanceClusterTime(bson.Raw(bsoncore.BuildDocument(nil,
			bsoncore.AppendDocumentElement(nil, "$clusterTime", bsoncore.Document(doc)))))
	}
}

// clusterTimeFrame is the number of bytes of {$clusterTime: …} around its value. The
// last one follows the value.
const clusterTimeFrame = 4 + 1 + len("$clusterTime") + 1 + 1

// expire makes a connection be closed instead of returned to its pool.
func expire(conn *mnet.Connection) {
	if e, ok := conn.ReadWriteCloser.(driver.Expirable); ok {
		_ = e.Expire()
	}
}
