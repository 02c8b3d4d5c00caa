package standing

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// delayed is a target that executes a write late: something else happens before.
type delayed struct {
	mongo.Caller
	before func()
}

// Call implements mongo.Caller.
func (d *delayed) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("update"); err == nil && d.before != nil {
		before := d.before
		d.before = nil
		before()
	}
	return d.Caller.Call(ctx, cmd)
}

// TestLateMark: a mark that is stored late, after one of a later time, does not take that one back.
func TestLateMark(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	target := func() bson.Timestamp {
		_, docs, err := s.load(t.Context())
		must.Succeed(t, err)
		return docs["d.a"].Mark.Target
	}
	var later bson.Timestamp
	late := Store{DB: s.DB, Link: s.Link, Target: &delayed{s.Target, func() {
		must.Succeed(t, s.Mark(t.Context(), "another", "d.b")) // The target's time goes on.
		must.Succeed(t, s.Mark(t.Context(), "later", "d.a"))
		later = target()
	}}}
	must.Succeed(t, late.Mark(t.Context(), "sooner", "d.a"))
	if got := target(); later.IsZero() || got != later {
		t.Errorf("marked as of %v, and then as of %v", later, got)
	}
	must.Succeed(t, s.Mark(t.Context(), "again", "d.b", "d.a"))
	if got := target(); !got.After(later) {
		t.Errorf("marked again as of %v, before that as of %v", got, later)
	}
}
