package mongotest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// probe is a test whose end is checked. What the code under test asks of the
// real test (a folder, a cleanup) it gets, at the end of the probe.
type probe struct {
	*testing.T
	mu       sync.Mutex
	cleanups []func()
	log      strings.Builder // guarded by mu
	failed   bool            // guarded by mu
	skipped  bool            // guarded by mu
}

// run calls f as the body of a test and returns how that ended.
func run(t *testing.T, f func(t testing.TB)) *probe {
	t.Helper()
	p := &probe{T: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, cleanup := range slices.Backward(p.cleanups) {
				cleanup()
			}
		}()
		f(p)
	}()
	<-done
	return p
}

func (p *probe) Cleanup(f func()) { p.cleanups = append(p.cleanups, f) }

func (p *probe) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.log, format+"\n", args...)
}

func (p *probe) Logf(format string, args ...any) { p.say(format, args...) }

func (p *probe) Errorf(format string, args ...any) {
	p.say(format, args...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = true
}

func (p *probe) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

func (p *probe) Skip(args ...any) {
	p.say("%s", fmt.Sprint(args...))
	p.skipped = true
	runtime.Goexit()
}

func (p *probe) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// with sets the environment that decides where servers come from.
func with(t *testing.T, mongod, docker string) {
	t.Setenv(EnvMongod, mongod)
	t.Setenv(EnvDocker, docker)
	t.Setenv(EnvVersions, "")
}

// withFake makes this test binary the server.
func withFake(t *testing.T, mode string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	with(t, self, "")
	t.Setenv(envFake, mode)
	t.Setenv("MONGOTEST_FAKE_DIR", t.TempDir())
}

func TestSkipsWithOneLineThatSaysWhatToSet(t *testing.T) {
	for _, off := range []string{"", "0", "false"} {
		with(t, "", off)
		p := run(t, func(t testing.TB) { Start(t, Options{}) })
		if !p.skipped || p.failed {
			t.Fatalf("with %s=%q: skipped %v, failed %v", EnvDocker, off, p.skipped, p.failed)
		}
		line := strings.TrimSuffix(p.log.String(), "\n")
		if strings.Contains(line, "\n") || !strings.Contains(line, EnvMongod+"=/") || !strings.Contains(line, EnvDocker+"=1") {
			t.Errorf("skipped with %q", line)
		}
	}
}

func TestVersionsSkips(t *testing.T) {
	with(t, "", "")
	var inner *testing.T
	t.Run("inner", func(t *testing.T) {
		inner = t
		Versions(t, Options{}, func(t *testing.T, _ *ReplicaSet) { t.Error("ran without a server") })
	})
	if !inner.Skipped() {
		t.Error("not skipped")
	}
}

func TestWhatIsSetButDoesNotWorkFails(t *testing.T) {
	script := filepath.Join(t.TempDir(), "mongod")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho broken >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ mongod, docker, says string }{
		"missing":       {mongod: script + "-none", says: "no such file"},
		"broken":        {mongod: script, says: "exit status 3\nbroken"},
		"a switch":      {docker: "maybe", says: `"maybe" is neither true nor false`},
		"both":          {mongod: script, docker: "1", says: "exit status 3"},
		"not a program": {mongod: filepath.Dir(script), says: "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, c.mongod, c.docker)
			p := run(t, func(t testing.TB) { Start(t, Options{}) })
			if !p.failed || p.skipped || !strings.Contains(p.log.String(), c.says) {
				t.Errorf("failed %v, skipped %v, said:\n%s", p.failed, p.skipped, p.log.String())
			}
		})
	}
}

func TestDockerThatDoesNotWorkFails(t *testing.T) {
	with(t, "", "1")
	// No engine is there, and if one is found all the same, it cannot get the
	// image.
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	const image = "127.0.0.1:1/none:none"
	p := run(t, func(t testing.TB) { Start(t, Options{Image: image}) })
	if !p.failed || p.skipped || !strings.Contains(p.log.String(), image) {
		t.Errorf("failed %v, skipped %v, said:\n%s", p.failed, p.skipped, p.log.String())
	}
}

func TestProcesses(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(strconv.Itoa(members), func(t *testing.T) {
			withFake(t, fakeGood)
			var hosts []string
			p := run(t, func(t testing.TB) {
				rs := Start(t, Options{Members: members})
				if diff := cmp.Diff(Version{5, 0, 7}, rs.Version()); diff != "" {
					t.Errorf("version: %s", diff)
				}
				hosts = options.Client().ApplyURI(rs.URI()).Hosts
				if len(hosts) != members {
					t.Errorf("URI %s has %d hosts", rs.URI(), len(hosts))
				}
				if err := rs.Client(t).Ping(t.Context(), nil); err != nil {
					t.Errorf("ping: %v", err)
				}
			})
			if p.failed {
				t.Error(p.log.String())
			}
			for _, host := range hosts {
				if conn, err := net.Dial("tcp", host); err == nil {
					_ = conn.Close()
					t.Errorf("the server at %s outlives its test", host)
				}
			}
		})
	}
}

