package mongo

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWithSilence(t *testing.T) {
	silent := errors.New("silent")
	for _, tt := range []struct {
		name  string
		beats []time.Duration // when something arrives
		ends  time.Duration
	}{
		{"nothing is heard", nil, 10 * time.Second},
		{"the answer goes on", []time.Duration{9 * time.Second, 10 * time.Second, 12 * time.Second, 14 * time.Second}, 17 * time.Second},
		{"the answer stops at once", []time.Duration{time.Second}, 4 * time.Second},
		{"too late", []time.Duration{11 * time.Second}, 10 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := WithSilence(t.Context(), 10*time.Second, 3*time.Second, silent)
				defer cancel()
				for _, at := range tt.beats {
					time.AfterFunc(at, Heard(ctx))
				}
				<-ctx.Done()
				if took := time.Since(began); took != tt.ends || !errors.Is(context.Cause(ctx), silent) {
					t.Errorf("ended after %s, want %s: %v", took, tt.ends, context.Cause(ctx))
				}
				<-time.After(time.Minute)
			})
		})
	}
}

func TestSilenceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := WithSilence(t.Context(), time.Second, time.Second, errors.New("silent"))
		heard := Heard(ctx)
		cancel()
		heard() // late, and without effect
		<-time.After(time.Minute)
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("got %v", context.Cause(ctx))
		}
		if Heard(t.Context()) != nil {
			t.Error("a context that does not want to know is told")
		}
	})
}
