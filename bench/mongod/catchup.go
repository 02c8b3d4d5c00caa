package mongod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/launch"
	"github.com/oplogrep/replicator/oplog"
)

// CaughtUp is how a secondary caught up with a backlog.
type CaughtUp struct {
	// Took is the time for all of the backlog at the measured rate.
	Took time.Duration
	// Entries is how many the backlog has, without no-ops: fewer than operations where the
	// server puts several into one. Unseen of them had been applied when the secondary was
	// first seen to have applied any: their share of Took is extrapolated.
	Entries, Unseen int64
	// Start is the time from the start of its process to that look, which Took leaves out.
	Start time.Duration
	// Pause is the longest time after that without progress.
	Pause time.Duration
}

// CatchUp times a real secondary: what the workload begins with is written, a second
// member is added and syncs; it is stopped while write makes a backlog; then it is
// started, and the time is measured from the first entries seen applied to the last,
// and extrapolated to all of them. Nothing is written meanwhile. It may be called
// once.
func (s *Set) CatchUp(ctx context.Context, w workload.Workload, write func(ctx context.Context, uri string) error) (*CaughtUp, error) {
	if len(s.members) != 1 {
		return nil, errors.New("time a secondary: the set has had one before")
	}
	primary, err := connect(s.members[0].Address)
	if err != nil {
		return nil, err
	}
	defer primary.close(ctx)
	ctx, release := launch.Living(ctx, s.members[0])
	defer release()
	if err := s.fill(ctx, w); err != nil {
		return nil, err
	}
	second, err := s.join(ctx, primary)
	if err != nil {
		return nil, fmt.Errorf("add a secondary: %w", err)
	}
	if err := second.Stop(ctx); err != nil {
		return nil, err
	}
	before, err := primary.status(ctx)
	if err != nil {
		return nil, err
	}
	if err := write(ctx, s.URI); err != nil {
		return nil, fmt.Errorf("write the backlog: %w", err)
	}
	last, err := primary.status(ctx)
	if err != nil {
		return nil, err
	}
	// The log is read before the secondary starts, and not while it is timed.
	entries, err := primary.entries(ctx, before.Applied, last.Applied)
	if err != nil {
		return nil, err
	}
	if entries == 0 {
		return nil, errors.New("time a secondary: nothing was written")
	}
	way, err := catchUp(ctx, second, before.Applied, last.Applied)
	if err != nil {
		return nil, err
	}
	rest, err := primary.entries(ctx, way.first, last.Applied)
	if err == nil && rest == 0 {
		err = errAtOnce
	}
	if err != nil {
		return nil, err
	}
	return &CaughtUp{
		// The entries applied before the first poll count at the rate of those
		// after it.
		Took:    time.Duration(float64(way.took) * float64(entries) / float64(rest)),
		Entries: entries, Unseen: entries - rest, Start: way.start, Pause: way.pause,
	}, nil
}

// catchUp starts a secondary, and watches it until it has the last entry.
func catchUp(ctx context.Context, p *launch.Process, before, last oplog.OpTime) (*way, error) {
	began := time.Now()
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	ctx, dead := launch.Living(ctx, p)
	defer dead()
	if err := listens(ctx, p.Address); err != nil {
		return nil, err
	}
	srv, err := connect(p.Address)
	if err != nil {
		return nil, err
	}
	defer srv.close(ctx)
	return between(ctx, srv.status, began, before, last)
}

// way is the observed progress of a secondary that catches up: from the first prompt
// poll that found an entry after before, which is first, to the first poll that found
// the last. The time before is its start.
type way struct {
	first              oplog.OpTime
	start, took, pause time.Duration
}

const (
	// lookEvery is the polling interval for a secondary's position. Each poll takes CPU
	// from it, and the interval bounds the precision.
	lookEvery = 20 * time.Millisecond
	// promptly is the time limit of the first polls. A starting server delays calls,
	// and the time of its answer is then unknown.
	promptly = 50 * time.Millisecond
)

// between polls the position of a server, started at a time, until it has last.
func between(ctx context.Context, ask func(context.Context) (status, error), began time.Time, before, last oplog.OpTime) (*way, error) {
	var w way
	// since is when it was first seen, moved when it last progressed.
	var since, moved time.Time
	at := before
	err := awaitEvery(ctx, lookEvery, "the secondary has caught up with "+last.String(), func(ctx context.Context) error {
		sent := time.Now()
		now, err := ask(ctx)
		if err != nil {
			return err
		}
		seen := time.Now()
		if since.IsZero() && now.Applied.After(before) && seen.Sub(sent) <= promptly {
			since, moved, at = seen, seen, now.Applied
			w.first, w.start = now.Applied, seen.Sub(began)
		}
		if !since.IsZero() && now.Applied.After(at) {
			w.pause = max(w.pause, seen.Sub(moved))
			moved, at = seen, now.Applied
		}
		if now.Applied.Before(last) {
			return fmt.Errorf("it is in state %d, at %s", now.State, now.Applied)
		}
		w.took = seen.Sub(since)
		return nil
	})
	if err == nil && (since.IsZero() || !w.first.Before(last)) {
		err = errAtOnce
	}
	return &w, err
}

// errAtOnce is the error of a backlog that is too short to be timed.
var errAtOnce = errors.New("time a secondary: it had applied all when it was first seen to have applied any; the backlog has to be larger")

// fill writes the workload's initial documents.
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
// has no vote, so that the primary does not depend on it.
func (s *Set) join(ctx context.Context, primary *server) (*launch.Process, error) {
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
	config, err := withSecondary(reply.Config, second.Address)
	if err != nil {
		return nil, err
	}
	if err := primary.run(ctx, bson.D{{Key: "replSetReconfig", Value: config}}, nil); err != nil {
		return nil, err
	}
	ctx, release := launch.Living(ctx, second)
	defer release()
	now, err := primary.status(ctx)
	if err != nil {
		return nil, err
	}
	return second, synced(ctx, second.Address, now.Applied)
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
