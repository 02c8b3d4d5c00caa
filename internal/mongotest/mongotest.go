package mongotest

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The environment variables that this package reads.
const (
	// EnvMongod names the server binary to run.
	EnvMongod = "MONGOD"
	// EnvDocker, if true in the sense of [strconv.ParseBool], asks for containers.
	EnvDocker = "REPLICATOR_DOCKER"
	// EnvVersions lists the images for Docker, separated by commas: a version
	// such as 5.0 means mongo:5.0, anything with a colon or a slash is an image.
	EnvVersions = "MONGO_VERSIONS"
)

const (
	setName         = "rs0"
	defaultVersions = "5.0,6.0,7.0,8.0"
	defaultOplogMB  = 128

	skipLine = "needs a real MongoDB: set " + EnvMongod + "=/path/to/mongod, or " +
		EnvDocker + "=1 (and " + EnvVersions + "=" + defaultVersions + ") where Docker runs"
	skipMembersLine = "needs several members, which Docker is not used for: set " + EnvMongod + "=/path/to/mongod"

	// A container's time includes pulling its image.
	processStart   = 90 * time.Second
	containerStart = 10 * time.Minute
	disconnectTime = 10 * time.Second
)

// Options describe the replica set that a test wants. The zero value is a set
// of one member.
type Options struct {
	// Members is how many voting members the set has. Zero means 1. Several
	// need a local binary; with Docker the test is skipped.
	Members int
	// OplogMB is the size of each member's oplog in megabytes. Zero means 128.
	OplogMB int
	// Parameters are server parameters by name, set when a member starts.
	Parameters map[string]string
	// Image is the Docker image. Empty means the first of MONGO_VERSIONS. It is
	// ignored with a local binary.
	Image string
}

func (o *Options) setDefaults() {
	if o.Members == 0 {
		o.Members = 1
	}
	if o.OplogMB == 0 {
		o.OplogMB = defaultOplogMB
	}
}

// args returns the command-line arguments that both kinds of server take.
func (o *Options) args() []string {
	args := []string{"--oplogSize", strconv.Itoa(o.OplogMB)}
	names := make([]string, 0, len(o.Parameters))
	for name := range o.Parameters {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		args = append(args, "--setParameter", name+"="+o.Parameters[name])
	}
	return args
}

// ReplicaSet is a running replica set.
type ReplicaSet struct {
	uri     string
	version Version
}

// URI returns a connection string for the whole set, without credentials. With
// Docker it asks for a direct connection, because a container's member knows
// itself by an address that may only mean something inside.
func (rs *ReplicaSet) URI() string { return rs.uri }

// Version returns the version of the server.
func (rs *ReplicaSet) Version() Version { return rs.version }

// Client returns a new client of the set that is disconnected when t ends.
func (rs *ReplicaSet) Client(t testing.TB) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(rs.uri))
	if err != nil {
		t.Fatalf("connect to %s: %v", rs.uri, err)
	}
	t.Cleanup(func() { disconnect(t.Context(), t, client) })
	return client
}

// disconnect works with an ended context as well: the test's own has ended by the
// time its cleanup runs.
func disconnect(ctx context.Context, t testing.TB, client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), disconnectTime)
	defer cancel()
	if err := client.Disconnect(ctx); err != nil {
		t.Logf("disconnect a client: %v", err)
	}
}

// Start starts a replica set that ends with t. It skips t where the environment
// names no server, and fails it where the named one cannot be started.
func Start(t testing.TB, opts Options) *ReplicaSet {
	t.Helper()
	opts.setDefaults()
	switch provider(t) {
	case none:
	case local:
		bin := os.Getenv(EnvMongod)
		checkBinary(t, bin)
		return startProcesses(t, bin, opts)
	case docker:
		if opts.Members > 1 {
			t.Skip(skipMembersLine)
		}
		if opts.Image == "" {
			opts.Image = images(os.Getenv(EnvVersions))[0]
		}
		return startContainer(t, opts)
	}
	t.Skip(skipLine)
	return nil
}

// Versions calls run in a subtest for each server version at hand, with a new
// replica set: one for each image of MONGO_VERSIONS, or the one local binary.
// Like [Start] it skips or fails t.
func Versions(t *testing.T, opts Options, run func(t *testing.T, rs *ReplicaSet)) {
	t.Helper()
	switch provider(t) {
	case local:
		name := checkBinary(t, os.Getenv(EnvMongod))
		t.Run(name, func(t *testing.T) { run(t, Start(t, opts)) })
	case docker:
		for _, image := range images(os.Getenv(EnvVersions)) {
			t.Run(image, func(t *testing.T) {
				opts := opts
				opts.Image = image
				run(t, Start(t, opts))
			})
		}
	default:
		t.Skip(skipLine)
	}
}

type source int

const (
	none source = iota
	local
	docker
)

// provider decides by the environment where servers come from.
func provider(t testing.TB) source {
	t.Helper()
	if os.Getenv(EnvMongod) != "" {
		return local
	}
	value := os.Getenv(EnvDocker)
	if value == "" {
		return none
	}
	on, err := strconv.ParseBool(value)
	if err != nil {
		t.Fatalf("read %s: %q is neither true nor false", EnvDocker, value)
	}
	if on {
		return docker
	}
	return none
}

// images turns a list of versions into images, at least one.
func images(versions string) []string {
	var list []string
	for version := range strings.SplitSeq(versions, ",") {
		version = strings.TrimSpace(version)
		switch {
		case version == "":
		case strings.ContainsAny(version, ":/"):
			list = append(list, version)
		default:
			list = append(list, "mongo:"+version)
		}
	}
	if len(list) == 0 {
		return images(defaultVersions)
	}
	return list
}
