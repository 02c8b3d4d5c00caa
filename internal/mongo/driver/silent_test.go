package driver_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/driver/drivertest"
)

// TestSilentServer: after a command to which no reply has come, none of the connections of that time is used again: the
// network that has lost one of them may have lost all. After a caller has given up for another reason they are.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	for name, tt := range map[string]struct {
		cause error
		kept  bool
	}{"no reply": {&mongo.SilentError{After: time.Minute}, false}, "given up": {enough, true}} {
		for _, how := range []string{"one", "several", "more than the line takes"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				f := newFake(t)
				var both sync.WaitGroup
				both.Add(2)
				reached, over := make(chan struct{}), make(chan struct{})
				f.say(func(m received) (bson.Raw, []byte) {
					switch first, _ := m.body.IndexErr(0); first.Key() {
					case "both":
						both.Done()
						both.Wait()
					case "stall":
						close(reached)
						<-over
					}
					return drivertest.Doc(t, bson.D{{Key: "ok", Value: 1}}), nil
				})
				f.start()
				t.Cleanup(func() { close(over) }) // before the fake is stopped
				s := open(t, driver.Config{URI: f.uri()})
				var calls sync.WaitGroup
				for range 2 {
					calls.Go(func() { _, _ = s.Call(t.Context(), command(t, "both", "c")) })
				}
				calls.Wait()
				f.mu.Lock()
				old := []net.Conn{f.got[0].conn, f.got[1].conn}
				f.mu.Unlock()

				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					<-reached
					cancel(tt.cause)
				}()
				var err error
				next := command(t, "ping", "c")
				switch how {
				case "one":
					_, err = s.Call(ctx, command(t, "stall", "c"))
				case "more than the line takes":
					next.Sequence = "documents"
					for range 3 {
						next.Docs = append(next.Docs, drivertest.Doc(t, bson.D{{Key: "x", Value: make([]byte, 14<<20)}}))
					}
					fallthrough
				default:
					err = s.CallAll(ctx, []mongo.Command{command(t, "stall", "c"), next}, func(int, bson.Raw) error { return nil })
				}
				if !errors.Is(err, tt.cause) {
					t.Fatal(err)
				}
				if _, err := s.Call(t.Context(), command(t, "last", "c")); err != nil {
					t.Fatal(err)
				}
				if used := slices.Contains(old, f.last().conn); used != tt.kept {
					t.Errorf("a connection of before is used: %t", used)
				}
			})
		}
	}
}

// TestPassingOfCalls: callers are told of the bytes of their commands and replies, and of no others.
func TestPassingOfCalls(t *testing.T) {
	t.Parallel()
	for _, several := range []bool{false, true} {
		f := newFake(t)
		f.start()
		s := open(t, driver.Config{URI: f.uri()})
		call := func(ctx context.Context) {
			var err error
			if several {
				err = s.CallAll(ctx, []mongo.Command{command(t, "a", "c"), command(t, "b", "c")}, func(int, bson.Raw) error { return nil })
			} else {
				_, err = s.Call(ctx, command(t, "a", "c"))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		call(t.Context())
		var passed atomic.Int32
		call(mongo.WithPassing(t.Context(), func() { passed.Add(1) }))
		n := passed.Load()
		if n < 2 {
			t.Errorf("several %t: told %d times", several, n)
		}
		call(t.Context())
		if more := passed.Load(); more != n {
			t.Errorf("several %t: told %d times of another call", several, more-n)
		}
	}
}
