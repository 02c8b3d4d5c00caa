package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/request"
)

// TestSyncWithoutLog: a sync ends once the oplog can no longer be spooled, and does not first
// copy the rest: the copy may be void, and the source's oplog rolls over meanwhile.
func TestSyncWithoutLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		oplog, w := newLogWorld(t), newWorld(t)
		w.slow, w.source = true, []sourceCollection{{name: "a", docs: 10_000}}
		oplog.must(oplog.Start(t.Context(), t.Context(), oplog.copy, oplog.fetch))
		store, err := checkpoint.New(checkpoint.Config{Target: w, Link: "link"})
		oplog.must(err)
		s := &Sync{cfg: SyncConfig{Members: NewMembers(MembersConfig{}), Oplog: oplog.Log, Requests: request.New(store)}, copier: w.start(Config{Workers: 1}, 1)}
		s.pacer, err = pace.New(pace.Config{})
		oplog.must(err)
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		time.AfterFunc(30*time.Second, func() { oplog.ends <- ErrFCVChanged })
		if err := s.Run(ctx); !errors.Is(err, ErrFCVChanged) {
			t.Errorf("Run returns %v", err)
		}
		if docs := s.Progress().Docs; docs < 10 || docs > 30 {
			t.Errorf("%d documents were copied in 30 s", docs)
		}
		oplog.must(oplog.Close())
	})
}
