package spool

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestReadOnly: a spool on a disk that became read-only is read to its end, which may be torn,
// and stores nothing.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for name, torn := range map[string]int64{"whole": 0, "torn": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Dir: t.TempDir(), ID: "x", MinFree: 1}
			s := must.Get(Open(cfg))(t)
			storeAll(t, s, reply(t, 10, 1, 2, 3), reply(t, 10, 4))
			path := s.current.path
			must.Succeed(t, s.Close())
			must.Succeed(t, os.Truncate(path, must.Get(os.Stat(path))(t).Size()-torn))
			s = must.Get(open(cfg, disk{
				open: func(path string, flag int, mode os.FileMode) (*os.File, error) {
					if flag&(os.O_RDWR|os.O_WRONLY|os.O_CREATE) != 0 {
						return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EROFS}
					}
					return os.OpenFile(path, flag, mode)
				},
				write: (*os.File).WriteAt, sync: (*os.File).Sync, free: freeBytes,
			}))(t)
			if err := tryStore(t, s, reply(t, 0, 4, 5)); !errors.Is(err, syscall.EROFS) {
				t.Errorf("it stores: %v", err)
			}
			must.Succeed(t, s.Start(at(2)))
			want, last := []int{2, 3}, 3
			if torn == 0 {
				want, last = append(want, 4), 4
			}
			if _, end, _ := s.Bounds(); !end.Equal(at(last)) {
				t.Errorf("it ends with %s", end)
			}
			ctx, stop := context.WithCancelCause(t.Context())
			out, done := make(chan oplog.Reply), make(chan error, 1)
			go func() { done <- s.Read(ctx, out) }()
			var got []int
			for len(got) < len(want) {
				got = append(got, numbers(<-out)...)
			}
			stop(nil)
			if err := <-done; !slices.Equal(got, want) || !errors.Is(err, context.Canceled) {
				t.Errorf("read were %v, want %v: %v", got, want, err)
			}
			must.Succeed(t, s.Close())
		})
	}
}
