package syncsource

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestConfigUnread: the configuration counts as unread as long as it can be expected to be read: after an error that
// passes, and while only an older one was read; not after an error that stays.
func TestConfigUnread(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refuse error
		direct bool
		want   bool
	}{
		"denied":           {refuse: servererr.New(servererr.Unauthorized, "not authorized")},
		"unknown command":  {refuse: servererr.New(servererr.CommandNotFound, "no such command")},
		"another error":    {refuse: errors.New("the reply is not understood")},
		"login refused":    {refuse: &mongo.LostError{Host: "a:1", Err: errors.New("no"), Refused: true}},
		"no answer":        {refuse: &mongo.LostError{Host: "a:1", Err: errors.New("connection reset")}, want: true},
		"stepping down":    {refuse: servererr.New(servererr.InterruptedDueToReplStateChange, "stepping down"), want: true},
		"none, and direct": {refuse: &mongo.LostError{Host: "a:1", Err: errors.New("connection reset")}, direct: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFakeSet("a:1", "b:1")
				f.refuse = tt.refuse
				w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}, Direct: tt.direct})
				if v := w.View(); v.ConfigUnread == tt.direct {
					t.Errorf("before anything was asked: %t", v.ConfigUnread)
				}
				pass(time.Minute)
				if v := w.View(); v.ConfigUnread != tt.want || v.ConfigFault == "" {
					t.Errorf("%t, %q, want %t", v.ConfigUnread, v.ConfigFault, tt.want)
				}
				f.set(func() { f.refuse, f.config = nil, configOf(1) })
				pass(time.Minute)
				if v := w.View(); v.ConfigUnread || v.ConfigFault != "" {
					t.Errorf("after it was read: %t, %q", v.ConfigUnread, v.ConfigFault)
				}
			})
		})
	}
}

// configOf returns a version of the configuration of two members.
func configOf(version int32) bson.D {
	return bson.D{{Key: "_id", Value: "rs0"}, {Key: "version", Value: version}, {Key: "members", Value: bson.A{member(0, "a:1"), member(1, "b:1")}}}
}

// TestConfigUnreadSilent: a member that does not answer within the time limit may do so later.
func TestConfigUnreadSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.refuse = errSilent
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
		pass(time.Minute)
		if v := w.View(); !v.ConfigUnread || v.ConfigFault == "" {
			t.Errorf("%t, %q", v.ConfigUnread, v.ConfigFault)
		}
	})
}

// TestConfigUnreadOlder: the configuration of a member that lags does not count.
func TestConfigUnreadOlder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSet("a:1", "b:1")
		f.refuse, f.config = nil, configOf(1)
		f.members["b:1"].version = 2
		w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
		pass(time.Minute)
		if !w.View().ConfigUnread {
			t.Error("an older configuration counts")
		}
		f.set(func() { f.config = configOf(2) })
		pass(10 * time.Second)
		if w.View().ConfigUnread {
			t.Error("it was not read")
		}
	})
}

// TestConfigUnreadRolledBack: a newer configuration that was undone, as that of a primary that was cut off, is not
// waited for once no member that answers reports it.
func TestConfigUnreadRolledBack(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]func(f *fakeSet){
		"its member is down": func(f *fakeSet) {
			f.members["b:1"].err = &mongo.LostError{Host: "b:1", Err: errors.New("connection refused")}
		},
		"its member follows": func(f *fakeSet) { f.members["b:1"].version = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFakeSet("a:1", "b:1")
				f.refuse, f.config = nil, configOf(1)
				f.members["b:1"].version = 2
				w := watchFake(t, f, WatcherConfig{Seeds: []string{"a:1"}})
				pass(time.Minute)
				if !w.View().ConfigUnread {
					t.Error("an older configuration counts")
				}
				f.set(func() { undo(f) })
				pass(time.Minute)
				if w.View().ConfigUnread {
					t.Error("it is waited for")
				}
			})
		})
	}
}
