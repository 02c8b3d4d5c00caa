package sharetest

import (
	"context"
	"testing"
)

func cancelledContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	return ctx
}
