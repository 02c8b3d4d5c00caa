package request

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Ask is a request to be made.
type Ask struct {
	Kind    Kind
	By, Why string
	// Args is a JSON object, nil for an empty one.
	Args json.RawMessage
}

const (
	// mostOpen is how many requests of a link may be open.
	mostOpen = 100
	// mostText limits By, Why and an outcome, mostArgs the arguments, in bytes.
	mostText = 1000
	mostArgs = 16 << 10
	// keepRecords limits the history.
	keepRecords = 200
	// askFor is for how long Ask is tried while the target fails over.
	askFor = time.Minute
)

// ErrTooMany is returned if too many requests are open.
var ErrTooMany = errors.New("too many requests wait for a process that runs the link")

// Ask stores a request, and returns it. The leader carries it out within seconds; if the link has
// none now, the next one. An error that wraps ErrInvalid says why it is not valid. Ask retries for a
// minute, through a failover of the target, and stores one request however often it is sent.
func (s *Store) Ask(ctx context.Context, a Ask) (Record, error) { return s.ask(ctx, a, askFor) }

func (s *Store) ask(ctx context.Context, a Ask, within time.Duration) (Record, error) {
	if len(a.Args) == 0 {
		a.Args = json.RawMessage("{}")
	}
	r := Record{
		ID: newID(time.Now()), Kind: a.Kind, By: clip(a.By), Why: clip(a.Why), Args: a.Args, State: Asked,
	}
	if err := r.Check(); err != nil {
		return Record{}, err
	}
	if len(a.Args) > mostArgs {
		return Record{}, fmt.Errorf("%w: its arguments have %d bytes, the most is %d", ErrInvalid, len(a.Args), mostArgs)
	}
	return s.store(ctx, r, within)
}

// store stores a request, and returns it as it is then. What an unconfirmed try has stored is not
// stored again, as it has the same _id.
func (s *Store) store(ctx context.Context, r Record, within time.Duration) (Record, error) {
	var last error
	tried, stored := false, false
	again := func(err error) bool { return passes(err) || stored && errors.Is(err, ErrGone) } // of a former primary
	err := mongo.Retry{For: within, Again: again, Failed: func(err error) { last = err }}.Do(ctx, func() error {
		if !stored {
			if err := s.room(ctx, &r); err != nil { // again: a former primary may have given a number that is used
				return err
			}
			if err := s.insert(ctx, &r); err != nil {
				tried = tried || !servererr.IsDenied(err) // one that is not allowed has stored nothing
				return err
			}
			tried, stored = true, true
		}
		now, err := s.get(ctx, r.ID)
		if err == nil {
			r = now
		}
		return err
	})
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil && last != nil:
		err = fmt.Errorf("%w: %w", err, plain(last))
	}
	if tried {
		return Record{}, s.wrap(err, "ask for %s, which may be stored as %s", r.Kind, r.ID)
	}
	return Record{}, s.wrap(err, "ask for %s", r.Kind)
}

// room returns an error that wraps ErrTooMany if too many requests are open. Otherwise it sets the
// Seq of a request. One that an earlier try has stored keeps its own.
func (s *Store) room(ctx context.Context, r *Record) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	open, found := 0, false
	r.Seq = 1
	for i := range all {
		if all[i].ID == r.ID {
			found = true
			continue
		}
		r.Seq = max(r.Seq, all[i].Seq+1)
		if all[i].Open() {
			open++
		}
	}
	if open >= mostOpen && !found {
		return ErrTooMany
	}
	return nil
}

// newID returns an id that sorts by time: the target's clock does not tell requests apart that
// one process makes one after the other.
func newID(now time.Time) string {
	return fmt.Sprintf("%016x-%s", now.UnixNano(), strings.ToLower(rand.Text()[:6]))
}

// clip shortens a text, and makes it valid UTF-8.
func clip(text string) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= mostText {
		return text
	}
	n := mostText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// insert stores a record, then counts it. A write that is sent again changes nothing.
