package dispatch

import (
	"context"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// SessionTimeoutMinutes is what the server states (localLogicalSessionTimeoutMinutes),
// in minutes.
const SessionTimeoutMinutes = 30

func sessionSpecs() []Spec {
	return []Spec{
		{Name: "refreshSessions", Secondary: AnyMember, Run: runRefreshSessions},
		{Name: "endSessions", Secondary: AnyMember, Run: runEndSessions},
		{Name: "killSessions", Secondary: AnyMember, Run: runKillSessions},
		{Name: "killAllSessions", Secondary: AnyMember, Run: runKillAllSessions, Check: mayKillAny},
	}
}

// mayKillAny requires the privilege to end the sessions of others.
func mayKillAny(r *Request) error { return r.Allowed("killAnySession", "", "") }

// namedSessions reads the command's array of session ids.
func (r *Request) namedSessions() ([]*LSID, error) {
	e, _ := rawbson.Lookup(r.Cmd, r.Name)
	array, ok := e.Array()
	if !ok {
		return nil, WrongType(r.Spec.Name, r.Name, e.Type, "array")
	}
	var list []*LSID
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

func runRefreshSessions(_ context.Context, r *Request, _ *Reply) error {
	list, err := r.namedSessions()
	for _, l := range list {
		r.Server.Sessions.refresh(l)
	}
	return err
}

// runEndSessions ends sessions: their cursors and transactions end, their
// retryable writes stay known.
func runEndSessions(_ context.Context, r *Request, _ *Reply) error {
	list, err := r.namedSessions()
	if err != nil {
		return err
	}
	for _, l := range list {
		r.Server.killSession(l)
		r.Server.Sessions.end(l)
	}
	return nil
}

func runKillSessions(_ context.Context, r *Request, _ *Reply) error {
	list, err := r.namedSessions()
	if err != nil {
		return err
	}
	if len(list) == 0 { // all of this user
		r.Server.killSessions(func(l *LSID) bool { return l.uid == r.UserID() })
	}
	for _, l := range list {
		r.Server.killSession(l)
	}
	return nil
}

func runKillAllSessions(_ context.Context, r *Request, _ *Reply) error {
	e, _ := rawbson.Lookup(r.Cmd, r.Name)
	array, ok := e.Array()
	if !ok {
		return WrongType(r.Spec.Name, r.Name, e.Type, "array")
	}
	if len(array) > rawbson.MinSize {
		return servererr.New(servererr.NotImplemented, "killAllSessions of given users is not implemented here")
	}
	r.Server.killSessions(func(*LSID) bool { return true })
	return nil
}

// killSession ends the cursors of a session, the command that runs in it, and its
// open transaction. A prepared transaction stays.
func (s *Server) killSession(l *LSID) {
	s.Cursors.killSession(l)
	s.Builds.kill(func(of *LSID) bool { return of.id == l.id && of.uid == l.uid })
	if sess, ok := s.Sessions.maybe(l); ok {
		sess.kill()
		s.abortIf(sess, func() bool { return sess.State == TxnInProgress })
	}
}

func (s *Server) killSessions(which func(*LSID) bool) {
	s.Cursors.kill(ErrCursorKilled, func(c *Cursor) bool { return c.owner != nil && which(c.owner) })
	s.Builds.kill(which)
	for _, sess := range s.Sessions.All() {
		if which(sess.lsid) {
			s.killSession(sess.lsid)
		}
	}
}
