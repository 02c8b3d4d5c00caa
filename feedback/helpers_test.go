package feedback

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ot(n uint32) oplog.OpTime { return oplog.NewOpTime(n, 0, 1) }

// progress returns a Progress with these optimes, wall times 1000 times as large,
// and this number of operations.
func progress(applied, durable uint32, ops int64) checkpoint.Progress {
	return checkpoint.Progress{
		Applied: ot(applied), AppliedWall: int64(applied) * 1000,
		Durable: ot(durable), DurableWall: int64(durable) * 1000, Ops: ops,
	}
}

// source is an Upstream and a Caller that records the reports.
type source struct {
	// mu guards the fields below.
	mu      sync.Mutex
	up      Source
	down    bool
	latency time.Duration
	err     error
	reports []told
	flying  int
	most    int // reports in flight at once
	note    func(told)
}

// told is one report as received.
type told struct {
	applied, durable         oplog.OpTime
	appliedWall, durableWall int64
	member                   int64
}

func (s *source) Upstream() (Source, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	up := s.up
	up.Caller = s
	return up, !s.down
}

func (s *source) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	r, err := read(cmd)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	s.reports = append(s.reports, r)
	s.flying++
	s.most = max(s.most, s.flying)
	latency, err, note := s.latency, s.err, s.note
	s.mu.Unlock()
	if note != nil {
		note(r)
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flying--
	}()
	select {
	case <-time.After(latency):
		return metadata.Document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "n", 1) }), err
	case <-ctx.Done():
		return nil, &mongo.LostError{Host: "h", Err: context.Cause(ctx)}
	}
}

func (s *source) set(change func(s *source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// read parses a report of either form.
func read(cmd mongo.Command) (told, error) {
	doc, names := cmd.Body, [4]string{"appliedOpTime", "appliedWallTime", "durableOpTime", "durableWallTime"}
	r := told{}
	if cmd.Sequence == "" {
		if _, err := doc.LookupErr("$replData"); err == nil {
			return r, fmt.Errorf("the report has $replData: %s", doc)
		}
		doc = doc.Lookup("optimes", "0").Document()
		r.member = doc.Lookup("memberId").AsInt64()
		doc.Lookup("cfgver").AsInt64()
	} else {
		doc = cmd.Docs[0].Lookup("u", "$set").Document()
		names = [4]string{"applied", "appliedWall", "durable", "durableWall"}
		doc.Lookup("at").DateTime()
	}
	opTime := func(name string) oplog.OpTime {
		ts, i := doc.Lookup(name, "ts").Timestamp()
		return oplog.NewOpTime(ts, i, doc.Lookup(name, "t").Int64())
	}
	r.applied, r.appliedWall = opTime(names[0]), doc.Lookup(names[1]).DateTime()
	r.durable, r.durableWall = opTime(names[2]), doc.Lookup(names[3]).DateTime()
	return r, nil
}

// primary is a Caller of a set's primary.
type primary = simcaller.Caller

// member0 is a Caller of one member.
type member0 struct{ m *mongosim.Member }

func (c member0) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return simcaller.Send(ctx, c.m, cmd)
}