func TestHurtProcesses(t *testing.T) {
	withFake(t, fakeGood)
	p := run(t, func(t testing.TB) {
		rs := Start(t, Options{Members: 3})
		ctx := t.Context()
		try := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		want := func(primary int) {
			t.Helper()
			got, err := rs.Primary(ctx)
			try("look for the primary", err)
			if got != primary {
				t.Errorf("member %d is primary, want %d", got, primary)
			}
		}
		want(0)
		try("step down", rs.StepDown(ctx))
		want(1)
		for range 2 {
			try("kill", rs.Kill(ctx, 2))
			if conn, err := net.Dial("tcp", rs.Members()[2]); err == nil {
				_ = conn.Close()
				t.Errorf("the server at %s outlives a kill", rs.Members()[2])
			}
			if err := rs.Kill(ctx, 2); err == nil || !strings.Contains(err.Error(), "signal: killed") {
				t.Errorf("killed twice: %v", err)
			}
			try("start", rs.Start(ctx, 2))
			if err := rs.Start(ctx, 2); err == nil {
				t.Error("started twice")
			}
			try("wait", rs.AwaitReady(ctx))
		}
		if reply, err := rs.helloOf(ctx, rs.Members()[2]); err != nil || reply.SetName != defaultSetName {
			t.Errorf("the server has forgotten its set: %+v, %v", reply, err)
		}
		try("freeze", rs.Freeze(ctx, 0))
		// The signal is sent, and not yet taken by all of its threads: it may answer once
		// more, but not for long.
		for tries, answers := 0, true; answers; tries++ {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			reply, err := rs.helloOf(short, rs.Members()[0])
			cancel()
			if answers = err == nil; answers && tries == 100 {
				t.Fatalf("a frozen server answers: %+v", reply)
			}
		}
		try("thaw", rs.Thaw(ctx, 0))
		try("wait", rs.AwaitReady(ctx))
	})
	if p.failed {
		t.Error(p.log.String())
	}
}

func TestVersionsRunsTheBinary(t *testing.T) {
	withFake(t, fakeGood)
	var names []string
	Versions(t, Options{}, func(t *testing.T, rs *ReplicaSet) {
		names = append(names, t.Name(), rs.Version().String())
	})
	if diff := cmp.Diff([]string{t.Name() + "/5.0.7", "5.0.7"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestPortTakenIsTriedAgain(t *testing.T) {
	withFake(t, fakePortTaken)
	p := run(t, func(t testing.TB) { Start(t, Options{}) })
	if p.failed || !strings.Contains(p.log.String(), "trying another") {
		t.Errorf("failed %v, said:\n%s", p.failed, p.log.String())
	}
}

func TestServerThatDoesNotStartFailsWithItsLog(t *testing.T) {
	for mode, want := range map[string][]string{
		fakeDies:    {"exit status 14", "the fake server gives up"},
		fakeStrange: {"no line with", "a program of another kind"},
		fakeRefuses: {"initiate replica set rs0", "refused by the fake", "end of its log"},
	} {
		t.Run(mode, func(t *testing.T) {
			withFake(t, mode)
			p := run(t, func(t testing.TB) { Start(t, Options{}) })
			if !p.failed {
				t.Error("did not fail")
			}
			for _, says := range want {
				if !strings.Contains(p.log.String(), says) {
					t.Errorf("does not say %q:\n%s", says, p.log.String())
				}
			}
		})
	}
}

func TestImages(t *testing.T) {
	for list, want := range map[string][]string{
		"":                       {"mongo:5.0", "mongo:6.0", "mongo:7.0", "mongo:8.0"},
		" , ":                    {"mongo:5.0", "mongo:6.0", "mongo:7.0", "mongo:8.0"},
		"8.0":                    {"mongo:8.0"},
		"5.0, percona/psmdb:7.0": {"mongo:5.0", "percona/psmdb:7.0"},
	} {
		if diff := cmp.Diff(want, images(list)); diff != "" {
			t.Errorf("%q: %s", list, diff)
		}
	}
}

func TestOptionsArgs(t *testing.T) {
	opts := Options{Parameters: map[string]string{"b": "2", "a": "1"}}
	opts.setDefaults()
	want := []string{"--oplogSize", "128", "--setParameter", "a=1", "--setParameter", "b=2"}
	if diff := cmp.Diff(want, opts.args()); diff != "" {
		t.Error(diff)
	}
}

func TestVersionAtLeast(t *testing.T) {
	v := Version{6, 1, 0}
	for c, want := range map[[2]int]bool{{5, 9}: true, {6, 0}: true, {6, 1}: true, {6, 2}: false, {7, 0}: false} {
		if got := v.AtLeast(c[0], c[1]); got != want {
			t.Errorf("%v at least %v: %v", v, c, got)
		}
	}
}

func TestPollSaysWhyAndWhat(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrProcessDone)
	err := poll(ctx, "it works", func(context.Context) error { return os.ErrDeadlineExceeded })
	if err == nil || !strings.Contains(err.Error(), "it works: os: process already finished (last: i/o timeout)") {
		t.Errorf("said %v", err)
	}
}
