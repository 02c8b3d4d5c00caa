package share_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

// TestWaitsAloud: the second process with a name says that it waits, once, and for which one.
func TestWaitsAloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, board := lockstest.NewMemory(), sharetest.NewMemory()
		var logs [2]bytes.Buffer
		var members sync.WaitGroup
		ctx, stop := context.WithCancelCause(t.Context())
		for i := range logs {
			s := must.Get(share.New(share.Config{
				Store: store, Board: board, Group: "g", Member: "m", Logger: slog.New(slog.NewTextHandler(&logs[i], nil)),
				Partitions: func(context.Context) ([]string, error) { return nil, nil },
				Work:       func(context.Context, string, int64) error { return nil },
			}))(t)
			members.Go(func() { _ = s.Run(ctx) }) // it returns our own cause
			time.Sleep(time.Minute)
		}
		stop(errors.New("the end"))
		members.Wait()
		said := func(i int) int { return strings.Count(logs[i].String(), "this one waits") }
		if said(0) != 0 || said(1) != 1 {
			t.Errorf("the first:\n%s\nthe second:\n%s", &logs[0], &logs[1])
		}
	})
}
