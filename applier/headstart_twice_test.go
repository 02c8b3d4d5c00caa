package applier

import (
	"context"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// openBuild is Commands with a build that an earlier attempt has begun.
type openBuild struct {
	Commands
	build    oplog.UUID
	prepared int
}

// HeadStart implements Commands.
func (b *openBuild) HeadStart(context.Context, *oplog.Op) (*ddl.HeadStart, error) {
	b.prepared++
	return &ddl.HeadStart{Build: b.build}, nil
}

// OpenBuilds implements Commands.
func (b *openBuild) OpenBuilds(context.Context) ([]*ddl.HeadStart, error) {
	return []*ddl.HeadStart{{Build: b.build}}, nil
}

// away is a target that answers nothing.
type away struct{}

// Call implements mongo.Caller.
func (away) Call(context.Context, mongo.Command) (bson.Raw, error) { return nil, errors.New("away") }

// TestHeadStartOnce: a build that was resumed is not begun a second time at its startIndexBuild, which is read again: its
// commit or abort would end only one of them.
func TestHeadStartOnce(t *testing.T) {
	t.Parallel()
	l := newLog(t)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	op := &l.after(start)[0].Items[0].Entry.Op
	commands := &openBuild{build: must.Get(op.IndexBuild())(t).Build}
	b := newHeadStarts(t.Context(), &Config{Commands: commands, Target: away{}, IndexSlots: &IndexSlots{used: 9}})
	defer b.end()
	must.Succeed(t, b.resume(t.Context()))
	must.Succeed(t, b.start(t.Context(), op))
	if commands.prepared > 0 || len(b.builds) != 1 {
		t.Errorf("begun %d times more, %d builds", commands.prepared, len(b.builds))
	}
}
