package mongod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/workload"
)

// Env names the server binary.
const Env = "MONGOD"

const setName = "bench"

// Set is a real replica set on loopback, of one member and later a second one. It is
// for one goroutine.
type Set struct {
	URI, Version string

	binary, dir string
	oplogMB     int
	members     []*process
}

// errStart is the cause of a start that is given up.
var errStart = errors.New("it took too long to start")

// Start starts a set of one member in a folder of its own, which Close removes. The
// error of a server that ended has the end of its log.
func Start(ctx context.Context, binary string, oplogMB int) (*Set, error) {
	dir, err := os.MkdirTemp("", "replicator-mongod-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the server's data: %w", err)
	}
	s := &Set{binary: binary, dir: dir, oplogMB: oplogMB}
	if err := s.form(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// form starts the first member and makes a set of it.
func (s *Set) form(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStart)
	defer cancel()
	first, err := s.begin(ctx)
	if err != nil {
		return err
	}
	srv, err := connect(first.address)
	if err != nil {
		return err
	}
	defer srv.close(ctx)
	ctx, release := first.living(ctx)
	defer release()
	config := bson.D{
		{Key: "_id", Value: setName},
		{Key: "members", Value: bson.A{bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: first.address}}}},
	}
	if err := srv.run(ctx, bson.D{{Key: "replSetInitiate", Value: config}}, nil); err != nil {
		return err
	}
	if err := srv.writable(ctx); err != nil {
		return err
	}
	var info struct {
		Version string `bson:"version"`
	}
	if err := srv.run(ctx, bson.D{{Key: "buildInfo", Value: 1}}, &info); err != nil {
		return err
	}
	s.URI, s.Version = "mongodb://"+first.address+"/?replicaSet="+setName, info.Version
	return nil
}

// begin starts another member, and returns once it answers.
func (s *Set) begin(ctx context.Context) (*process, error) {
	for attempt := 1; ; attempt++ {
		p, err := newProcess(ctx, s.binary, s.dir, fmt.Sprintf("member%d-%d", len(s.members), attempt), s.oplogMB)
		if err != nil {
			return nil, err
		}
		if err := p.start(ctx); err != nil {
			return nil, err
		}
		if err = p.answers(ctx); err == nil {
			s.members = append(s.members, p)
			return p, nil
		}
		ended := p.alive.Err() != nil
		if killed := p.kill(); killed != nil {
			err = errors.Join(err, killed)
		}
		// Between finding a port free and the server's taking it, somebody else may.
		if !ended || attempt == portAttempts || !strings.Contains(strings.ToLower(logTail(p.log)), portTaken) {
			return nil, err
		}
	}
}

// answers returns once the server does, or has ended.
func (p *process) answers(ctx context.Context) error {
	ctx, release := p.living(ctx)
	defer release()
	if err := listens(ctx, p.address); err != nil {
		return err
	}
	srv, err := connect(p.address)
	if err != nil {
		return err
	}
	defer srv.close(ctx)
	return await(ctx, "the server at "+p.address+" answers", func(ctx context.Context) error {
		return srv.run(ctx, bson.D{{Key: "ping", Value: 1}}, nil)
	})
}

// Close ends all of its processes and removes their folder.
func (s *Set) Close() error {
	var faults []error
	for _, p := range s.members {
		faults = append(faults, p.kill())
	}
	if err := os.RemoveAll(s.dir); err != nil {
		faults = append(faults, fmt.Errorf("remove the servers' folder: %w", err))
	}
	return errors.Join(faults...)
}

