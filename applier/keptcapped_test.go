package applier

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// replacing is a Commands that also replaces a collection by a rename.
type replacing struct{ *commands }

func (r replacing) Apply(ctx context.Context, op *oplog.Op, again ddl.Mode) error {
	if op.Command != oplog.CommandRenameCollection {
		return r.commands.Apply(ctx, op, again)
	}
	entry, err := op.RenameCollection()
	if err != nil {
		return err
	}
	body, err := bson.Marshal(bson.D{{Key: "renameCollection", Value: string(entry.From)}, {Key: "to", Value: string(entry.To)}, {Key: "dropTarget", Value: true}})
	if err == nil {
		_, err = r.target.Call(ctx, mongo.Command{DB: "admin", Body: mongo.WithMajority(body)})
	}
	if e, ok := asServerError(err); ok && again != ddl.Once && e.Code == 26 {
		err = nil // it is done
	}
	if err != nil {
		return err
	}
	return r.catalog.Refresh(ctx, entry.From, entry.To)
}

// A collection that was kept back is made capped, and the attempt ends before it is recorded not to be kept
// back any more, after its checkpoint has passed that. What follows on it is announced by its own lane: another attempt
// that is cut off between the announcement and the writes loses nothing.
func TestKeptBackTurnsCapped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1})
	for _, coll := range []string{"a", "b"} {
		r.target.run(t, "db", bson.D{{Key: "create", Value: coll}})
	}
	r.target.run(t, "db", bson.D{{Key: "create", Value: "made"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	l := newLog(t)
	l.alone(buildOp("commitIndexBuild", 1, "u"))
	for i := range 4 {
		l.add(insertOp("db.a", doc(i, 0)))
		l.add(insertOp("db.b", doc(i, 0)))
	}
	l.alone(commandOp("db", bson.D{
		{Key: "renameCollection", Value: "db.made"},
		{Key: "to", Value: "db.a"},
		{Key: "stayTemp", Value: false},
		{Key: "dropTarget", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
	}))
	renamed := l.optime()
	begin := func() *attempt {
		return must.Get(r.begin(t.Context(), func(c *Config) {
			of := c.Commands.(*commands)
			of.building = 100 * time.Millisecond
			c.Commands, c.BuildWait = replacing{of}, 1
		}))(t)
	}
	cutOff := func(after oplog.OpTime, at func(cmd mongo.Command) bool) {
		t.Helper()
		r.target.intercept(func(cmd mongo.Command) (error, bool) {
			if at(cmd) {
				return &mongo.LostError{Err: errCrash}, false
			}
			return nil, false
		})
		if err := begin().run(t.Context(), l.after(after), 0); !errors.Is(err, errCrash) {
			t.Fatalf("the attempt was not cut off: %v", err)
		}
		r.target.intercept(nil)
	}
	cutOff(start, func(cmd mongo.Command) bool {
		for _, doc := range cmd.Docs {
			if _, err := doc.LookupErr("u", "$unset", "keptBack"); err == nil {
				return true
			}
		}
		_, err := cmd.Body.LookupErr("updates", "0", "u", "$unset", "keptBack")
		return err == nil
	})
	link := must.Get(r.store.Acquire(t.Context(), r.term))(t)
	r.term = link.Term()
	st := link.State()
	if len(st.KeptBack) != 1 || st.Barrier.OpTime != renamed {
		t.Fatalf("kept back: %v, and the barrier is at %v", st.KeptBack, st.Barrier)
	}
	must.Succeed(t, link.Advance(t.Context(), checkpoint.Progress{Applied: renamed, FetchFrom: renamed}, st.Lanes, st.Source))

	for i := range 5 {
		l.add(insertOp("db.a", doc(10+i, 0)))
	}
	cutOff(renamed, func(cmd mongo.Command) bool { return cmd.DB == "db" && simcaller.Name(cmd) == "insert" })
	a := begin()
	must.Succeed(t, a.run(t.Context(), l.after(renamed), 0))
	wantDocs(t, r.target, "db.a", doc(10, 0), doc(11, 0), doc(12, 0), doc(13, 0), doc(14, 0))
	if kept := a.link.State().KeptBack; len(kept) > 0 {
		t.Errorf("still kept back: %v", kept)
	}
}
