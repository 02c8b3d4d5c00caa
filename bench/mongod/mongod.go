package mongod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/launch"
	"github.com/oplogrep/replicator/oplog"
)

const (
	setName = "bench"
	// startTime is how long a server may take to start.
	startTime = 90 * time.Second
)

// Config describes a set.
type Config struct {
	// Binary is the server's.
	Binary string
	// Members is how many members the set has, all with a vote; zero means one.
	Members int
	// OplogMB is the size of each member's oplog.
	OplogMB int
	// CacheGB is that of each member's storage engine; zero means the server's default.
	CacheGB float64
}

// Set is a real replica set on loopback. It is for one goroutine.
type Set struct {
	// URI has all members.
	URI string

	cfg     Config
	dir     string
	members []*launch.Process
}

// errStart is the cause of an abandoned start.
var errStart = errors.New("it took too long to start")

// Start starts a set in a folder of its own, which Close removes, and returns once all
// members have joined it. The error of a server that ended has the end of its log.
func Start(ctx context.Context, cfg Config) (*Set, error) {
	dir, err := os.MkdirTemp("", "replicator-mongod-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the server's data: %w", err)
	}
	cfg.Members = max(cfg.Members, 1)
	s := &Set{cfg: cfg, dir: dir}
	if err := s.form(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// form starts the members and makes a set of them.
func (s *Set) form(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStart)
	defer cancel()
	var members bson.A
	var hosts []string
	for i := range s.cfg.Members {
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		member := bson.D{{Key: "_id", Value: i}, {Key: "host", Value: p.Address}}
		if i > 0 { // so that the first one stays the primary
			member = append(member, bson.E{Key: "priority", Value: 0})
		}
		members, hosts = append(members, member), append(hosts, p.Address)
	}
	ctx, release := launch.Living(ctx, s.members...)
	defer release()
	srv, err := connect(hosts[0])
	if err != nil {
		return err
	}
	defer srv.close(ctx)
	config := bson.D{{Key: "_id", Value: setName}, {Key: "members", Value: members}}
	if err := srv.run(ctx, bson.D{{Key: "replSetInitiate", Value: config}}, nil); err != nil {
		return err
	}
	if err := srv.writable(ctx); err != nil {
		return err
	}
	now, err := srv.status(ctx)
	if err != nil {
		return err
	}
	for _, host := range hosts[1:] {
		if err := synced(ctx, host, now.Applied); err != nil {
			return err
		}
	}
	s.URI = "mongodb://" + strings.Join(hosts, ",") + "/?replicaSet=" + setName
	return nil
}

// synced returns once the server at an address is a secondary that has an entry.
func synced(ctx context.Context, address string, entry oplog.OpTime) error {
	srv, err := connect(address)
	if err != nil {
		return err
	}
	defer srv.close(ctx)
	return srv.reaches(ctx, entry)
}

// begin starts another member, and returns once it answers.
func (s *Set) begin(ctx context.Context) (*launch.Process, error) {
	p, err := launch.Begin(ctx, launch.Config{
		Binary: s.cfg.Binary, Dir: s.dir, Name: fmt.Sprintf("member%d", len(s.members)), SetName: setName, Args: arguments(&s.cfg),
	}, answers)
	if err == nil {
		s.members = append(s.members, p)
	}
	return p, err
}

// arguments are the arguments of a server, without those of every process.
func arguments(cfg *Config) []string {
	args := []string{"--oplogSize", strconv.Itoa(cfg.OplogMB)}
	if cfg.CacheGB > 0 {
		args = append(args, "--wiredTigerCacheSizeGB", strconv.FormatFloat(cfg.CacheGB, 'f', 2, 64))
	}
	return args
}

// answers returns once the server at an address does.
func answers(ctx context.Context, address string) error {
	if err := listens(ctx, address); err != nil {
		return err
	}
	srv, err := connect(address)
	if err != nil {
		return err
	}
	defer srv.close(ctx)
	return await(ctx, "the server at "+address+" answers", func(ctx context.Context) error {
		return srv.run(ctx, bson.D{{Key: "ping", Value: 1}}, nil)
	})
}

// Close ends all of its processes and removes their folder.
func (s *Set) Close() error {
	var faults []error
	for _, p := range s.members {
		faults = append(faults, p.Kill())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		faults = append(faults, fmt.Errorf("remove the servers' folder: %w", err))
	}
	return errors.Join(faults...)
}
