package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// end is the end of a member's oplog.
type end struct {
	replset.Entry
	host string
	// state orders members by their states: the lowest cannot be read.
	state int
}

const (
	notRead = iota // RECOVERING and others: the oplog may be read, and no document
	asSecondary
	asPrimary
)

// stateOf returns the state of a member, by its reply to hello.
func stateOf(hello bson.Raw) int {
	if mongo.IsPrimary(hello) {
		return asPrimary
	}
	if secondary, _ := hello.Lookup("secondary").BooleanOK(); secondary {
		return asSecondary
	}
	return notRead
}

// compare orders members: those that can be read by how far their oplogs reach, after those that cannot.
func (e *end) compare(other *end) int {
	return cmp.Or(cmp.Compare(min(e.state, asSecondary), min(other.state, asSecondary)), e.OpTime.Compare(other.OpTime), cmp.Compare(e.state, other.state))
}

// furthest returns the member of a set whose oplog is the longest, of those whose documents can be read if there are any: the primary, if
// others have as much. Unread is a member that cannot be read and has more, nil for none.
func furthest(ctx context.Context, member func(host string) mongo.Caller, hosts []string) (best *end, unread *end, err error) {
	failed := errors.New("none answers")
	for _, h := range hosts {
		e, err := endOf(ctx, member(h), h)
		if err != nil {
			failed = err
			continue
		}
		if best == nil || e.compare(best) > 0 {
			best = e
		}
		if e.state == notRead && (unread == nil || e.OpTime.After(unread.OpTime)) {
			unread = e
		}
	}
	switch {
	case best == nil:
		return nil, nil, failed
	case unread == nil || !unread.OpTime.After(best.OpTime):
		return best, nil, nil
	}
	return best, unread, nil
}

// endOf returns the end of a member's oplog.
func endOf(ctx context.Context, c mongo.Caller, host string) (*end, error) {
	c = mongo.Patient{Caller: mongo.Bounded{Caller: c, Limit: 10 * time.Second}, Retry: mongo.Retry{For: 10 * time.Second, Again: returns}}
	e, err := replset.NewestEntry(ctx, c, replset.Local)
	if err != nil {
		return nil, err
	}
	// After the read: one that was starting then may be a secondary now.
	hello, err := mongo.Hello(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("ask %s for its state: %w", host, err)
	}
	return &end{e, host, stateOf(hello)}, nil
}

// returns reports whether a member that answers with an error may answer better soon.
func returns(err error) bool {
	return mongo.PassesRead(err) || servererr.Classify(err) == servererr.Leaving
}