// CatchUp times a real secondary: what the workload begins with is written, a second
// member is added and syncs; it is stopped while write makes a backlog; then it is
// started, and the time is measured from the first entries that it is seen to have
// applied to the last, and taken for all of them in proportion.
// Entries is how many there are behind each other in the log, without no-ops: fewer
// than operations where the server puts several into one. It is for one call.
func (s *Set) CatchUp(ctx context.Context, w workload.Workload, write func(ctx context.Context, uri string) error) (took time.Duration, entries int64, err error) {
	if len(s.members) != 1 {
		return 0, 0, errors.New("time a secondary: the set has had one before")
	}
	primary, err := connect(s.members[0].address)
	if err != nil {
		return 0, 0, err
	}
	defer primary.close(ctx)
	ctx, release := s.members[0].living(ctx)
	defer release()
	if err := s.fill(ctx, w); err != nil {
		return 0, 0, err
	}
	second, err := s.join(ctx, primary)
	if err != nil {
		return 0, 0, fmt.Errorf("add a secondary: %w", err)
	}
	if err := second.stop(ctx); err != nil {
		return 0, 0, err
	}
	before, err := primary.status(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := write(ctx, s.URI); err != nil {
		return 0, 0, fmt.Errorf("write the backlog: %w", err)
	}
	last, err := primary.status(ctx)
	if err != nil {
		return 0, 0, err
	}
	if entries, err = primary.entries(ctx, before.Applied, last.Applied); err != nil {
		return 0, 0, err
	}
	if entries == 0 {
		return 0, 0, errors.New("time a secondary: nothing was written")
	}
	if err := second.start(ctx); err != nil {
		return 0, 0, err
	}
	ctx, dead := second.living(ctx)
	defer dead()
	if err := listens(ctx, second.address); err != nil {
		return 0, 0, err
	}
	srv, err := connect(second.address)
	if err != nil {
		return 0, 0, err
	}
	defer srv.close(ctx)
	took, first, err := between(ctx, srv.status, before.Applied, last.Applied)
	if err != nil {
		return 0, 0, err
	}
	rest, err := primary.entries(ctx, first, last.Applied)
	if err == nil && rest == 0 {
		err = errAtOnce
	}
	if err != nil {
		return 0, 0, err
	}
	// What it had applied when it was first seen is as fast as what came then.
	return time.Duration(float64(took) * float64(entries) / float64(rest)), entries, nil
}

// fill writes what the workload begins with.
func (s *Set) fill(ctx context.Context, w workload.Workload) error {
	gen, err := workload.New(w)
	if err != nil {
		return err
	}
	collections, err := gen.Collections()
	if err != nil {
		return err
	}
	end, err := ends.Open(ctx, s.URI)
	if err != nil {
		return err
	}
	defer end.Close()
	return end.Fill(ctx, collections)
}

// join starts a second member, adds it to the set and waits until it has synced. It
// has no vote, so that the primary can do without it.
func (s *Set) join(ctx context.Context, primary *server) (*process, error) {
	starting, cancel := context.WithTimeoutCause(ctx, startTime, errStart)
	defer cancel()
	second, err := s.begin(starting)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Config bson.D `bson:"config"`
	}
	if err := primary.run(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}, &reply); err != nil {
		return nil, err
	}
	config, err := withSecondary(reply.Config, second.address)
	if err != nil {
		return nil, err
	}
	if err := primary.run(ctx, bson.D{{Key: "replSetReconfig", Value: config}}, nil); err != nil {
		return nil, err
	}
	srv, err := connect(second.address)
	if err != nil {
		return nil, err
	}
	defer srv.close(ctx)
	ctx, release := second.living(ctx)
	defer release()
	now, err := primary.status(ctx)
	if err != nil {
		return nil, err
	}
	return second, srv.reaches(ctx, now.Applied)
}

// withSecondary is a configuration with another member, hidden and without a vote.
func withSecondary(config bson.D, host string) (bson.D, error) {
	next := make(bson.D, 0, len(config))
	found := 0
	for _, e := range config {
		switch e.Key {
		case "version":
			version, ok := e.Value.(int32)
			if !ok {
				return nil, fmt.Errorf("read the set's configuration: version is a %T", e.Value)
			}
			e.Value = version + 1
			found++
		case "members":
			members, ok := e.Value.(bson.A)
			if !ok {
				return nil, fmt.Errorf("read the set's configuration: members is a %T", e.Value)
			}
			e.Value = append(slices.Clip(members), bson.D{
				{Key: "_id", Value: int32(len(members))},
				{Key: "host", Value: host},
				{Key: "votes", Value: 0},
				{Key: "priority", Value: 0},
				{Key: "hidden", Value: true},
			})
			found++
		}
		next = append(next, e)
	}
	if found != 2 {
		return nil, errors.New("read the set's configuration: it has no version, or no members")
	}
	return next, nil
}
