package checkpoint

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// listLimit is the largest number of links that List reads.
const listLimit = 10_000

// Listed is a link in the result of List.
type Listed struct {
	Link  string
	State State
	// Err is the reason why it cannot be read, or nil.
	Err error
}

// List returns the links of a metadata database of the target, by name. An empty
// db means "replicator".
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
			err = s.readLanes(ctx, &link)
		}
		if err != nil {
			err = s.wrap(err, "read it")
		}
		list = append(list, Listed{Link: cfg.Link, State: link.State, Err: err})
	}
	slices.SortFunc(list, func(a, b Listed) int { return cmp.Compare(a.Link, b.Link) })
	return list, nil
}