func (s *Store) insert(ctx context.Context, r *Record) error {
	text := func(v string) bson.D { return bson.D{{Key: "$literal", Value: v}} }
	stage, err := bson.Marshal(bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: "$state"}}, "missing"}}},
		bson.D{
			{Key: "_id", Value: text(s.record(r.ID))},
			{Key: "kind", Value: text(string(r.Kind))},
			{Key: "args", Value: text(string(r.Args))},
			{Key: "by", Value: text(r.By)},
			{Key: "why", Value: text(r.Why)},
			{Key: seqField, Value: bson.D{{Key: "$literal", Value: r.Seq}}},
			{Key: "at", Value: "$$NOW"},
			{Key: "state", Value: text(Asked)},
			{Key: "outcome", Value: text("")},
			{Key: "changedAt", Value: "$$NOW"},
		},
		"$$ROOT",
	}}}}})
	if err != nil {
		return fmt.Errorf("build its statement: %w", err)
	}
	if err := s.control(ctx, -1, metadata.Statement{Filter: metadata.ByID(s.record(r.ID)), Stage: stage, Upsert: true}); err != nil {
		return err
	}
	return s.bump(ctx)
}

// bump counts a request in the link's document, which a leader reads every second.
func (s *Store) bump(ctx context.Context) error {
	return s.control(ctx, -1, metadata.Statement{
		Filter: metadata.ByID(s.link),
		Change: func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$inc", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, askedField, 1) })
			return metadata.AppendDoc(dst, "$setOnInsert", func(dst []byte) []byte {
				dst = bsoncore.AppendInt64Element(dst, formatField, settingsFormat)
				dst = bsoncore.AppendInt64Element(dst, revField, 0)
				return bsoncore.AppendInt64Element(dst, termField, 0)
			})
		},
		Upsert: true,
	})
}

func (s *Store) record(id string) string { return s.link + "/" + id }

// control runs an update in the collection control, outside of transactions.
func (s *Store) control(ctx context.Context, want int64, change metadata.Statement) error {
	return metadata.Run(ctx, s.target, metadata.Majority(metadata.Update(s.db, metadata.Control, change)), want)
}

// List returns the records of the link, the newest first. It may return records that are not
// majority-committed yet. It retries for half a minute, through a failover of the target.
func (s *Store) List(ctx context.Context) (list []Record, err error) {
	err = outlast(ctx, func() error {
		list, err = s.list(ctx)
		return err
	})
	return list, err
}

// outlast reads again while the target fails over.
func outlast(ctx context.Context, read func() error) error {
	var last error
	err := mongo.Retry{Again: passes, Failed: func(err error) { last = err }}.Do(ctx, read)
	if err != nil && ctx.Err() != nil && last != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return err
}

func (s *Store) list(ctx context.Context) ([]Record, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{}, s.once, s.session, s.db, metadata.Control, "local", metadata.Below(s.link))
	if err != nil {
		return nil, s.wrap(err, "list its requests")
	}
	_, list, err := s.parseAll(docs)
	if err != nil {
		return nil, s.wrap(err, "list its requests")
	}
	newestFirst(list)
	return list, nil
}

// ErrGone is returned for a record that does not exist, or no longer does.
var ErrGone = errors.New("there is no such request")

// Get returns one record. It outlasts a failover of the target, for half a minute. The error is a *checkpoint.OverError for one
// that is open, of a link that has ended: no process closes it any more.
func (s *Store) Get(ctx context.Context, id string) (r Record, err error) {
	err = outlast(ctx, func() error {
		r, err = s.going(ctx, id)
		return err
	})
	return r, err
}

// going is one attempt of Get.
func (s *Store) going(ctx context.Context, id string) (Record, error) {
	r, err := s.get(ctx, id)
	if err != nil || !r.Open() {
		return r, err
	}
	over, err := s.links.Over(ctx)
	switch {
	case errors.Is(err, checkpoint.ErrNoLink):
		return r, nil
	case err != nil || over == nil:
		return r, err
	}
	if r, err = s.get(ctx, id); err != nil || !r.Open() { // It may have been closed before the end.
		return r, err
	}
	return r, s.wrap(&checkpoint.OverError{Link: s.link, Over: *over}, "wait for the request %s", id)
}

func (s *Store) get(ctx context.Context, id string) (Record, error) {
	doc, err := metadata.FindOne(ctx, s.target, s.db, metadata.Control, metadata.ByID(s.record(id)))
	switch {
	case err != nil:
		return Record{}, s.wrap(err, "read the request %s", id)
	case doc == nil:
		return Record{}, s.wrap(ErrGone, "read the request %s", id)
	}
	return s.parseRecord(doc), nil
}

