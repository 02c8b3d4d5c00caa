package mongotest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"

	"github.com/oplogrep/replicator/internal/testkit/launch"
)

// inContainer is what a member's container runs, with the server's arguments. The
// server is not the container's first process: that one ignores the signals used
// for faults.
const inContainer = `
if [ -n "$KEYFILE_TEXT" ]; then
  rm -f /tmp/keyfile
  printf %s "$KEYFILE_TEXT" >/tmp/keyfile
  chmod 400 /tmp/keyfile
  set -- "$@" --keyFile /tmp/keyfile
fi
mongod "$@" &
echo $! >/tmp/mongod.pid
wait $!
`

// boxed is one member in a container of its own, which shares this machine's
// network: so the members, and clients, all know it by the same address.
type boxed struct {
	container testcontainers.Container
	address   string
}

// startContainers starts a set with a container for each member.
func startContainers(t testing.TB, opts Options) *ReplicaSet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), containerStart)
	defer cancel()
	rs := &ReplicaSet{opts: opts}
	for range opts.Members {
		rs.members = append(rs.members, startBoxed(ctx, t, &opts))
	}
	for _, host := range rs.Members() {
		if err := waitAnswering(ctx, t, host); err != nil {
			t.Fatalf("start %s at %s, in the network of this machine: %v", opts.Image, host, err)
		}
	}
	if err := rs.form(ctx); err != nil {
		t.Fatalf("start a replica set of %s at %s: %v", opts.Image, strings.Join(rs.Members(), ","), err)
	}
	return rs
}

// startBoxed starts a container, which is removed when t ends.
func startBoxed(ctx context.Context, t testing.TB, opts *Options) *boxed {
	t.Helper()
	port, err := launch.FreePort(ctx)
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	b := &boxed{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	args := append([]string{
		"--replSet", opts.SetName, "--bind_ip", "127.0.0.1", "--port", strconv.Itoa(port), "--dbpath", "/data/db",
		"--nounixsocket", "--wiredTigerCacheSizeGB", "0.25",
	}, opts.args()...)
	env := map[string]string{}
	if len(opts.Users) > 0 {
		env["KEYFILE_TEXT"] = keyfileText
	}
	container, err := runBoxed(ctx, opts.Image, args, env)
	if container != nil {
		b.container = container
		testcontainers.CleanupContainer(t, container, testcontainers.StopTimeout(0))
		t.Cleanup(func() { //nolint:contextcheck // that of the test has ended by then
			if t.Failed() {
				t.Logf("server in %s at %s, end of its log:\n%s", opts.Image, b.address, containerTail(t, container))
			}
		})
	}
	if err != nil {
		t.Fatalf("start a container of %s (%s is set): %v", opts.Image, EnvDocker, err)
	}
	return b
}

func runBoxed(ctx context.Context, image string, args []string, env map[string]string) (c testcontainers.Container, err error) {
	// Testcontainers panics where it finds no Docker engine at all.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("look for a Docker engine: %v", r)
		}
	}()
	made, err := testcontainers.Run(ctx, image,
		testcontainers.WithEntrypoint("/bin/sh", "-c", inContainer, "sh"),
		testcontainers.WithCmd(args...),
		testcontainers.WithEnv(env),
		testcontainers.CustomizeRequestOption(func(req *testcontainers.GenericContainerRequest) error {
			req.NetworkMode = "host"
			return nil
		}),
	)
	if made == nil {
		return nil, err // not an interface that holds nil
	}
	return made, err
}

func (b *boxed) host() string { return b.address }

// start implements server.
func (b *boxed) start(ctx context.Context) error { return b.container.Start(ctx) }

// signal implements server.
func (b *boxed) signal(ctx context.Context, s signal) error {
	code, out, err := b.container.Exec(ctx, []string{"/bin/sh", "-c", "kill -" + string(s) + " $(cat /tmp/mongod.pid)"})
	if err != nil {
		// The container may be gone before it could say that the signal was sent.
		if s != kill || b.ended(ctx) != nil {
			return err
		}
		return nil
	}
	if code != 0 && s != kill {
		said, _ := io.ReadAll(out)
		return fmt.Errorf("exit status %d: %s", code, said)
	}
	if s != kill {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	return poll(ctx, "the container has ended", b.ended)
}

// endsWithin is how long a container may take to notice that its server is gone.
const endsWithin = 30 * time.Second

// ended returns nil if the container does not run.
func (b *boxed) ended(ctx context.Context) error {
	state, err := b.container.State(ctx)
	if err != nil {
		return err
	}
	if state.Running {
		return errors.New("it is running")
	}
	return nil
}
