package mongotest

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/mongodb"

	"github.com/oplogrep/replicator/internal/testkit/launch"
)

// startContainer starts a set of one member in a container.
func startContainer(t testing.TB, opts Options) *ReplicaSet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), containerStart)
	defer cancel()

	container, err := runImage(ctx, opts)
	if container != nil {
		testcontainers.CleanupContainer(t, container)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("server in %s, end of its log:\n%s", opts.Image, containerTail(t, container))
			}
		})
	}
	if err != nil {
		t.Fatalf("start a container of %s (%s is set): %v", opts.Image, EnvDocker, err)
	}
	endpoint, err := container.PortEndpoint(ctx, "27017/tcp", "")
	if err != nil {
		t.Fatalf("find the port of the container of %s: %v", opts.Image, err)
	}
	rs := &ReplicaSet{opts: opts, address: strings.TrimPrefix(direct(endpoint), "mongodb://")}
	if rs.version, err = waitReady(ctx, rs.URI(), opts.SetName, 1); err != nil {
		t.Fatalf("start a replica set of %s at %s: %v", opts.Image, endpoint, err)
	}
	return rs
}

// runImage starts the container and initiates the set. Where it fails there may
// be a container nevertheless.
func runImage(ctx context.Context, opts Options) (c *mongodb.MongoDBContainer, err error) {
	// Testcontainers panics where it finds no Docker engine at all.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("look for a Docker engine: %v", r)
		}
	}()
	return mongodb.Run(ctx, opts.Image,
		mongodb.WithReplicaSet(opts.SetName),
		testcontainers.WithCmdArgs(opts.args()...),
	)
}

// containerTail returns the last lines of a container's log, or why there are
// none.
func containerTail(t testing.TB, c testcontainers.Container) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), disconnectTime)
	defer cancel()
	logs, err := c.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = logs.Close() }()
	all, err := io.ReadAll(logs)
	if err != nil {
		return err.Error()
	}
	return launch.LastLines(all)
}
