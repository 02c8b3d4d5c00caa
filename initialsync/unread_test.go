package initialsync_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// TestMemberBeforeTheConfiguration: a copy moves to no other member before the set's configuration is read: if it cannot
// be, the end of a copy of several members is never found.
func TestMemberBeforeTheConfiguration(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Hour, fresh, naturalSpec, naturalAt)
	told := make(chan struct{})
	tell := sync.OnceFunc(func() { close(told) })
	c.answer(func(host string, cmd mongo.Command) (mongo.Caller, error) {
		switch {
		case host == c.was:
			return nil, lost(host)
		case simcaller.Name(cmd) == "replSetGetConfig":
			<-told
		}
		return nil, nil
	})
	c.watch(time.Hour)
	t.Cleanup(tell)
	err := c.choose(0)
	if !errors.Is(err, initialsync.ErrNoMember) || !strings.Contains(err.Error(), "configuration") || c.link.Copy().Moves != 0 {
		t.Errorf("%v; the copy has moved %d times", err, c.link.Copy().Moves)
	}
	tell()
	if err := c.choose(5 * time.Minute); err != nil || c.link.Copy().Host == c.was {
		t.Errorf("%v; the copy is read from %s", err, c.link.Copy().Host)
	}
}
