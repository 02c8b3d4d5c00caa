package syncsource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// fakeSet is a set whose members answer hello and replSetGetConfig.
type fakeSet struct {
	mu      sync.Mutex
	members map[string]*fakeMember
	config  bson.D
	refuse  error // of replSetGetConfig
	start   time.Time
	events  []string
	asked   []string // HOST@SECONDS of each hello
}

// fakeMember adds extra to the fields that all members report.
type fakeMember struct {
	extra   bson.D
	delay   time.Duration
	err     error
	version int32
	hosts   []string
	me      string
	setName string
	primary bool
	applied oplog.OpTime
}

func newFakeSet(hosts ...string) *fakeSet {
	f := &fakeSet{members: map[string]*fakeMember{}, start: time.Now()}
	for i, host := range hosts {
		f.members[host] = &fakeMember{
			version: 1, hosts: hosts, me: host, setName: "rs0", primary: i == 0, delay: time.Millisecond,
			applied: oplog.NewOpTime(100, 1, 1),
		}
	}
	f.refuse = servererr.New(servererr.Unauthorized, "not authorized")
	return f
}

// set calls change with the set locked.
func (f *fakeSet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// errSilent refuses the configuration without an answer.
var errSilent = errors.New("no answer")

func (f *fakeSet) isSilent(command string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return command == "replSetGetConfig" && errors.Is(f.refuse, errSilent)
}

func (f *fakeSet) Member(host string) mongo.Caller { return fakeCaller{f, host} }

type fakeCaller struct {
	set  *fakeSet
	host string
}

func (c fakeCaller) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	c.set.mu.Lock()
	m := c.set.members[c.host]
	name := cmd.Body.Index(0).Key()
	var delay time.Duration
	if m != nil {
		delay = m.delay
	}
	if name != "replSetGetConfig" {
		c.set.asked = append(c.set.asked, fmt.Sprintf("%s@%d", c.host, time.Since(c.set.start).Milliseconds()))
	}
	c.set.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.set.isSilent(name) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	switch {
	case m == nil:
		return nil, &mongo.LostError{Host: c.host, Err: errors.New("no such host")}
	case m.err != nil:
		return nil, m.err
	case name == "replSetGetConfig" && c.set.refuse != nil:
		return nil, c.set.refuse
	case name == "replSetGetConfig":
		return bson.Marshal(bson.D{{Key: "config", Value: c.set.config}, {Key: "ok", Value: 1}})
	case cmd.Body.Lookup("$replData").Type == 0 || cmd.DB != "admin":
		return nil, errors.New("not the hello that was wanted")
	}
	optime := bson.D{{Key: "ts", Value: m.applied.TS}, {Key: "t", Value: m.applied.Term}}
	doc := slices.Concat(bson.D{}, m.extra)
	if m.setName != "" {
		doc = append(doc, bson.D{
			{Key: "setName", Value: m.setName},
			{Key: "hosts", Value: m.hosts},
			{Key: "me", Value: m.me},
			{Key: "setVersion", Value: m.version},
			{Key: "isWritablePrimary", Value: m.primary},
			{Key: "secondary", Value: !m.primary},
			{Key: "lastWrite", Value: bson.D{{Key: "opTime", Value: optime}, {Key: "majorityOpTime", Value: optime}}},
		}...)
	}
	return bson.Marshal(append(doc, bson.E{Key: "ok", Value: 1}))
}

func (f *fakeSet) observe(e event.Event) {
	f.events = append(f.events, fmt.Sprintf("%dms %s", time.Since(f.start).Milliseconds(), eventText(e)))
}

// watchFake runs a Watcher on a fake set until the test ends.
func watchFake(t *testing.T, f *fakeSet, cfg WatcherConfig) *Watcher {
	t.Helper()
	cfg.Observer = f.observe
	w, err := NewWatcher(cfg, f)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	over := errors.New("the test is over")
	var group sync.WaitGroup
	group.Go(func() {
		if err := w.Run(ctx); !errors.Is(err, over) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() {
		cancel(over)
		group.Wait()
	})
	return w
}

// pass lets time pass and waits until all goroutines are idle.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func describe(v View) []string {
	var lines []string
	for i := range v.Members {
		m := &v.Members[i]
		words := []string{m.Host, m.State.String(), m.Applied.String()}
		for _, word := range []struct {
			text string
			on   bool
		}{{"hidden", m.Hidden}, {"nonvoting", m.NonVoting}, {"stranger", m.Stranger}, {"unasked", !m.Asked}} {
			if word.on {
				words = append(words, word.text)
			}
		}
		line := strings.Join(words, " ")
		if m.Fault != "" {
			line += ": " + m.Fault
		}
		lines = append(lines, line)
	}
	return lines
}

// sorted returns a sorted copy, for events at the same time.
func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func member(id int, host string, more ...bson.E) bson.D {
	return append(bson.D{{Key: "_id", Value: int32(id)}, {Key: "host", Value: host}, {Key: "votes", Value: int32(1)}, {Key: "priority", Value: 1.0}}, more...)
}
