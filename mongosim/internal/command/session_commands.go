package command

import (
	"context"
	"crypto/rand"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// sessionTimeoutMinutes is what the server states (localLogicalSessionTimeoutMinutes),
// in minutes.
const sessionTimeoutMinutes = 30

func sessionSpecs() []spec {
	return []spec{
		{name: "startSession", fields: []string{}, secondary: anyMember, run: runStartSession},
		{name: "refreshSessions", secondary: anyMember, run: runRefreshSessions},
		{name: "endSessions", secondary: anyMember, run: runEndSessions},
		{name: "killSessions", secondary: anyMember, run: runKillSessions},
		{name: "killAllSessions", secondary: anyMember, run: runKillAllSessions, check: mayKillAny},
		{name: "killAllSessionsByPattern", secondary: anyMember, run: runKillAllSessionsByPattern, check: mayKillAny},
	}
}

// mayKillAny asks for the privilege to end the sessions of others.
func mayKillAny(r *request) error { return r.allowed("killAnySession", "", "") }

func runStartSession(_ context.Context, _ *request, out *reply) error {
	var id oplog.UUID
	_, _ = rand.Read(id[:])                         // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a random UUID
	inner := bsoncore.AppendBinaryElement(nil, "id", bson.TypeBinaryUUID, id[:])
	out.Buf = bsoncore.AppendDocumentElement(out.Buf, "id", bsoncore.BuildDocument(nil, inner))
	out.Buf = bsoncore.AppendInt32Element(out.Buf, "timeoutMinutes", sessionTimeoutMinutes)
	return nil
}

// namedSessions reads the command's array of session ids.
func (r *request) namedSessions() ([]*lsid, error) {
	e, _ := rawbson.Lookup(r.cmd, r.name)
	array, ok := e.Array()
	if !ok {
		return nil, wrongType(r.spec.name, r.name, e.Type, "array")
	}
	var list []*lsid
	it := rawbson.NewIter(array)
	for it.Next() {
		l, err := r.parseLSID(&it.Elem)
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	return list, it.Err()
}

func runRefreshSessions(_ context.Context, r *request, _ *reply) error {
	list, err := r.namedSessions()
	for _, l := range list {
		r.srv.sessions.refresh(l)
	}
	return err
}

// runEndSessions ends sessions: their cursors and transactions go, what they have
// written stays known.
func runEndSessions(_ context.Context, r *request, _ *reply) error {
	list, err := r.namedSessions()
	if err != nil {
		return err
	}
	for _, l := range list {
		r.srv.killSession(l)
		r.srv.sessions.end(l)
	}
	return nil
}

func runKillSessions(_ context.Context, r *request, _ *reply) error {
	list, err := r.namedSessions()
	if err != nil {
		return err
	}
	if len(list) == 0 { // all of this user
		r.srv.killSessions(func(l *lsid) bool { return l.uid == r.userID() })
	}
	for _, l := range list {
		r.srv.killSession(l)
	}
	return nil
}

func runKillAllSessions(_ context.Context, r *request, _ *reply) error {
	e, _ := rawbson.Lookup(r.cmd, r.name)
	array, ok := e.Array()
	if !ok {
		return wrongType(r.spec.name, r.name, e.Type, "array")
	}
	if len(array) > rawbson.MinSize {
		return servererr.New(servererr.NotImplemented, "killAllSessions of given users is not implemented here")
	}
	r.srv.killSessions(func(*lsid) bool { return true })
	return nil
}

// runKillAllSessionsByPattern kills by lsid; an empty pattern means all.
func runKillAllSessionsByPattern(_ context.Context, r *request, _ *reply) error {
	e, _ := rawbson.Lookup(r.cmd, r.name)
	patterns, err := documentsOf(r.spec.name, r.name, &e)
	if err != nil {
		return err
	}
	if len(patterns) == 0 {
		r.srv.killSessions(func(*lsid) bool { return true })
	}
	for _, p := range patterns {
		it := rawbson.NewIter(p)
		if !it.Next() {
			r.srv.killSessions(func(*lsid) bool { return true })
			continue
		}
		if it.Name() != "lsid" {
			return servererr.New(servererr.NotImplemented, "killAllSessionsByPattern by %s is not implemented here", it.Name())
		}
		l, err := r.parseLSID(&it.Elem)
		if err != nil {
			return err
		}
		r.srv.killSession(l)
	}
	return nil
}

// killSession ends the cursors of a session, the command that runs in it, and its
// open transaction. A prepared transaction stays.
func (s *Server) killSession(l *lsid) {
	s.cursors.killSession(l)
	if sess, ok := s.sessions.maybe(l); ok {
		sess.kill()
		s.abortIf(sess, func() bool { return sess.state == txnInProgress })
	}
}

func (s *Server) killSessions(which func(*lsid) bool) {
	s.cursors.kill(errCursorKilled, func(c *cursor) bool { return c.owner != nil && which(c.owner) })
	for _, sess := range s.sessions.all() {
		if which(sess.lsid) {
			s.killSession(sess.lsid)
		}
	}
}
