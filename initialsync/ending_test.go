package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestEntriesHeld: while Stop is determined and recorded, a change of the feature compatibility version waits, as it may
// be after it.
func TestEntriesHeld(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stop  oplog.OpTime
		leave bool
		want  error
	}{
		"after Stop":            {stop: testTime(5)},
		"at Stop":               {stop: testTime(6), want: ErrFCVChanged},
		"not recorded":          {want: ErrFCVChanged},
		"no longer to be known": {leave: true, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := checkpoint.Copy{Begin: testTime(2)}
				e := &entries{copy: c}
				ctx, leave := context.WithCancelCause(t.Context())
				defer leave(nil)
				e.ends()
				if err := e.check(ctx, []oplog.Entry{testEntry(t, 6, "d.c", "x")}); err != nil {
					t.Errorf("another entry: %v", err)
				}
				checked := make(chan error, 1)
				go func() { checked <- e.check(ctx, []oplog.Entry{testEntry(t, 6, versions, fcvDocument)}) }()
				synctest.Wait()
				select {
				case err := <-checked:
					t.Fatalf("before Stop is recorded: %v", err)
				default:
				}
				c.Stop = tt.stop
				if tt.leave {
					leave(context.Canceled)
				} else {
					e.advanced(&c)
				}
				if err := <-checked; !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
			})
		})
	}
}

// asking is members of which none answers. It calls ask before each command.
type asking struct{ ask func() }

func (a asking) Member(string) mongo.Caller { return a }

var errNoAnswer = errors.New("no answer")

func (a asking) Call(context.Context, mongo.Command) (bson.Raw, error) {
	a.ask()
	return nil, errNoAnswer
}

// TestCompleteHolds: entries are held before the newest entry of the source is asked for.
func TestCompleteHolds(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: mongosim.NoMoods("each answer counts")})
	conn := client.Open(t, driver.Config{URI: set.URI(), AppName: mongosim.Stage})
	w := newLogWorld(t)
	w.copy.FetchFrom = w.copy.Begin
	id := must.Get(replset.Identify(ctx, conn))(t)
	store := must.Get(checkpoint.New(checkpoint.Config{Target: conn, Link: "link"}))(t)
	must.Succeed(t, store.Create(ctx, checkpoint.State{
		Writers: 1, Fingerprint: "f", Applied: w.copy.Begin, AppliedWall: 1, FetchFrom: w.copy.FetchFrom, Copy: w.copy, Source: checkpoint.Source(id),
	}))
	st, _, err := store.Load(ctx)
	must.Succeed(t, err)
	link := must.Get(store.Acquire(ctx, st.Term))(t)
	must.Succeed(t, w.Start(ctx, ctx, link.Copy(), w.fetch))
	over, end := context.WithCancelCause(ctx)
	end(nil)
	far := []oplog.Entry{testEntry(t, 1<<31, versions, fcvDocument)}
	asked := 0
	ask := func() {
		asked++
		if err := w.entries.check(over, far); errors.Is(err, ErrFCVChanged) {
			t.Errorf("while the end is asked for: %v", err)
		}
	}
	s := &Sync{cfg: SyncConfig{Config: Config{Checkpoint: link}, Oplog: w.Log, Members: NewMembers(MembersConfig{Dialer: asking{ask}})}}
	if err := s.complete(ctx); !errors.Is(err, errNoAnswer) || asked == 0 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	must.Succeed(t, w.Close())
}
