package mongod

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/oplogrep/replicator/bench/workload"
)

// startFake starts a set of a fake server.
func startFake(t *testing.T, kind string) (*Set, error) {
	t.Helper()
	return startFakes(t, kind, 0, 20*time.Second)
}

// startFakes starts a set of a number of members, within a time.
func startFakes(t *testing.T, kind string, members int, within time.Duration) (*Set, error) {
	t.Helper()
	t.Setenv(fakeEnv, kind)
	t.Setenv("TMPDIR", t.TempDir())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	set, err := Start(ctx, Config{Binary: self, OplogMB: 64, Members: members})
	if err == nil {
		t.Cleanup(func() { checkClosed(t, set) })
	}
	return set, err
}

// checkClosed closes a set and looks whether anything is left of it.
func checkClosed(t *testing.T, set *Set) {
	t.Helper()
	if err := set.Close(); err != nil {
		t.Error(err)
	}
	for _, p := range set.members {
		if err := p.Signal(syscall.Signal(0)); err == nil {
			t.Errorf("the server at %s runs on", p.Address)
		}
	}
	if _, err := os.Stat(set.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder %s is still there: %v", set.dir, err)
	}
}

// insert writes n documents.
func insert(t *testing.T, n int) func(context.Context, string) error {
	return func(ctx context.Context, uri string) error {
		client, err := mongo.Connect(options.Client().ApplyURI(uri))
		if err != nil {
			return err
		}
		defer func() {
			if err := client.Disconnect(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
			}
		}()
		docs := make([]bson.D, n)
		for i := range docs {
			docs[i] = bson.D{{Key: "_id", Value: i}}
		}
		_, err = client.Database("d").Collection("c").InsertMany(ctx, docs)
		return err
	}
}

func TestCatchUp(t *testing.T) {
	set, err := startFake(t, fakeServer)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(set.URI, "mongodb://127.0.0.1:") || len(set.members) != 1 {
		t.Errorf("%d members at %s", len(set.members), set.URI)
	}
	const documents, ops = 50, 300
	w := workload.Workload{Name: "test", Seed: 1, Documents: documents, Ops: ops}
	before := time.Now()
	way, err := set.CatchUp(t.Context(), w, insert(t, ops))
	if err != nil {
		t.Fatal(err)
	}
	if way.Entries != ops || way.Unseen != perLook {
		t.Errorf("%d entries, want %d; %d before it was seen, want %d", way.Entries, ops, way.Unseen, perLook)
	}
	// It applies a number of entries at each poll, and polls come on a tick.
	if least := ops / perLook / 2 * lookEvery; way.Took < least || way.Took > time.Since(before) {
		t.Errorf("it took %s, want from %s to %s", way.Took, least, time.Since(before))
	}
	if way.Start <= 0 || way.Pause <= 0 || way.Start+way.Pause > time.Since(before) {
		t.Errorf("%+v", way)
	}
	if _, err := set.CatchUp(t.Context(), w, insert(t, ops)); err == nil {
		t.Error("a second secondary was added")
	}
}

// A backlog of nothing has no time.
func TestCatchUpOfNothing(t *testing.T) {
	set, err := startFake(t, fakeServer)
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.CatchUp(t.Context(), workload.Workload{Name: "test", Ops: 1}, func(context.Context, string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("got %v", err)
	}
}

// A server that dies is reported, with its log, without waiting for it.
func TestCatchUpOfTheDead(t *testing.T) {
	set, err := startFake(t, fakeServer)
	if err != nil {
		t.Fatal(err)
	}
	_, err = set.CatchUp(t.Context(), workload.Workload{Name: "test", Ops: 1}, func(ctx context.Context, _ string) error {
		if err := set.members[0].Kill(); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if err == nil || !strings.Contains(err.Error(), "write the backlog: the server at "+set.members[0].Address) ||
		!strings.Contains(err.Error(), "fake mongod starting") {
		t.Errorf("got %v", err)
	}
}

// The error of waiting for a secondary has its position when the time has
// ended.
func TestCatchUpOfTheLazy(t *testing.T) {
	set, err := startFake(t, fakeLazy)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, errors.New("that is enough"))
	defer cancel()
	_, err = set.CatchUp(ctx, workload.Workload{Name: "test", Documents: 10, Ops: 1}, insert(t, 1))
	if err == nil || !strings.Contains(err.Error(), "add a secondary") || !strings.Contains(err.Error(), "that is enough") ||
		!strings.Contains(err.Error(), "it is in state 1") {
		t.Errorf("got %v", err)
	}
}

func TestStartFails(t *testing.T) {
	t.Run("no binary", func(t *testing.T) {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		_, err := Start(t.Context(), Config{Binary: filepath.Join(tmp, "nowhere"), OplogMB: 64})
		if err == nil || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "start the server "+tmp) {
			t.Errorf("got %v", err)
		}
		checkEmpty(t, tmp)
	})
	t.Run("it ends", func(t *testing.T) {
		_, err := startFake(t, fakeEnds)
		if err == nil || !strings.Contains(err.Error(), "exit status 14") || !strings.Contains(err.Error(), "wrong data format") {
			t.Errorf("got %v", err)
		}
		checkEmpty(t, os.TempDir())
	})
	t.Run("the port is taken", func(t *testing.T) {
		set, err := startFake(t, fakeTaken)
		if err != nil {
			t.Fatal(err)
		}
		if len(set.members) != 1 || !strings.HasSuffix(set.members[0].Log, "member0-2.log") {
			t.Errorf("members: %v", set.members)
		}
	})
}

func checkEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		t.Errorf("%s is left", f.Name())
	}
}

