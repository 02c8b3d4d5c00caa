package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// logWorld is a log whose fetch stage the test plays.
type logWorld struct {
	*Log
	t     testing.TB
	copy  *checkpoint.Copy
	fetch fetcher.Config
	// replies are what the fetch stage sends; it ends with what it finds in ends.
	replies chan oplog.Reply
	ends    chan error
	started int
	// memory is the log's share.
	memory int64
}

type noMembers struct{}

func (noMembers) Member(string) mongo.Caller { return nil }
func (noMembers) View() syncsource.View      { return syncsource.View{} }
func (noMembers) Seek(bool)                  {}

func newLogWorld(t testing.TB) *logWorld {
	t.Helper()
	w := &logWorld{t: t, replies: make(chan oplog.Reply), ends: make(chan error)}
	w.copy = &checkpoint.Copy{Number: 1, Phase: checkpoint.Copying, Host: "a:1", Begin: testTime(1), Started: time.UnixMilli(1)}
	w.Log = NewLog(LogConfig{Link: "l", Dir: t.TempDir(), SourceWait: time.Hour, Run: w.run, Memory: func() int64 { return w.memory }})
	r, err := syncsource.NewResolver(syncsource.ResolverConfig{}, noMembers{}, noMembers{})
	w.must(err)
	w.fetch = fetcher.Config{From: testTime(1), Resolver: r}
	return w
}

// newStored starts the log of a consistent link, and stores entries in its spool.
func newStored(t testing.TB, numbers ...uint32) *logWorld {
	t.Helper()
	w := newLogWorld(t)
	w.must(w.Start(t.Context(), t.Context(), nil, w.fetch))
	w.store(t.Context(), numbers...)
	return w
}

func (w *logWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run plays Fetcher.Run.
func (w *logWorld) run(ctx context.Context, _ *fetcher.Fetcher, out chan<- oplog.Reply) error {
	defer close(out)
	w.started++
	for {
		select {
		case r := <-w.replies:
			select {
			case out <- r:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		case err := <-w.ends:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// store has entries fetched, and waits until they are stored.
func (w *logWorld) store(ctx context.Context, numbers ...uint32) {
	w.t.Helper()
	r := oplog.Reply{Received: time.UnixMilli(1)}
	for _, n := range numbers {
		e := testEntry(w.t, n, "d.c", "x")
		r.Entries, r.Bytes = append(r.Entries, e), r.Bytes+int64(len(e.Raw))
	}
	w.replies <- r
	w.must(w.Spool().WaitFor(ctx, testTime(numbers[len(numbers)-1]).TS))
}

// read returns the numbers of the entries that Read sends, and its error.
func (w *logWorld) read(ctx, head context.Context, until oplog.OpTime) (numbers []uint32, err error) {
	out, done := make(chan oplog.Reply), make(chan error, 1)
	go func() { done <- w.Read(ctx, head, until, out) }()
	for r := range out {
		for i := range r.Entries {
			numbers = append(numbers, r.Entries[i].OpTime.TS.T-1000)
		}
		w.Spool().Release(r.Bytes)
	}
	return numbers, <-done
}

// TestLogMemory: the spool, which stays open for all attempts, has the memory of the
// present one.
func TestLogMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		for _, w.memory = range []int64{100_000, 20_000, 60_000} {
			w.must(w.Start(t.Context(), t.Context(), w.copy, w.fetch))
			if got := w.Spool().Stats().Limit; got != w.memory/2 {
				t.Errorf("with %d bytes the limit is %d", w.memory, got)
			}
		}
		w.must(w.Remove())
	})
}

// TestLogRead: Read sends the stored entries, up to the one requested or until head is done,
// and fails if fetching does.
func TestLogRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		ctx := t.Context()
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		w.store(ctx, 1, 2, 3, 4, 5)
		if got, err := w.read(ctx, ctx, testTime(3)); err != nil || len(got) != 3 || got[2] != 3 {
			t.Errorf("up to 3: %v, %v", got, err)
		}
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		head, end := context.WithCancelCause(ctx)
		time.AfterFunc(time.Second, func() { end(nil) })
		if got, err := w.read(ctx, head, oplog.OpTime{}); err != nil || len(got) != 5 {
			t.Errorf("until head is done: %v, %v", got, err)
		}
		failed := errors.New("no member")
		time.AfterFunc(time.Second, func() { w.ends <- failed })
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		if _, err := w.read(ctx, ctx, oplog.OpTime{}); !errors.Is(err, failed) {
			t.Errorf("after the end of fetching: %v", err)
		}
		if err := w.wait(ctx); !errors.Is(err, failed) {
			t.Errorf("Wait returns %v", err)
		}
		if w.started != 1 {
			t.Errorf("fetching was started %d times", w.started)
		}
		w.must(w.Close())
	})
}

