package lockstest

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
)

func TestMemory(t *testing.T) {
	Run(t, 400*time.Millisecond, func(*testing.T) locks.Store { return NewMemory() })
}

func TestMemoryLateRenewal(t *testing.T) {
	store := NewMemory()
	LateRenewal(t, store, store.Skew)
}
