package verify

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// slow is a server whose collection has two documents. The second one comes late, after some errors.
type slow struct {
	t     *testing.T
	code  servererr.Code
	fails int
	// finds counts the reads from the beginning.
	finds int
}

// Call implements mongo.Caller.
func (s *slow) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	cursor := bson.D{{Key: "id", Value: int64(7)}, {Key: "ns", Value: "d.c"}, {Key: "firstBatch", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}}
	if _, err := cmd.Body.LookupErr("find"); err == nil {
		s.finds++
	}
	if _, err := cmd.Body.LookupErr("getMore"); err == nil {
		if err := mongo.Pause(ctx, 10*time.Minute); err != nil {
			return nil, err
		}
		if s.fails > 0 {
			s.fails--
			return nil, servererr.New(s.code, "planted")
		}
		cursor = bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "d.c"}, {Key: "nextBatch", Value: bson.A{bson.D{{Key: "_id", Value: 2}}}}}
	}
	return must.Marshal(s.t, bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: cursor}}), nil
}

// TestLongRead: a read that cannot be resumed is repeated after an error that comes late, however long it lasts, but not without end.
func TestLongRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code  servererr.Code
		fails int
		fits  func(error) bool
	}{
		"killed":           {servererr.CursorKilled, mostLost - 1, func(err error) bool { return err == nil }},
		"always killed":    {servererr.CursorKilled, 100, func(err error) bool { return servererr.Classify(err) == servererr.Stuck }},
		"overwritten":      {servererr.CappedPositionLost, mostLost - 1, func(err error) bool { return err == nil }},
		"never to be read": {servererr.CappedPositionLost, 100, func(err error) bool { return errors.Is(err, errOverwritten) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				source, target := &slow{t: t, code: tt.code, fails: tt.fails}, &slow{t: t}
				v := must.Get(New(Config{Source: source, Target: target, Scope: everything(t), Found: func(*Difference) error { return nil }}))(t)
				s := scan{v: v, p: &pair{"d.c", "d.c", &listed{ns: "d.c"}, &listed{ns: "d.c"}}, order: inserted}
				if err := s.read(t.Context()); !tt.fits(err) || source.finds != mostLost || err == nil && s.tally.EqualDocs != 2 {
					t.Errorf("%v after %d reads: %+v", err, source.finds, s.tally)
				}
			})
		})
	}
}
