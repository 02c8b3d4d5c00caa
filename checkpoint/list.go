package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/lease"
)

// listLimit is the largest number of links that List reads.
const listLimit = 10_000

// surveyFor limits how long Survey retries: its callers call it again.
const surveyFor = 3 * time.Second

// Listed is a link in the result of List or Survey.
type Listed struct {
	Link string
	// State is without its lanes in the result of Survey.
	State State
	// Lease is how a process that does not have it sees the lease. It is that of Survey only.
	Lease lease.Sighting
	// Err is the reason why it cannot be read, or nil.
	Err error
}

// Survey returns the links of a metadata database of the target, by name, and the holders of their leases: what the
// documents of the links themselves say. It sends a few commands, however many links there are. An
// empty db means "replicator".
func Survey(ctx context.Context, target mongo.Caller, db string) ([]Listed, error) {
	cfg := Config{Target: target, DB: db}
	cfg.setDefaults()
	if err := checkDB(cfg.DB); err != nil {
		return nil, fmt.Errorf("checkpoint: survey links: %w", err)
	}
	docs, err := mongo.Retry{For: surveyFor}.ReadAll(ctx, target, nil, cfg.DB, metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "find", metadata.Links)
	}))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: survey links of %s: %w", cfg.DB, err)
	}
	list := make([]Listed, len(docs))
	records := make([]lease.Record, len(docs))
	for i, doc := range docs {
		id, _ := rawbson.Lookup(doc, "_id")
		name, _ := id.Text()
		cfg.Link = string([]byte(name))
		link, err := readLink(cfg.Link, doc)
		if err != nil {
			err = (&Store{cfg: cfg}).wrap(err, "read it")
		}
		list[i], records[i] = Listed{Link: cfg.Link, State: link.State, Err: err}, link.lease
	}
	if len(docs) == 0 {
		return list, nil
	}
	sights, err := lease.Sight(ctx, target, records)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: survey leases of %s: %w", cfg.DB, err)
	}
	for i := range list {
		list[i].Lease = sights[i]
	}
	slices.SortFunc(list, func(a, b Listed) int { return cmp.Compare(a.Link, b.Link) })
	return list, nil
}

// List returns the links of a metadata database of the target, by name. An empty
// db means "replicator". Listed.Err is set for links whose documents are damaged, or of another release; an error of
// the target is returned, so that a link that could not be read now is not taken for one that cannot be read at all.
func List(ctx context.Context, target mongo.Caller, db string) ([]Listed, error) {
	cfg := Config{Target: target, DB: db}
	cfg.setDefaults()
	if err := checkDB(cfg.DB); err != nil {
		return nil, fmt.Errorf("checkpoint: list links: %w", err)
	}
	all := func(dst []byte) []byte { return dst }
	reply, err := target.Call(ctx, metadata.Find(cfg.DB, metadata.Links, listLimit, all))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: list links of %s: %w", cfg.DB, err)
	}
	docs, err := metadata.Found(reply)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: list links of %s: %w", cfg.DB, err)
	}
	list := make([]Listed, 0, len(docs))
	for _, doc := range docs {
		id, _ := rawbson.Lookup(doc, "_id")
		name, _ := id.Text()
		cfg.Link = string([]byte(name))
		s := &Store{cfg: cfg}
		link, err := readLink(cfg.Link, doc)
		if err == nil {
			if err = s.readLanes(ctx, &link); err != nil && !isUnreadable(err) {
				return nil, s.wrap(err, "read it")
			}
		}
		if err != nil {
			err = s.wrap(err, "read it")
		}
		list = append(list, Listed{Link: cfg.Link, State: link.State, Err: err})
	}
	slices.SortFunc(list, func(a, b Listed) int { return cmp.Compare(a.Link, b.Link) })
	return list, nil
}

// isUnreadable reports whether the documents of a link cannot be used, rather than read.
func isUnreadable(err error) bool {
	if _, ok := errors.AsType[*VersionError](err); ok {
		return true
	}
	_, ok := errors.AsType[*metadata.DamagedError](err)
	return ok
}
