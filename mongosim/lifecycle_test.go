package mongosim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// goroutines are the stacks of those that run code of the embedded set, but for the
// caller's.
func goroutines() []string {
	buf := make([]byte, 4<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var ours []string
	for _, s := range stacks[1:] {
		if strings.Contains(s, "replicator/mongosim") && !strings.Contains(s, "testing.tRunner(") && !strings.Contains(s, "testing.(*T).Run") {
			ours = append(ours, s)
		}
	}
	return ours
}

// TestClose is not parallel: it looks at all goroutines.
func TestClose(t *testing.T) {
	ctx := within(t)
	if left := goroutines(); len(left) > 0 {
		t.Fatalf("before the test:\n%s", strings.Join(left, "\n\n"))
	}
	s := must[*Set](t)(Start(ctx, Options{Members: 3, Seed: 1, Users: []User{{Name: "a", Password: "b"}}, Keyfile: "keyfile", JournalDelay: time.Millisecond}))
	hosts := make([]string, 0, 3)
	for _, m := range s.Members() {
		hosts = append(hosts, m.Host())
	}
	// Clients in the middle of something: idle, waiting for the oplog, frozen out.
	idle := dial(t, s.Member(0))
	idle.run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
	waiting := dial(t, s.Member(1))
	hello := waiting.run(ctx, "admin", bson.D{{Key: "hello", Value: 1}})
	ended := make(chan error, 1)
	go func() {
		for version := hello.Lookup("topologyVersion"); ; { // a change of the set answers it before
			reply, err := waiting.call(ctx, "admin", bson.D{
				{Key: "hello", Value: 1}, {Key: "topologyVersion", Value: version}, {Key: "maxAwaitTimeMS", Value: int64(600_000)},
			})
			if err != nil {
				ended <- err
				return
			}
			version = reply.Lookup("topologyVersion")
		}
	}()
	s.Member(2).Freeze()
	s.Cut(0, 1)
	start := time.Now()
	s.Close()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Close took %s", d)
	}
	for _, host := range hosts {
		conn, err := net.DialTimeout("tcp", host, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect to %s after Close: %v, want it refused", host, err)
		}
	}
	s.Close()
	// Whether the last message still gets through is a race.
	if err := <-ended; !broken(err) && !errors.Is(err, servererr.New(servererr.InterruptedAtShutdown, "")) {
		t.Errorf("a waiting client: %v, want a broken connection or InterruptedAtShutdown", err)
	}
	leavesNothing(ctx, t, "Close")
	if err := s.Member(0).Start(); !errors.Is(err, ErrClosed) {
		t.Errorf("start a member of a closed set: %v", err)
	}
	if _, err := s.AwaitPrimary(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("wait for a primary of a closed set: %v", err)
	}
	if _, err := s.AddMember(ctx, MemberOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("add a member to a closed set: %v", err)
	}
	// Neither does a set that does not start leave anything.
	cancelled, stop := context.WithCancelCause(ctx)
	stop(nil)
	if _, err := Start(cancelled, Options{Members: 3}); err == nil {
		t.Error("a set started within a context that is done")
	}
	leavesNothing(ctx, t, "a start that failed")
}

// leavesNothing waits for the goroutines of a set to end.
func leavesNothing(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	left := goroutines()
	for ; len(left) > 0 && ctx.Err() == nil; left = goroutines() {
		runtime.Gosched()
	}
	if len(left) > 0 {
		t.Errorf("after %s:\n%s", what, strings.Join(left, "\n\n"))
	}
}

