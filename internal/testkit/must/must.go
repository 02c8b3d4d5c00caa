// Package must ends a test that cannot go on after an error.
package must

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// T is a *testing.T, a *testing.B or a *rapid.T.
type T interface {
	// Helper marks the caller as a helper: its lines are not reported.
	Helper()
	// Fatalf reports an error and ends the test.
	Fatalf(format string, args ...any)
}

// Get returns the value of a call that must succeed: v := must.Get(call())(t).
func Get[V any](v V, err error) func(t T) V {
	return func(t T) V {
		t.Helper()
		Succeed(t, err)
		return v
	}
}

// Succeed ends the test if there is an error.
func Succeed(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Fail ends the test unless err is want.
func Fail(t T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// Marshal returns a value as a document.
func Marshal(t T, v any) bson.Raw {
	t.Helper()
	return Get(bson.Marshal(v))(t)
}