// Settings reads the Settings. They are majority-committed: those that take effect are not rolled
// back. And they are not older than the last confirmed ones: a link that was paused is paused.
func (s *Store) Settings(ctx context.Context) (Settings, error) {
	docs, err := s.settings.Read(ctx)
	if err != nil {
		return Settings{}, s.wrap(err, "read the settings of operators")
	}
	settings, _, err := s.parseAll(docs)
	if err != nil {
		return Settings{}, s.wrap(err, "read the settings of operators")
	}
	return settings, nil
}

// ErrChanged is returned by Set if another process has changed the Settings meanwhile.
var ErrChanged = errors.New("another process has changed it")

// Leader is the lease under which requests are acted on: *checkpoint.Link. A write
// within it fails with lease.ErrFenced once another process has acquired the lease, however late
// it arrives.
type Leader interface {
	// Term returns the term of the lease.
	Term() int64
	// Within runs work in a transaction that commits only under the lease. It may run it more than
	// once.
	Within(ctx context.Context, work func(txn mongo.Caller) error) error
}

// Set stores Settings that were made of was, under a lease. One that has not read the last
// change gets ErrChanged.
func (s *Store) Set(ctx context.Context, by Leader, was, next Settings) (Settings, error) {
	if !was.found {
		if err := s.bump(ctx); err != nil {
			return was, s.wrap(err, "store the settings of operators")
		}
	}
	next.rev, next.term, next.asked, next.found = was.rev+1, by.Term(), was.asked, true
	cmd := metadata.Update(s.db, metadata.Control, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendInt64Element(metadata.ByID(s.link)(dst), revField, was.rev)
		},
		Change: next.change,
	})
	err := by.Within(ctx, func(txn mongo.Caller) error {
		reply, err := txn.Call(ctx, cmd)
		if err != nil {
			return err
		}
		n, err := metadata.Written(reply)
		if err == nil && n == 0 {
			err = ErrChanged
		}
		return err
	})
	if err != nil {
		return was, s.wrap(err, "store the settings of operators")
	}
	return next, nil
}

// Answered sets the state and the outcome of a record that is open, under a lease. One that is
// not open stays as it is.
func (s *Store) Answered(ctx context.Context, by Leader, id, state, outcome string) error {
	text := func(v string) bson.D { return bson.D{{Key: "$literal", Value: v}} }
	stage, err := bson.Marshal(bson.D{{Key: "$set", Value: bson.D{
		{Key: "state", Value: text(state)}, {Key: "outcome", Value: text(clip(outcome))}, {Key: "changedAt", Value: "$$NOW"},
	}}})
	if err != nil {
		return s.wrap(err, "answer the request %s", id)
	}
	err = s.under(ctx, by, metadata.Update(s.db, metadata.Control, metadata.Statement{
		Filter: func(dst []byte) []byte {
			dst = metadata.ByID(s.record(id))(dst)
			return metadata.AppendDoc(dst, "state", func(dst []byte) []byte { return metadata.AppendIn(dst, Asked, Working) })
		},
		Stage: stage,
	}))
	if err != nil {
		return s.wrap(err, "answer the request %s", id)
	}
	return nil
}

// under runs a write under a lease.
func (s *Store) under(ctx context.Context, by Leader, cmd mongo.Command) error {
	return by.Within(ctx, func(txn mongo.Caller) error { return metadata.Run(ctx, txn, cmd, -1) })
}

// Prune removes closed records, except the 200 that were closed last by the target's clock, and the 200
// that were asked last, in case that clock goes back. Records that are open in list stay, even if they
// were closed meanwhile: the client that asked still reads the answer. list is the result of List.
func (s *Store) Prune(ctx context.Context, list []Record) error {
	closed := make([]*Record, 0, len(list))
	newest := int64(0)
	for i := range list {
		newest = max(newest, list[i].Seq)
		if !list[i].Open() {
			closed = append(closed, &list[i])
		}
	}
	if len(closed) <= keepRecords {
		return nil
	}
	slices.SortStableFunc(closed, func(a, b *Record) int { return b.ChangedAt.Compare(a.ChangedAt) })
	var old []string
	for _, r := range closed[keepRecords:] {
		if r.Seq == 0 || r.Seq <= newest-keepRecords {
			old = append(old, s.record(r.ID))
		}
	}
	if len(old) == 0 {
		return nil
	}
	if err := metadata.Run(ctx, s.target, metadata.Delete(s.db, metadata.Control, metadata.AnyOf(old)), -1); err != nil {
		return s.wrap(err, "remove old requests")
	}
	return nil
}
