package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Settled reads the documents that a filter matches such that they are not rolled back, and not older than those that were confirmed before. With
// read concern majority alone they may be: a primary that was just elected does not know at once that a majority has what its predecessor
// has confirmed. So it compares with what the primary has, which includes that:
//
//	the primary has the same as was returned last ──▶ returned at once: a majority has had it
//	otherwise: what the primary has == what a majority has ──▶ returned
//	           else ──▶ both are read again, for half a minute
//
// It is safe for concurrent use.
type Settled struct {
	// Target runs commands on the target's primary. Session is the id of the session for cursors, nil for none.
	Target         mongo.Caller
	Session        bson.Raw
	DB, Collection string
	Filter         func(dst []byte) []byte
	// Same reports whether documents, sorted, are the same as far as it matters. Nil means byte for byte.
	Same func(a, b []bson.Raw) bool

	mu    sync.Mutex // guards the rest
	known []bson.Raw // returned last
	read  bool       // whether anything was
}

// UnsettledError reports that a primary has something of which it does not know that a majority has it.
type UnsettledError struct {
	// What names that.
	What string
}

func (e *UnsettledError) Error() string {
	return "the target's primary does not know yet that a majority has all of " + e.What + " that it has itself"
}

// Kind returns that it passes: an entry of the primary's own term is majority-committed, or another primary is elected.
func (*UnsettledError) Kind() servererr.Kind { return servererr.Transient }

// Read returns the documents, sorted by their bytes.
func (s *Settled) Read(ctx context.Context) (docs []bson.Raw, err error) {
	var last error
	err = mongo.Retry{Again: isUnsettled, Failed: func(err error) { last = err }}.Do(ctx, func() error {
		docs, err = s.once(ctx)
		return err
	})
	if err != nil && ctx.Err() != nil && last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return docs, err
}

func isUnsettled(err error) bool {
	_, is := errors.AsType[*UnsettledError](err)
	return is
}

func (s *Settled) once(ctx context.Context) ([]bson.Raw, error) {
	has, err := s.find(ctx, "local")
	if err != nil || s.isKnown(has) {
		return has, err
	}
	committed, err := s.find(ctx, "majority")
	switch {
	case servererr.HasNoMajorityReads(err):
		return has, nil
	case err != nil:
		return nil, err
	case !s.same(has, committed):
		return nil, &UnsettledError{What: s.DB + "." + s.Collection}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.read = committed, true
	return committed, nil
}

// isKnown reports whether documents are those that were returned last.
func (s *Settled) isKnown(has []bson.Raw) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read && s.same(has, s.known)
}

func (s *Settled) same(a, b []bson.Raw) bool {
	if s.Same != nil {
		return s.Same(a, b)
	}
	return slices.EqualFunc(a, b, func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
}

func (s *Settled) find(ctx context.Context, concern string) ([]bson.Raw, error) {
	docs, err := FindAll(ctx, mongo.Retry{}, s.Target, s.Session, s.DB, s.Collection, concern, s.Filter)
	slices.SortFunc(docs, func(a, b bson.Raw) int { return bytes.Compare(a, b) })
	return docs, err
}
