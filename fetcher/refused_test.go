package fetcher_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/syncsource"
)

// disordered is a set whose members send an entry after the position twice.
type disordered struct{ syncsource.Dialer }

// Member implements syncsource.Dialer.
func (d disordered) Member(host string) mongo.Caller {
	return disorderedMember{d.Dialer.Member(host)}
}

// knownIn is how many entries of a batch are not new: the first one begins with the last entry that was sent.
var knownIn = map[string]int{"firstBatch": 1, "nextBatch": 0}

type disorderedMember struct{ mongo.Caller }

// Call implements mongo.Caller.
func (m disorderedMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := m.Caller.Call(ctx, cmd)
	if name := simcaller.Name(cmd); err != nil || name != "find" && name != "getMore" {
		return reply, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	for _, part := range doc {
		cursor, _ := part.Value.(bson.D)
		for i, f := range cursor {
			batch, ok := f.Value.(bson.A)
			if known, is := knownIn[f.Key]; is && ok && len(batch) > known {
				// However short the reply is, it has the first new entry twice.
				cursor[i].Value = slices.Concat(batch, bson.A{batch[known]})
			}
		}
	}
	return bson.Marshal(doc)
}

// TestRefusedAgainAndAgain: where no member sends what can be accepted, the status names the fault while the
// next attempt is waited for.
func TestRefusedAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := newStageOn(t, func(d syncsource.Dialer) syncsource.Dialer { return disordered{d} })
	for id := range 3 {
		s.insert(id)
	}
	f, _, done := s.run(s.ctx)
	for said := 0; said < 3; {
		changed := f.Changed()
		if strings.Contains(f.Status().Why, "the oplog is out of order") {
			said++
		}
		select {
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		case <-s.ctx.Done():
			t.Fatal("the status never says what is wrong with the entries")
		case <-changed:
		}
	}
}
