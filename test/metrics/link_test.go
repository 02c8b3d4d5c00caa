package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/standby"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify/standing"
	"github.com/oplogrep/replicator/web"
)

// process is a process with a link, and with everything that registers metrics.
type process struct {
	t        *testing.T
	registry *recorder
	source   *driver.Set
	tracker  *status.Tracker
	link     *pipeline.Pipeline
}

// start starts two sets, and a link between them. The source has a hundred documents, with an index
// whose option is deferred.
func start(t *testing.T) *process {
	t.Helper()
	set := func(seed int64) *driver.Set {
		s := mongosim.StartTest(t, mongosim.Options{Seed: seed, TTLInterval: -1, Moods: mongosim.NoMoods("what is counted must not depend on chance")})
		return client.Open(t, driver.Config{URI: s.URI(), SelectionTimeout: time.Minute})
	}
	p := &process{t: t, registry: newRecorder(), source: set(1)}
	target := set(2)
	p.write(insert("a", 0, 100))
	p.write(bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true}},
	}}})
	p.tracker = must.Get(status.New(status.Config{
		Version: "v1.2.3", Link: "shop", Source: p.source, Target: target, MetaDB: scope.DefaultMetaDB, TargetPrimary: target.Primary,
		Feedback: feedback.Document, Registry: p.registry,
	}))(t)
	p.link = must.Get(pipeline.New(pipeline.Config{
		Link: "shop", Scope: must.Get(scope.New(scope.Config{}))(t), Await: time.Second, CutInterval: time.Second,
		Copy:  initialsync.Options{Wanted: true, SpoolDir: t.TempDir()},
		Lease: standby.Options{TTL: time.Minute, Every: time.Second, Process: lease.NewProcess("test")}, Feedback: feedback.Document,
		Observer: p.tracker.Observe, Registry: p.registry,
	}, p.source, target))(t)
	p.tracker.Follow(p.link.Snapshot)
	compared := standing.Cut{Source: bson.Timestamp{T: uint32(time.Now().Unix())}, At: time.Now()} //nolint:gosec // Until 2106.
	p.tracker.Verifies(func() status.Verification {
		return status.Verification{Continuous: true, Standing: &standing.Standing{AsOf: &compared, Collections: 2, Verified: 2}}
	})
	p.others()
	p.run()
	return p
}

// others registers the metrics of the server, and of an agent without links.
func (p *process) others() {
	near := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9216}
	must.Get(web.New(web.Config{Address: near, Metrics: p.registry, Registry: p.registry, Log: slog.New(slog.DiscardHandler)}))(p.t)
	ctx := p.t.Context()
	must.Succeed(p.t, agent.New(ctx, ctx, agent.Config{
		Max: 4, Explain: func(error) agent.Failure { return agent.Failure{} }, Log: slog.New(slog.DiscardHandler),
	}).Register(p.registry))
}

var errOver = errors.New("the test is over")

// run runs the link until the test ends.
func (p *process) run() {
	ctx, end := context.WithCancelCause(context.WithoutCancel(p.t.Context()))
	soft, drain := context.WithCancelCause(ctx)
	var along, mirror sync.WaitGroup
	along.Go(func() { _ = p.tracker.Run(ctx) })
	mirror.Go(func() {
		if err := p.link.Run(ctx, soft); err != nil {
			p.t.Errorf("mirror: %v", err)
		}
	})
	p.t.Cleanup(func() {
		drain(errOver)
		mirror.Wait()
		end(errOver)
		along.Wait()
	})
}

// until waits until what the link shows is as wanted.
func (p *process) until(what string, done func(s *status.Snapshot) bool) {
	p.t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for {
		s := p.tracker.Snapshot()
		if done(&s) {
			return
		}
		select {
		case <-look.C:
		case <-limit.C:
			p.t.Fatalf("wait for %s: %+v", what, s)
		}
	}
}

// write runs a command in the database shop of the source.
func (p *process) write(cmd bson.D) {
	p.t.Helper()
	must.Get(p.source.Call(p.t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(cmd))(p.t)}))(p.t)
}

func insert(coll string, from, to int) bson.D {
	var docs bson.A
	for i := from; i < to; i++ {
		docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}})
	}
	return bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}}
}

// mirror writes operations of each kind, once the copy is complete, and waits until they are in
// the target and a cut shows it.
func (p *process) mirror() {
	p.t.Helper()
	steady := func(s *status.Snapshot) bool {
		return s.State == string(monitor.Steady) && s.Spool == nil && s.Deferred != nil && s.Control != nil
	}
	p.until("the end of the copy", steady)
	p.write(insert("a", 100, 150))
	p.write(bson.D{{Key: "update", Value: "a"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 20}}}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 1}}}}},
		{Key: "multi", Value: true},
	}}}})
	p.write(bson.D{{Key: "delete", Value: "a"}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 140}}}}}, {Key: "limit", Value: 0},
	}}}})
	p.write(bson.D{{Key: "create", Value: "b"}})
	p.until("the operations", func(s *status.Snapshot) bool {
		return steady(s) && s.Applier.Commands > 0 && s.Verdict.Name == "steady" && s.Cut != nil
	})
}

// gather returns the metrics of a moment at which the link is steady.
func (p *process) gather() (families []*dto.MetricFamily) {
	p.t.Helper()
	p.until("a steady link", func(*status.Snapshot) bool {
		families = must.Get(p.registry.Gather())(p.t)
		return strings.Contains(exposition(families), "\nreplicator_verdict level=good name=steady 1\n")
	})
	return families
}

var _ prometheus.Registerer = (*recorder)(nil)