// TestLogRecover: after a damage the content is fetched again at once, from where the next
// start would begin; any other failure is returned.
func TestLogRecover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		ctx, other := t.Context(), errors.New("of the attempt")
		w.must(w.Recover(ctx, ctx, other)) // nothing has been started
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		w.store(ctx, 1, 2, 3)
		w.must(w.Recover(ctx, ctx, other)) // it runs
		w.must(w.Forget(testTime(2)))
		w.ends <- &spool.DamagedError{}
		synctest.Wait()
		w.must(w.Recover(ctx, ctx, other))
		synctest.Wait()
		if w.started != 2 || !w.Log.fetch.From.Equal(testTime(2)) {
			t.Errorf("fetching was started %d times, from %s", w.started, w.Log.fetch.From)
		}
		if w.HasUnapplied(oplog.OpTime{}) {
			t.Error("the damaged content is still there")
		}
		failed := errors.New("no member")
		w.ends <- failed
		synctest.Wait()
		if err := w.Recover(ctx, ctx, other); !errors.Is(err, failed) {
			t.Errorf("Recover returns %v", err)
		}
		w.must(w.Close())
	})
}

// TestLogStopKnown: once Stop is recorded, a change of the feature compatibility version after
// it does not make the copy void, although the fetcher was started before; and once the copy
// is consistent, any member may be read after a damage too.
func TestLogStopKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		ctx := t.Context()
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		synctest.Wait()
		changed := func(n uint32) error {
			return w.entries.check(t.Context(), []oplog.Entry{testEntry(t, n, versions, fcvDocument)})
		}
		if err := changed(6); !errors.Is(err, ErrFCVChanged) {
			t.Errorf("while documents are copied: %v", err)
		}
		replaying := *w.copy
		replaying.Phase, replaying.Stop = checkpoint.Replaying, testTime(5)
		w.must(w.Start(ctx, ctx, &replaying, w.fetch)) // the fetcher goes on
		if w.started != 1 || changed(6) != nil || !errors.Is(changed(5), ErrFCVChanged) {
			t.Errorf("once everything is copied: %v at Stop, %v after it, started %d times", changed(5), changed(6), w.started)
		}
		damage := func() {
			t.Helper()
			w.ends <- &spool.DamagedError{}
			synctest.Wait()
			w.must(w.Recover(ctx, ctx, errors.New("of the attempt")))
			synctest.Wait()
		}
		damage()
		if err := changed(6); err != nil || w.started != 2 {
			t.Errorf("after a damage: %v, started %d times", err, w.started)
		}
		done := replaying
		done.Phase = checkpoint.Copied
		w.must(w.Start(ctx, ctx, &done, w.fetch))
		damage()
		w.must(w.Start(ctx, ctx, &done, w.fetch))
		synctest.Wait()
		if w.Log.copy.Phase != checkpoint.Copied || w.started != 3 {
			t.Errorf("after a damage, it is fetched for a copy in the phase %q, started %d times", w.Log.copy.Phase, w.started)
		}
		w.must(w.Close())
	})
}

// TestLogServes: until the copy is consistent the oplog is read from the spool, then for as
// long as the spool has more than the position and was not drained.
func TestLogServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		ctx := t.Context()
		serves := func(c *checkpoint.Copy, from uint32, want bool) {
			t.Helper()
			if got, err := w.Serves(c, testTime(from)); err != nil || got != want {
				t.Errorf("from %d: %t, %v", from, got, err)
			}
		}
		serves(nil, 1, false)
		serves(w.copy, 1, true)
		done := *w.copy
		done.Phase = checkpoint.Copied
		serves(&done, 1, false) // it is empty
		w.must(w.Start(ctx, ctx, w.copy, w.fetch))
		w.store(ctx, 1, 2, 3, 30)
		serves(&done, 0, false)
		serves(&done, 2, true)
		serves(&done, 30, false)
		if !w.HasUnapplied(testTime(29)) || w.HasUnapplied(testTime(30)) {
			t.Error("what is applied counts as not applied, or the other way round")
		}
		cp, copying := checkpoint.Progress{FetchFrom: testTime(2)}, false
		drained := func() bool {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			drained, err := w.Drained(ctx, 3*time.Second, func() (checkpoint.Progress, bool) { return cp, copying })
			w.must(err)
			return drained
		}
		if drained() {
			t.Error("drained 28 s before the end")
		}
		cp.FetchFrom, copying = testTime(22), true
		if drained() {
			t.Error("drained before the target is consistent")
		}
		if copying = false; !drained() {
			t.Error("not drained 8 s before the end, of which 3 are the delay")
		}
		serves(&done, 25, false)
		next := done
		next.Number = 2
		serves(&next, 25, false)
		w.must(w.Remove())
	})
}
