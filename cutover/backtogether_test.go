package cutover_test

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// creates recognises the first command of the transaction that creates a link.
var creates = onMetadata("delete", metadata.Begins)

// exists reports whether the link back was created.
func (s *sides) exists() bool {
	s.t.Helper()
	store := must.Get(checkpoint.New(checkpoint.Config{Target: s.last, Link: "back"}))(s.t)
	_, found, err := store.Load(s.t.Context())
	must.Succeed(s.t, err)
	return found
}

// TestBackRefusedBeforeItBegins: two processes start a way back together. One of them is refused, and lets go what both
// hold, after the other one has examined the old side and before it creates the link: that one does not begin.
func TestBackRefusedBeforeItBegins(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	late := &meanwhile{Caller: s.last, before: creates, do: func() {
		insert(t, s.last, "shop", "c", 2)
		if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) {
			t.Errorf("the one that is refused: %v", err)
		}
		s.is("one was refused", 3600)
	}}
	if err := s.begin(late); !errors.Is(err, ddl.ErrExpiryRestored) {
		t.Errorf("the other one: %v", err)
	}
	if s.exists() {
		t.Error("the link exists, and documents expire")
	}
	s.is("the other one was refused", 3600)
	if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) {
		t.Errorf("started again: %v", err)
	}
}

// TestBackRefusedWhileItBegins: as TestBackRefusedBeforeItBegins, but the one that is refused is suspended, before it sends
// a command, until the other one has created the link, or was refused as well.
func TestBackRefusedWhileItBegins(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before func(mongo.Command) bool
		begins bool // the other one has begun before the one that is refused could let go
	}{
		"asks for the link": {asksForLink(3), true},
		"claims":            {onMetadata("update", metadata.Begins), true},
		"lets go":           {ofC, false},
	} {
		s := newSides(t)
		suspended, go1, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		first := &meanwhile{Caller: s.last, before: tt.before, do: func() {
			close(suspended)
			<-go1
		}}
		second := &meanwhile{Caller: s.last, before: creates, do: func() {
			insert(t, s.last, "shop", "c", 2)
			go func() {
				err := s.begin(first)
				first.once.Do(func() { close(suspended) })
				ended <- err
			}()
			<-suspended
		}}
		err := s.begin(second)
		close(go1)
		was := <-ended
		if tt.begins {
			if err != nil || was != nil || !s.exists() {
				t.Errorf("%s: %v, the one that is refused: %v, begun: %t", name, err, was, s.exists())
			}
			s.is(name, expiresNever, 3600)
			continue
		}
		if !errors.Is(err, ddl.ErrExpiryRestored) || !errors.Is(was, cutover.ErrTouched) || s.exists() {
			t.Errorf("%s: %v, the one that is refused: %v, begun: %t", name, err, was, s.exists())
		}
		s.is(name, 3600)
	}
}

// onMetadata recognises a command on a collection of the metadata.
func onMetadata(name, collection string) func(mongo.Command) bool {
	return func(cmd mongo.Command) bool {
		first := cmd.Body.Index(0)
		text, _ := first.Value().StringValueOK()
		return cmd.DB == "replicator" && first.Key() == name && text == collection
	}
}

// asksForLink recognises the read of the link's document of that number.
func asksForLink(number int) func(mongo.Command) bool {
	seen := 0
	return func(cmd mongo.Command) bool {
		if onMetadata("find", "links")(cmd) {
			seen++
		}
		return seen == number
	}
}

// TestBackDiesLettingGo: what a process was letting go that has died is let go by the next one that is refused, and nothing
// begins meanwhile.
func TestBackDiesLettingGo(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	late := &meanwhile{Caller: s.last, before: creates, do: func() {
		insert(t, s.last, "shop", "c", 2)
		if err := s.begin(&cutOff{Caller: s.last}); err == nil || !errors.Is(err, gone) {
			t.Errorf("the one that dies: %v", err)
		}
	}}
	if err := s.begin(late); !errors.Is(err, ddl.ErrExpiryRestored) || s.exists() {
		t.Errorf("the other one: %v, begun: %t", err, s.exists())
	}
	if err := s.begin(s.last); !errors.Is(err, cutover.ErrTouched) {
		t.Errorf("started again: %v", err)
	}
	s.is("started again", 3600)
}
