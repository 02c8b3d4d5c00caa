package mongotest

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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
	defaultSetName  = "rs0"
	defaultVersions = "5.0,6.0,7.0,8.0"
	defaultOplogMB  = 128

	skipLine = "needs a real MongoDB: set " + EnvMongod + "=/path/to/mongod, or " +
		EnvDocker + "=1 (and " + EnvVersions + "=" + defaultVersions + ") where Docker runs"
	skipNetworkLine = "needs several members, whose containers have to share this machine's network, which only Linux lets them: set " +
		EnvMongod + "=/path/to/mongod"

	// A container's time includes pulling its image.
	processStart   = 90 * time.Second
	containerStart = 10 * time.Minute
	disconnectTime = 10 * time.Second
)

// Options describe the replica set that a test wants. The zero value is a set
// of one member without access control.
type Options struct {
	// SetName is the set's name. Empty means rs0.
	SetName string
	// Members is how many voting members the set has. Zero means 1.
	Members int
	// OplogMB is the size of each member's oplog in megabytes. Zero means 128.
	OplogMB int
	// ElectionTimeout is the set's electionTimeoutMillis. Zero leaves it to the
	// server, which has 10 s.
	ElectionTimeout time.Duration
	// Users switch access control on. The members know each other by a keyfile.
	Users []User
	// Parameters are server parameters by name, set when a member starts.
	Parameters map[string]string
	// Image is the Docker image. Empty means the first of MONGO_VERSIONS. It is
	// ignored with a local binary.
	Image string
}

// User is a user of the database admin, with roles of that database.
type User struct {
	Name, Password string
	Roles          []string
}

func (o *Options) setDefaults() {
	if o.SetName == "" {
		o.SetName = defaultSetName
	}
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
		if opts.Image == "" {
			opts.Image = images(os.Getenv(EnvVersions))[0]
		}
		if opts.Members == 1 && len(opts.Users) == 0 {
			return startContainer(t, opts)
		}
		if runtime.GOOS != "linux" {
			t.Skip(skipNetworkLine)
		}
		return startContainers(t, opts)
	}
	t.Skip(skipLine)
	return nil
}

// Versions calls run in a subtest for each server version that is available, with a new
// replica set: one for each image of MONGO_VERSIONS, or the one local binary.
// Like [Start] it skips or fails t.
func Versions(t *testing.T, opts Options, run func(t *testing.T, rs *ReplicaSet)) {
	t.Helper()
	EachVersion(t, opts, func(t *testing.T, opts Options) { run(t, Start(t, opts)) })
}

// EachVersion is Versions for tests that start sets themselves, with the options
// that they are given, or others with the same Image.
func EachVersion(t *testing.T, opts Options, run func(t *testing.T, opts Options)) {
	t.Helper()
	switch provider(t) {
	case local:
		name := checkBinary(t, os.Getenv(EnvMongod))
		t.Run(name, func(t *testing.T) { run(t, opts) })
	case docker:
		for _, image := range images(os.Getenv(EnvVersions)) {
			t.Run(image, func(t *testing.T) {
				opts := opts
				opts.Image = image
				run(t, opts)
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
