package history

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// ErrSuperseded reports that a leader of a later term has written the history.
var ErrSuperseded = errors.New("a later leader of the link has written it")

// Store has the document of a link.
type Store struct {
	// Target runs commands on the target's primary.
	Target mongo.Caller
	// DB is the metadata database.
	DB, Link string
}

// Read returns the stored history, nil if there is none. A document that cannot be used is a
// [DamagedError].
func (s *Store) Read(ctx context.Context) (*Stored, error) {
	doc, err := metadata.FindOne(ctx, s.Target, s.DB, metadata.History, metadata.ByID(s.Link))
	if err != nil {
		return nil, fmt.Errorf("read the history of link %q: %w", s.Link, err)
	}
	if doc == nil {
		return nil, nil //nolint:nilnil // there is none, and that is not an error
	}
	stored, err := parse(doc)
	if err != nil {
		return nil, &DamagedError{Link: s.Link, Err: err}
	}
	return stored, nil
}

// Write stores a history for the leader of its term. It replaces a document of an earlier
// term, or of none, and never one of a later term: then it returns [ErrSuperseded]. So a
// write that arrives late does no harm. It need not survive a failover of the target: the
// primary alone acknowledges it, and the next one follows in a minute.
func (s *Store) Write(ctx context.Context, stored *Stored) error {
	err := metadata.Run(ctx, s.Target, metadata.PrimaryOnly(metadata.Update(s.DB, metadata.History, metadata.Statement{
		Filter: func(dst []byte) []byte {
			// Not "at most": a document whose term is not a number is replaced too.
			return metadata.AppendDoc(metadata.ByID(s.Link)(dst), "term", func(dst []byte) []byte {
				return metadata.AppendDoc(dst, "$not", func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "$gt", stored.Term) })
			})
		},
		Change: stored.document,
		Upsert: true,
	})), -1)
	switch {
	case err != nil && servererr.IsDuplicateKey(err):
		// The document exists, and the filter does not match it.
		return fmt.Errorf("store the history of link %q: %w", s.Link, ErrSuperseded)
	case err != nil:
		return fmt.Errorf("store the history of link %q: %w", s.Link, err)
	}
	return nil
}