func TestArguments(t *testing.T) {
	const always = "--oplogSize 512"
	for cache, want := range map[float64]string{0: always, 2.755: always + " --wiredTigerCacheSizeGB 2.75"} {
		if diff := cmp.Diff(strings.Fields(want), arguments(&Config{OplogMB: 512, CacheGB: cache})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestStartMembers: a set of several is there once all of them have joined it.
func TestStartMembers(t *testing.T) {
	set, err := startFakes(t, fakeServer, 3, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, p := range set.members {
		hosts = append(hosts, p.Address)
	}
	if want := "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=bench"; len(hosts) != 3 || set.URI != want {
		t.Errorf("it is at %s, want %s", set.URI, want)
	}
	if initiated, err := os.ReadFile(filepath.Join(set.dir, "initiated")); err != nil || string(initiated) != "3" {
		t.Errorf("initiated with %s members, %v", initiated, err)
	}
	if _, err := set.CatchUp(t.Context(), workload.Workload{Name: "test", Ops: 1}, insert(t, 1)); err == nil {
		t.Error("a secondary was added to a set that has some")
	}
	// One that does not join is waited for.
	if _, err := startFakes(t, fakeLazy, 2, 2*time.Second); err == nil || !strings.Contains(err.Error(), "it is in state 1") {
		t.Errorf("of lazy members: %v", err)
	}
}

func TestWithSecondary(t *testing.T) {
	config := bson.D{
		{Key: "_id", Value: "bench"},
		{Key: "version", Value: int32(7)},
		{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: int32(0)}}}},
		{Key: "settings", Value: bson.D{{Key: "x", Value: 1}}},
	}
	got, err := withSecondary(config, "b:2")
	if err != nil {
		t.Fatal(err)
	}
	want := bson.D{
		{Key: "_id", Value: "bench"},
		{Key: "version", Value: int32(8)},
		{Key: "members", Value: bson.A{
			bson.D{{Key: "_id", Value: int32(0)}},
			bson.D{
				{Key: "_id", Value: int32(1)},
				{Key: "host", Value: "b:2"},
				{Key: "votes", Value: 0},
				{Key: "priority", Value: 0},
				{Key: "hidden", Value: true},
			},
		}},
		{Key: "settings", Value: bson.D{{Key: "x", Value: 1}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(config[2].Value.(bson.A)) != 1 {
		t.Error("the configuration that was given has changed")
	}
	for _, bad := range []bson.D{nil, config[:2], {{Key: "version", Value: "8"}}, {{Key: "version", Value: int32(1)}, {Key: "members", Value: 1}}} {
		if _, err := withSecondary(bad, "b:2"); err == nil {
			t.Errorf("%v was taken for a configuration", bad)
		}
	}
}

func TestAwait(t *testing.T) {
	n := 0
	err := await(t.Context(), "it is the third look", func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("%v after %d looks", err, n)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause, last := errors.New("given up"), errors.New("not yet")
	err = await(ctx, "pigs fly", func(context.Context) error { n++; cancel(cause); return last })
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "wait until pigs fly") {
		t.Errorf("got %v", err)
	}
}
