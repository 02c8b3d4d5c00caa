package dispatch

import (
	"sync"
	"time"
)

const (
	// SessionIdle is how long a session is remembered without use: what hello
	// states as logicalSessionTimeoutMinutes.
	SessionIdle = SessionTimeoutMinutes * time.Minute
	// sessionSweep is the interval between checks for idle sessions.
	sessionSweep = time.Minute
)

// sessionTable holds the sessions of a member in memory. One that is forgotten is
// read again from config.transactions when it is used again, so only sessions with
// an open transaction or a running command must be kept.
type sessionTable struct {
	now func() time.Time

	// mu guards the fields below, and users, dropping and used of the sessions. It is
	// taken before the mutex of a session.
	mu    sync.Mutex
	byKey map[sessionKey]*session
	swept time.Time
	// endings signals the ends of transactions.
	endings
}

// use returns the session, which stays in the table until done has been called as
// often: two commands that name one session never have two objects for it.
func (t *sessionTable) use(l *LSID) *session {
	key := sessionKey{l.id, l.uid}
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweep(now)
	s := t.byKey[key]
	if s == nil {
		s = &session{lsid: l.clone(), token: make(chan struct{}, 1), active: -1}
		t.byKey[key] = s
	}
	s.users++
	s.dropping, s.used = false, now
	return s
}

// done ends a use.
func (t *sessionTable) done(s *session) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.users--
	s.used = now
	if s.dropping {
		t.forget(s)
	}
}

// end forgets a session that its client has ended, as soon as nothing needs it.
func (t *sessionTable) end(l *LSID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byKey[sessionKey{l.id, l.uid}]; s != nil {
		s.dropping = true
		t.forget(s)
	}
}

// refresh records that a client continues to use a session.
func (t *sessionTable) refresh(l *LSID) {
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byKey[sessionKey{l.id, l.uid}]; s != nil {
		s.used = now
	}
}

// sweep forgets idle sessions, if it is time. The lock is taken.
func (t *sessionTable) sweep(now time.Time) {
	if now.Sub(t.swept) < sessionSweep {
		return
	}
	t.swept = now
	for _, s := range t.byKey {
		if now.Sub(s.used) >= SessionIdle {
			t.forget(s)
		}
	}
}

// forget removes a session, unless it is in use or has an open transaction. The
// lock is taken.
func (t *sessionTable) forget(s *session) {
	if s.users > 0 {
		return
	}
	s.Mu.Lock()
	open := s.State == TxnInProgress || s.State == TxnPrepared
	s.Mu.Unlock()
	if !open {
		delete(t.byKey, sessionKey{s.lsid.id, s.lsid.uid})
	}
}

// maybe returns the session if there is one.
func (t *sessionTable) maybe(l *LSID) (*session, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.byKey[sessionKey{l.id, l.uid}]
	return s, ok
}

// All returns the sessions, in no order.
func (t *sessionTable) All() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*session, 0, len(t.byKey))
	for _, s := range t.byKey {
		all = append(all, s)
	}
	return all
}