// TestDown: a member that is down refuses connections, and gets its port back.
func TestDown(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 1, Seed: 1})
	m := s.Member(0)
	c := dial(t, m)
	succeed(t, c.insert(ctx, 1, majority))
	for range 3 {
		process := view(t, m).ProcessID
		succeed(t, m.Kill())
		if _, err := c.call(ctx, "admin", ping); !broken(err) {
			t.Errorf("a client of a killed member: %v, want a broken connection", err)
		}
		if _, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.Host()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect to a killed member: %v, want it refused", err)
		}
		if _, err := m.Call(ctx, body("admin", ping)); !errors.Is(err, ErrDown) {
			t.Errorf("call a killed member: %v", err)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := s.StepDown(short); !errors.Is(err, ErrNoPrimary) {
			t.Errorf("step down without a primary: %v", err)
		}
		cancel()
		// Nobody else is given its port meanwhile.
		for range 50 {
			l := must[net.Listener](t)((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
			if l.Addr().String() == m.Host() {
				t.Error("the port of a member that is down was given away")
			}
			succeed(t, l.Close())
		}
		succeed(t, m.Start())
		must[*Member](t)(s.AwaitPrimary(ctx))
		// Drivers take what another process says for newer, whatever its counter.
		if now := view(t, m).ProcessID; now == process {
			t.Errorf("the restarted member calls itself process %s again", now.Hex())
		}
		c = dial(t, m)
		c.run(ctx, "admin", ping)
	}
	if n := len(dump(t, m, "app", "c")); n != 1 {
		t.Errorf("%d documents after restarts, want 1", n)
	}
}

// TestManySets has several sets at once in one process, with the same seed and the
// same name, that know nothing of each other.
func TestManySets(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	var sets []*Set
	for range 4 {
		sets = append(sets, quick(t, Options{Members: 3, Seed: 7, ElectionTimeout: 5 * time.Second}))
	}
	for i, s := range sets {
		succeed(t, dial(t, s.Primary()).insert(ctx, i, majority))
	}
	sets[0].HealAll()
	succeed(t, sets[1].Primary().Kill())
	sets[2].Primary().Freeze()
	for i, s := range sets {
		p := must[*Member](t)(s.AwaitPrimary(ctx))
		if i == 2 { // a frozen member does not know yet of another election
			continue
		}
		for j, m := range view(t, p).Members {
			if m.Host != s.Member(j).Host() {
				t.Errorf("set %d knows of %s", i, m.Host)
			}
		}
		if got := ids(dump(t, p, "app", "c")); len(got) != 1 || got[0] != fmt.Sprintf(`{"$numberInt":"%d"}`, i) {
			t.Errorf("set %d has %s", i, got)
		}
	}
}

// TestSeed runs one script twice: all identifiers that the set makes are the same,
// those of collections and index builds, of the set, and of initial syncs. Another
// seed gives others.
func TestSeed(t *testing.T) {
	t.Parallel()
	first := script(t, 5)
	if diff := cmp.Diff(first, script(t, 5)); diff != "" {
		t.Errorf("two runs of seed 5: %s", diff)
	}
	if diff := cmp.Diff(first, script(t, 6)); diff == "" {
		t.Error("seed 6 gives the identifiers of seed 5")
	}
}

// script does a few things to a set and returns all its identifiers.
func script(t *testing.T, seed int64) []string {
	t.Helper()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: seed})
	defer s.Close()
	p := s.Primary()
	fill(t, p, 20)
	c := dial(t, p)
	c.run(ctx, "app", bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	c.run(ctx, "admin", bson.D{{Key: "renameCollection", Value: "app.c"}, {Key: "to", Value: "other.c"}})
	succeed(t, s.AwaitSynced(ctx))
	return identifiers(t, s)
}

// identifiers are those of a set that do not depend on time.
func identifiers(t *testing.T, s *Set) []string {
	t.Helper()
	var list []string
	for _, raw := range s.Primary().Oplog(bson.Timestamp{}) {
		for _, path := range [][]string{{"ui"}, {"o", "indexBuildUUID"}} {
			if v, err := raw.LookupErr(path...); err == nil {
				list = append(list, fmt.Sprintf("%s of %s: %s", path[len(path)-1], raw.Lookup("ns"), v))
			}
		}
	}
	for _, m := range s.Members() {
		list = append(list, "initial sync "+syncID(t, m))
		list = append(list, "set "+view(t, m).ReplicaSetID.Hex(), "process "+view(t, m).ProcessID.Hex())
	}
	return list
}
