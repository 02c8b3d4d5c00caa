package request

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Requests are all requests of one link.
type Requests struct {
	// BytesPerSecond and OpsPerSecond limit the copy; 0 means no limit, negative that
	// none was requested: the process's own settings apply.
	BytesPerSecond, OpsPerSecond int64
	// Resync are the collections to be copied again, the oldest request first.
	Resync []Resync

	// limitsDamaged means that the limits cannot be read, and are given as not requested.
	limitsDamaged bool
}

// The states of a Resync.
const (
	Asked   = "asked"
	Copying = "copying"
	Joining = "joining"
	Done    = "done"
	Failed  = "failed"
)

// Resync is the request to copy a collection again.
type Resync struct {
	// NS is the collection, by the source's name.
	NS    oplog.Namespace
	Asked time.Time
	// State is Asked, Copying, Joining, Done or Failed. Why is the reason of Failed, and
	// the progress in Copying.
	State, Why string
}

// Compare orders requests, the oldest first.
func (r Resync) Compare(o Resync) int {
	return cmp.Or(r.Asked.Compare(o.Asked), cmp.Compare(r.NS, o.NS))
}

// Open reports whether the request is neither done nor failed.
func (r Resync) Open() bool { return r.State == Asked || r.State == Copying || r.State == Joining }

func validState(state string) bool {
	return Resync{State: state}.Open() || state == Done || state == Failed
}

// Fields of the documents.
const (
	bytesField = "bytesPerSecond"
	opsField   = "opsPerSecond"
	// againField is true in a request that becomes Asked again once it is Done or
	// Failed.
	againField = "again"
)

// Store reads and writes the requests of one link. It is safe for concurrent use.
type Store struct {
	links    *checkpoint.Store
	once     mongo.Caller // the target; it sends each command once
	target   mongo.Caller // the target; it retries transient errors
	db, link string
	session  bson.Raw // id of the session for cursors
	// settings has the document of the Settings, requests those that Read reads.
	settings, requests *metadata.Settled
	// limits are those that were read last, nil before that.
	limits atomic.Pointer[Requests]
}

// New returns the requests of the link of a checkpoint.Store.
func New(links *checkpoint.Store) *Store {
	db, link := links.DB(), links.Link()
	// One session for all reads: a server remembers each session for a while.
	session := mongo.SessionID(db, link, rand.Text(), "requests")
	s := &Store{links: links, once: links.Target(), target: mongo.Twice(links.Target()), db: db, link: link, session: session}
	s.settings = &metadata.Settled{Target: s.once, Session: session, DB: db, Collection: metadata.Control, Filter: metadata.ByID(link), Same: s.sameSettings}
	s.requests = &metadata.Settled{Target: s.once, Session: session, DB: db, Collection: metadata.Requests, Filter: metadata.OfLink(link)}
	return s
}

// storeError is an error of a Store, which names the link and the operation.
type storeError struct {
	link, doing string
	err         error
}

func (e *storeError) Error() string {
	return fmt.Sprintf("request: link %q: %s: %v", e.link, e.doing, e.err)
}

// Unwrap returns the error without both.
func (e *storeError) Unwrap() error { return e.err }

func (s *Store) wrap(err error, format string, args ...any) error {
	return &storeError{link: s.link, doing: fmt.Sprintf(format, args...), err: err}
}

// plain returns an error of a Store without the link, which the error that wraps it names.
func plain(err error) error {
	if of, is := errors.AsType[*storeError](err); is && error(of) == err { //nolint:errorlint // only err itself, not what it wraps
		return fmt.Errorf("%s: %w", of.doing, of.err)
	}
	return err
}

// id returns the _id of the request to copy a collection again. The _id of the limits is
// the link's name.
func (s *Store) id(ns oplog.Namespace) string { return s.link + "/" + string(ns) }

// Read reads all requests. They are majority-committed, and not older than the last confirmed ones. If documents are damaged, it returns those that are not,
// and an error for all others: see Damaged.
func (s *Store) Read(ctx context.Context) (Requests, error) {
	docs, err := s.requests.Read(ctx)
	if err != nil {
		return Requests{}, s.wrap(err, "read the requests")
	}
	all := Requests{BytesPerSecond: -1, OpsPerSecond: -1}
	var damaged []error
	for _, doc := range docs {
		if err := s.parse(doc, &all); err != nil {
			damaged = append(damaged, err)
		}
	}
	slices.SortFunc(all.Resync, Resync.Compare)
	if len(damaged) > 0 {
		return all, s.wrap(errors.Join(damaged...), "read the requests in %s.%s of the target", s.db, metadata.Requests)
	}
	return all, nil
}

// Damaged reports whether an error of Read is of documents that something else has changed: they stay so until
// somebody removes them, and the other requests were read.
func Damaged(err error) bool {
	_, damaged := errors.AsType[*metadata.DamagedError](err)
	return damaged
}

// damagedRemedy is the action to take for a damaged request.
const damagedRemedy = "remove that document, and make the request again"

// parse adds the request of a document.
func (s *Store) parse(doc bson.Raw, all *Requests) error {
	if err := doc.Validate(); err != nil {
		return &metadata.DamagedError{Link: s.link, What: "a request: " + err.Error(), Remedy: damagedRemedy}
	}
	r := metadata.NewReader(doc)
	id := r.Text("_id")
	var resync Resync
	bytes, ops := int64(-1), int64(-1)
	if id == s.link {
		bytes, ops = readLimit(r, bytesField), readLimit(r, opsField)
	} else {
		resync = Resync{
			NS: oplog.Namespace(r.Text("ns")), Asked: time.UnixMilli(r.Date("asked")).UTC(),
			State: r.Text("state"), Why: r.Text("why"),
		}
		if id != s.id(resync.NS) {
			r.Fault("_id", "that of its collection")
		}
		if !validState(resync.State) {
			r.Fault("state", "one of a request")
		}
	}
	switch {
	case r.Err() == nil && id == s.link:
		all.BytesPerSecond, all.OpsPerSecond = bytes, ops
	case r.Err() == nil:
		all.Resync = append(all.Resync, resync)
	default:
		all.limitsDamaged = all.limitsDamaged || id == s.link
		return &metadata.DamagedError{Link: s.link, What: fmt.Sprintf("request %q: field %v", id, r.Err()), Remedy: damagedRemedy}
	}
	return nil
}

// readLimit reads a limit, -1 if there is none.
func readLimit(r *metadata.Reader, name string) int64 {
	if !r.Has(name) {
		return -1
	}
	n := r.Int64(name)
	if n < 0 {
		r.Fault(name, "a limit")
	}
	return n
}
