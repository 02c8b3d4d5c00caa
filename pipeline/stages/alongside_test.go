package stages

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestAlongside: work and loops end together: a loop that fails ends work with its error,
// and once work has ended the loops are told to, whose errors do not count then.
func TestAlongside(t *testing.T) {
	t.Parallel()
	failed, stop := errors.New("failed"), errors.New("stop")
	until := func(err error) func(context.Context) error {
		return func(ctx context.Context) error {
			<-ctx.Done()
			return err
		}
	}
	soon := func(err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(time.Second):
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	for name, c := range map[string]struct {
		work, loop func(context.Context) error
		stops      bool
		want       error
	}{
		"a loop fails":                          {work: until(context.Canceled), loop: soon(failed), want: failed},
		"a loop fails, work ends in order":      {work: until(nil), loop: soon(failed), want: failed},
		"a loop fails, and a stage names it":    {work: until(fmt.Errorf("feedback: %w", failed)), loop: soon(failed), want: failed},
		"a loop ends":                           {work: soon(nil), loop: func(context.Context) error { return nil }},
		"work ends":                             {work: soon(nil), loop: until(failed)},
		"work fails":                            {work: soon(failed), loop: until(nil), want: failed},
		"all is stopped":                        {work: until(context.Canceled), loop: until(nil), stops: true, want: stop},
		"all is stopped, and work fails before": {work: soon(failed), loop: until(nil), stops: true, want: failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if c.stops {
					time.AfterFunc(2*time.Second, func() { cancel(stop) })
				}
				if err := Alongside(ctx, c.work, c.loop); !errors.Is(err, c.want) || err != nil && c.want == nil || err != nil && err.Error() != c.want.Error() {
					t.Errorf("it returned %v, want %v", err, c.want)
				}
			})
		})
	}
}
