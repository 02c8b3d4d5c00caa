package fetcher_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// lagging is a set of which one member says that it has applied no more than an entry, until it has caught up.
type lagging struct {
	syncsource.Dialer
	applied  oplog.OpTime
	mu       *sync.Mutex
	host     *string
	caughtUp <-chan struct{}
}

// Member implements syncsource.Dialer.
func (l lagging) Member(host string) mongo.Caller {
	return laggingMember{l, host, l.Dialer.Member(host)}
}

type laggingMember struct {
	lagging
	name string
	mongo.Caller
}

// Call implements mongo.Caller.
func (m laggingMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := m.Caller.Call(ctx, cmd)
	if name := simcaller.Name(cmd); err != nil || name != "hello" && name != "isMaster" || !m.lags(reply) {
		return reply, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	at := bson.D{{Key: "ts", Value: m.applied.TS}, {Key: "t", Value: m.applied.Term}}
	for _, part := range doc {
		fields, _ := part.Value.(bson.D)
		for i := range fields {
			if name := part.Key + "." + fields[i].Key; name == "lastWrite.opTime" || name == "$oplogQueryData.lastOpApplied" {
				fields[i].Value = at
			}
		}
	}
	return bson.Marshal(doc)
}

// lags reports whether the member lags: it is the first secondary that is asked.
func (m laggingMember) lags(reply bson.Raw) bool {
	select {
	case <-m.caughtUp:
		return false
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if secondary, _ := reply.Lookup("secondary").BooleanOK(); secondary && *m.host == "" {
		*m.host = m.name
	}
	return *m.host == m.name
}

// TestLaggingMayHaveIt: a member that lags, or is delayed, has not got as far as the position yet. That the oplogs of
// all others begin after it does not mean that none has it.
func TestLaggingMayHaveIt(t *testing.T) {
	t.Parallel()
	caughtUp := make(chan struct{})
	catchUp := sync.OnceFunc(func() { close(caughtUp) })
	s := newStageOn(t, func(d syncsource.Dialer) syncsource.Dialer {
		return lagging{d, oplog.NewOpTime(1, 1, 1), new(sync.Mutex), new(string), caughtUp}
	})
	t.Cleanup(catchUp)
	s.cfg.From = oplog.NewOpTime(2, 1, 1)
	f, _, done := s.run(s.ctx)
	for seen := 0; seen < 50; {
		changed := f.Changed()
		if st := f.Status(); st.Stale {
			seen++
			if !strings.Contains(st.Why, "ends at 1:1 t1, before 2:1 t1") {
				t.Fatalf("the status does not say what is waited for: %s", st.Why)
			}
		}
		select {
		case err := <-done:
			t.Fatalf("although a member has not got there: %v", err)
		case <-changed:
		}
	}
	catchUp()
	err := <-done
	if _, stale := errors.AsType[*syncsource.TooStaleError](err); !stale {
		t.Errorf("afterwards: %v", err)
	}
}

// TestOlderTerm: a source that was restored from an old backup may be in an older term than the position. What a majority of it has
// goes on after the position's timestamp, and terms never go back: the position is not in its history, and will not be.
func TestOlderTerm(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.cfg.From.Term += 3
	s.insert(1)
	_, _, done := s.run(s.ctx)
	select {
	case err := <-done:
		if !errors.Is(err, fetcher.ErrOtherHistory) || errors.Is(err, syncsource.ErrNoSource) || !strings.Contains(err.Error(), "in an older term than") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits")
	}
}

// killSecondary kills a secondary, and returns once the watcher knows it.
func (s *stage) killSecondary() {
	s.t.Helper()
	all := s.set.Members()
	away := all[slices.IndexFunc(all, func(m *mongosim.Member) bool { return m != s.set.Primary() })]
	s.must(away.Kill())
	for {
		changed := s.cfg.Watcher.Changed()
		for _, m := range s.cfg.Watcher.View().Members {
			if m.Host == away.Host() && !m.Up() {
				return
			}
		}
		<-changed
	}
}

// TestOlderTermNotPassed: as long as one member cannot be asked, or what a majority has does not go beyond the position, that the
// members are in an older term proves nothing.
func TestOlderTermNotPassed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(s *stage)
		stale  bool
	}{
		"a member is away": {func(s *stage) {
			s.insert(1)
			s.killSecondary()
		}, true},
		"the position is ahead": {func(s *stage) { s.cfg.From.TS.T += 1000 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.cfg.From.Term += 3
			tt.change(s)
			f, _, done := s.run(s.ctx)
			for seen := 0; seen < 50; {
				changed := f.Changed()
				if st := f.Status(); strings.Contains(st.Why, "in an older term than") && st.Stale == tt.stale {
					seen++
				}
				select {
				case err := <-done:
					t.Fatalf("it ended with %v", err)
				case <-changed:
				}
			}
		})
	}
}

// committedLater is a set of which the members say that a majority has more than they know while they are read.
type committedLater struct{ syncsource.Dialer }

// Member implements syncsource.Dialer.
func (c committedLater) Member(host string) mongo.Caller {
	return committedLaterMember{c.Dialer.Member(host)}
}

type committedLaterMember struct{ mongo.Caller }

// Call implements mongo.Caller.
func (m committedLaterMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := m.Caller.Call(ctx, cmd)
	if name := simcaller.Name(cmd); err != nil || name != "hello" && name != "isMaster" {
		return reply, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	for _, part := range doc {
		fields, _ := part.Value.(bson.D)
		for i := range fields {
			if part.Key+"."+fields[i].Key == "lastWrite.majorityOpTime" {
				at := fields[i].Value.(bson.D)
				ts := at[0].Value.(bson.Timestamp)
				ts.T += 3600
				at[0].Value = ts
			}
		}
	}
	return bson.Marshal(doc)
}

// TestStatusBehind: the status says by how much the member that is read is behind what others know of.
func TestStatusBehind(t *testing.T) {
	t.Parallel()
	s := newStageOn(t, func(d syncsource.Dialer) syncsource.Dialer { return committedLater{d} })
	s.insert(1)
	f, ids, done := s.run(s.ctx)
	select {
	case <-ids:
	case err := <-done:
		t.Fatal(err)
	}
	if by := f.Status().Metadata.Behind; by < 59*time.Minute || by > 61*time.Minute {
		t.Errorf("it is behind by %s", by)
	}
}
