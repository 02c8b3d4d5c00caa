package mirrored

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// ErrUnplayed is a recording of a server version that the embedded set cannot
// play.
var ErrUnplayed = errors.New("the embedded set does not play version")

// Source is an embedded set of one member that plays a recording. Mirror may run
// concurrently with Play.
type Source struct {
	*mongosim.Set

	// First is the optime of the entry before the recorded ones, Last that of the
	// last one.
	First, Last oplog.OpTime
	// Moving is true if before/ was copied during writes.
	Moving bool
	// Before and After are the recording's data.
	Before, After memstore.State

	entries []bson.Raw
	// played is how many of them the set has.
	played int
}

// Start starts a set with the recording's initial data. Nothing is played yet.
// Close the set when it is done with.
func Start(ctx context.Context, s *corpus.Scenario) (*Source, error) {
	return start(ctx, s, false)
}

// startPlayed starts a set that has played everything. Where entries are about
// data of the server's own databases that no recording has, they are passed over:
// what a follower reads is the log.
func startPlayed(ctx context.Context, s *corpus.Scenario) (*Source, error) {
	var faults []error
	for _, tolerant := range []bool{false, true} {
		src, err := start(ctx, s, tolerant)
		if err != nil {
			return nil, err
		}
		if err = src.Play(src.Entries()); err == nil {
			return src, nil
		}
		src.Close()
		faults = append(faults, err)
	}
	return nil, errors.Join(faults...)
}

func start(ctx context.Context, s *corpus.Scenario, tolerant bool) (*Source, error) {
	src, extra, err := load(ctx, s)
	if err != nil {
		return nil, err
	}
	dialect := dialectOf(s)
	if !slices.Contains(mongosim.Dialects(), dialect) {
		return nil, fmt.Errorf("%w %s", ErrUnplayed, s.Meta.ServerVersion)
	}
	src.Set, err = mongosim.Start(ctx, mongosim.Options{
		SetName: "recorded", Dialect: dialect, FCV: s.Meta.FCV, TTLInterval: -1, OplogBytes: 1 << 30,
		Recording: &mongosim.Recording{
			First: src.First, Collections: stored(src.Before, extra, cmp.Or(s.Meta.FCV, dialect)), Moving: src.Moving || tolerant,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start a source that plays %s: %w", s.Name, err)
	}
	return src, nil
}

// dialectOf is the server version of a recording without its last number.
func dialectOf(s *corpus.Scenario) string {
	parts := strings.SplitN(s.Meta.ServerVersion, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// Entries is how many entries are left to be played.
func (s *Source) Entries() int { return len(s.entries) - s.played }

// bytesPerEntry is how many bytes of a log weigh as much as one entry more.
const bytesPerEntry = 10_000

// Weight is about how much work it is to mirror the log, in small entries.
func (s *Source) Weight() int {
	bytes := 0
	for _, e := range s.entries {
		bytes += len(e)
	}
	return len(s.entries) + bytes/bytesPerEntry
}

// Play plays the next n entries, or all that remain.
func (s *Source) Play(n int) error {
	end := s.played + min(n, s.Entries())
	if err := s.Member(0).Play(s.entries[s.played:end]); err != nil {
		return err
	}
	s.played = end
	return nil
}

// load reads a recording. The collections that it returns are those of the
// server's own databases that the log writes to or changes, of which no recording
// has the data. One that the log creates is there already when it does, which is
// nothing new to a member that applies a log.
func load(ctx context.Context, s *corpus.Scenario) (*Source, map[oplog.Namespace]oplog.UUID, error) {
	src := &Source{}
	var err error
	if src.Moving, err = corpus.Moving(ctx, s); err != nil {
		return nil, nil, err
	}
	if src.Before, err = s.Before(); err != nil {
		return nil, nil, err
	}
	if src.After, err = s.After(); err != nil {
		return nil, nil, err
	}
	src.First, _ = s.Span()
	extra := map[oplog.Namespace]oplog.UUID{}
	for e, err := range s.Oplog() {
		if err != nil {
			return nil, nil, err
		}
		if len(src.entries) == 0 {
			src.First.Term = e.OpTime.Term
		}
		src.Last = e.OpTime
		src.entries = append(src.entries, slices.Clone(e.Raw))
		ns, _, err := e.Target()
		if err != nil {
			return nil, nil, err
		}
		if db := ns.DB(); (db == "config" || db == "admin") && ns.IsCollection() && !e.UI.IsZero() && extra[ns].IsZero() {
			extra[ns.Clone()] = e.UI
		}
	}
	return src, extra, nil
}

// versionNS holds the feature compatibility version.
const versionNS = oplog.Namespace("admin.system.version")

// stored is what the source has to hold at first.
func stored(before memstore.State, extra map[oplog.Namespace]oplog.UUID, fcv string) []mongosim.StoredCollection {
	var all []mongosim.StoredCollection
	for i := range before.Collections {
		c := &before.Collections[i]
		if c.Type != memstore.TypeCollection {
			continue
		}
		delete(extra, c.NS)
		all = append(all, mongosim.StoredCollection{
			NS: c.NS, UUID: c.UUID, Options: c.Options, Indexes: c.Indexes, Documents: c.Documents,
		})
	}
	for ns, id := range extra {
		c := mongosim.StoredCollection{NS: ns, UUID: id, Options: bson.Raw(bsoncore.NewDocumentBuilder().Build())}
		if ns == versionNS {
			doc := bsoncore.NewDocumentBuilder().AppendString("_id", "featureCompatibilityVersion").AppendString("version", fcv)
			c.Documents = []bson.Raw{bson.Raw(doc.Build())}
		}
		all = append(all, c)
	}
	return all
}
