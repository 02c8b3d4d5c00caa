package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// ErrChanged reports that another process has changed the record.
var ErrChanged = errors.New("another process works on this cutover, or has ended it")

// ErrOlder reports that an older record was read than what a majority of the target has confirmed: a primary that was just elected
// learns later that one has it. It passes.
var ErrOlder = errors.New("the target does not know yet that a majority of it has the last change")

// tryFor is how long a change or a read is tried while the target fails over.
const tryFor = 30 * time.Second

// Store has the records of a target.
type Store struct {
	// Target runs commands on the target's primary; DB is the metadata database.
	Target mongo.Caller
	DB     string
}

// Get returns the record of a link, nil for none. It is majority-committed.
func (s *Store) Get(ctx context.Context, link string) (*Record, error) {
	return s.get(ctx, link, "majority")
}

// Newest is Get, but returns the record as the target's primary has it. It has all that was confirmed, while Get may return an earlier record: a
// primary that was just elected does not know at once what a majority has. A failover may roll it back.
func (s *Store) Newest(ctx context.Context, link string) (*Record, error) {
	return s.get(ctx, link, "local")
}

func (s *Store) get(ctx context.Context, link, concern string) (*Record, error) {
	var docs []bson.Raw
	err := s.retry().Do(ctx, func() (err error) {
		docs, err = metadata.FindAll(ctx, mongo.Retry{}, s.Target, nil, s.DB, metadata.Cutovers, concern, metadata.ByID(link))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the cutover of link %s: %w", link, err)
	}
	if len(docs) == 0 {
		return nil, nil
	}
	r := new(Record)
	if err := bson.Unmarshal(docs[0], r); err != nil {
		return nil, fmt.Errorf("read the cutover of link %s: %w", link, &metadata.DamagedError{Link: link, What: "its cutover: " + err.Error()})
	}
	return r, nil
}

// Open returns the records of cutovers that are neither done nor cancelled (see Record.Open): of one link, or of all of
// them if link is empty. They are majority-committed. It asks once.
func (s *Store) Open(ctx context.Context, link string) ([]*Record, error) {
	docs, err := metadata.FindAll(ctx, mongo.Retry{}, s.Target, nil, s.DB, metadata.Cutovers, "majority", func(dst []byte) []byte {
		if link != "" {
			dst = metadata.ByID(link)(dst)
		}
		return metadata.AppendDoc(dst, "state", func(dst []byte) []byte {
			return metadata.AppendNotIn(dst, string(Done), string(Cancelled))
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read which cutovers are under way: %w", err)
	}
	open := make([]*Record, len(docs))
	for i, doc := range docs {
		open[i] = new(Record)
		if err := bson.Unmarshal(doc, open[i]); err != nil {
			id, _ := doc.Lookup("_id").StringValueOK()
			return nil, fmt.Errorf("read which cutovers are under way: %w", &metadata.DamagedError{Link: id, What: "its cutover: " + err.Error()})
		}
	}
	return open, nil
}

// retry tries again while the target fails over, or does not answer: the writes are compare-and-set.
func (*Store) retry() mongo.Retry {
	return mongo.Retry{For: tryFor, Again: func(err error) bool {
		kind := servererr.Classify(err)
		return errors.Is(err, ErrOlder) || mongo.Passes(err) || kind == servererr.Lost || kind == servererr.Unconfirmed || kind == servererr.NotPrimary || kind == servererr.Leaving
	}}
}

// Put stores a record in place of the one that was read, with write concern majority: was is nil if
// there was none. It sets Rev and Save. The error wraps ErrChanged if another process was first.
func (s *Store) Put(ctx context.Context, was, now *Record) error {
	now.number(was)
	err := s.retry().Do(ctx, func() error {
		cmd, err := s.change(was, now)
		if err != nil {
			return err
		}
		reply, err := s.Target.Call(ctx, metadata.Majority(cmd))
		if err == nil {
			if e := mongo.ConcernError(reply); e != nil {
				return &mongo.UnconfirmedError{Err: e}
			}
			err = written(reply)
		}
		if !errors.Is(err, ErrChanged) {
			return err
		}
		is, err := s.Get(ctx, now.Link)
		if err != nil {
			return err
		}
		return is.Same(now)
	})
	if err != nil {
		return fmt.Errorf("record the cutover of link %s: %w", now.Link, err)
	}
	return nil
}

// Same returns an error if a record that was read is not the one that was stored: ErrOlder, or ErrChanged.
func (r *Record) Same(stored *Record) error {
	switch {
	case r == nil || r.Rev < stored.Rev:
		return ErrOlder
	case r.Save != stored.Save:
		return ErrChanged
	}
	return nil
}

// number gives a record the next number, and an id of its own, once.
func (r *Record) number(was *Record) {
	rev := int64(1)
	if was != nil {
		rev = was.Rev + 1
	}
	if r.Rev != rev || was != nil && r.Save == was.Save || r.Save.IsZero() {
		r.Rev, r.Save = rev, bson.NewObjectID()
	}
}

// change is the command that stores a record.
func (s *Store) change(was, now *Record) (mongo.Command, error) {
	doc, err := bson.Marshal(now)
	if err != nil {
		return mongo.Command{}, fmt.Errorf("encode the record: %w", err)
	}
	if was == nil {
		return metadata.Write(s.DB, "insert", metadata.Cutovers, "documents", doc), nil
	}
	return metadata.Update(s.DB, metadata.Cutovers, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return bsoncore.AppendObjectIDElement(metadata.ByID(now.Link)(dst), "save", was.Save)
		},
		Change: func(dst []byte) []byte { return append(dst, doc[4:len(doc)-1]...) },
	}), nil
}

// written returns ErrChanged if a write has met another record than the one that was read.
func written(reply bson.Raw) error {
	refused, err := mongo.WriteErrors(reply)
	switch {
	case err != nil:
		return err
	case len(refused) > 0 && servererr.IsDuplicateKey(&refused[0].Error):
		return ErrChanged
	case len(refused) > 0:
		return &refused[0].Error
	}
	n, err := metadata.Written(reply)
	if err == nil && n == 0 {
		err = ErrChanged
	}
	return err
}
