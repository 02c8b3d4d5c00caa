package sharetest_test

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/lease/share/sharetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, 500*time.Millisecond, func(*testing.T) share.Board { return sharetest.NewMemory() })
}
