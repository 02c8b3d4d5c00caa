package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// envCopyKills is at how many points TestCopyKilled ends a link.
const envCopyKills = "COPY_KILLS"

// Settings of the copies that are killed. They are small, so that there are many
// points that differ.
const (
	killWorkers = 2
	killFlush   = 4
)

// killDB is the database that is copied.
const killDB = "kill"

// killSources is at how many links at a time it is tried.
const killSources = 4

// TestCopyKilled ends a link at a command of its copy, or of the replay after it,
// before it is sent or after it was carried out and without its answer; then
// another one goes on, on the same machine or on another. In the end the target is
// equal, and no document was copied twice but for those that were on their way.
//
// COPY_KILLS is at how many commands it is tried, COPY_SEED chooses which.
func TestCopyKilled(t *testing.T) {
	usual := int64(240)
	switch {
	case race.Enabled:
		usual = 24
	case testing.Short():
		usual = 100
	}
	points := int(number(t, envCopyKills, usual))
	seed := number(t, envCopySeed, 1)
	for part := range killSources {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			k := openKilled(t, []string{"5.0", "7.0"}[part%2], seed+int64(part))
			all := k.once(t, rand.New(rand.NewPCG(uint64(seed), uint64(part))), point{}).commands
			tried, where := 0, map[string]int{}
			for pass := 0; tried < (points+killSources-1)/killSources; pass++ {
				rng := rand.New(rand.NewPCG(uint64(seed+int64(part)), uint64(pass)))
				for _, i := range rng.Perm(2 * all) {
					at := point{n: i/2 + 1, answered: i%2 == 1}
					if p := k.once(t, rng, at); p.killedAt != "" {
						tried++
						where[p.killedAt]++
					}
					if t.Failed() {
						t.Fatalf("%s=%d, pass %d, %+v", envCopySeed, seed, pass, at)
					}
					if tried >= (points+killSources-1)/killSources {
						break
					}
				}
			}
			t.Logf("killed at %d of %d commands: %v", tried, all, where)
		})
	}
}

// atPoints are the moods of the sets: a link is killed at one command of all, and
// that no document is copied twice is told of that kill alone.
var atPoints = mongosim.NoMoods("a link is killed at a command that was counted, and nothing else may make it start over")

// point is where a link is killed: at the n-th command, never if that is 0. Answered
// tells that the command is carried out.
type point struct {
	n        int
	answered bool
}

// killed is the source of the copies that are killed.
type killed struct {
	source  cluster
	dialect string
	conn    *driver.Set
	seed    int64
	// docs is how many documents it begins with, writes how often it was written to
	// since.
	docs, writes int
}

func openKilled(t *testing.T, dialect string, seed int64) *killed {
	k := &killed{dialect: dialect, source: openEmbedded(t, dialect, clusterOptions{name: "source", members: 1, seed: seed, moods: atPoints}), seed: seed}
	k.conn = connect(t, k.source.uriFor(admin))
	run := func(cmd bson.D) { command(t, k.conn, killDB, cmd) }
	insert := func(coll string, docs bson.A) {
		k.docs += len(docs)
		run(bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: docs}})
	}
	run(bson.D{{Key: "create", Value: "capped"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 16}})
	run(bson.D{{Key: "create", Value: "empty"}})
	run(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}, {Key: "metaField", Value: "m"}}}})
	run(bson.D{{Key: "create", Value: "view"}, {Key: "viewOn", Value: "many"}, {Key: "pipeline", Value: bson.A{}}})
	var many, mixed, capped, series bson.A
	for i := range 24 {
		many = append(many, bson.D{{Key: "_id", Value: i}, {Key: "pad", Value: strings.Repeat("x", 100)}})
	}
	for i := range 6 {
		mixed = append(mixed, bson.D{{Key: "_id", Value: i}}, bson.D{{Key: "_id", Value: strconv.Itoa(i)}})
		capped = append(capped, bson.D{{Key: "_id", Value: -i}})
	}
	for i := range 3 {
		series = append(series, bson.D{{Key: "t", Value: bson.DateTime(1_700_000_000_000)}, {Key: "m", Value: i}})
	}
	insert("many", many)
	insert("mixed", mixed)
	insert("capped", capped)
	insert("series", series) // each of them has a bucket of its own
	run(bson.D{{Key: "createIndexes", Value: "many"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "u", Value: 1}}}, {Key: "name", Value: "u"}, {Key: "unique", Value: true}, {Key: "sparse", Value: true}},
		bson.D{{Key: "key", Value: bson.D{{Key: "at", Value: 1}}}, {Key: "name", Value: "at"}, {Key: "expireAfterSeconds", Value: 3600}},
	}}})
	return k
}

// write changes the source, but for how many documents it had before.
func (k *killed) write(ctx context.Context) (bson.Timestamp, error) {
	k.writes++
	from, to := "kill.mixed", "kill.moved"
	if k.writes%2 == 0 {
		from, to = to, from
	}
	var last bson.Timestamp
	for _, cmd := range []bson.D{
		{{Key: "update", Value: "many"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "multi", Value: true}},
		}}},
		{{Key: "delete", Value: "many"}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 7}}}, {Key: "limit", Value: 1}},
		}}},
		{{Key: "insert", Value: "many"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 7}, {Key: "again", Value: k.writes}}}}},
		{{Key: "renameCollection", Value: from}, {Key: "to", Value: to}},
		{{Key: "drop", Value: "made"}},
		{{Key: "insert", Value: "made"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: k.writes}}}}},
	} {
		db := killDB
		if cmd[0].Key == "renameCollection" {
			db = "admin"
		}
		body, err := bson.Marshal(cmd)
		if err != nil {
			return last, err
		}
		reply, err := k.conn.Call(ctx, mongo.Command{DB: db, Body: body})
		if err != nil {
			if cmd[0].Key == "drop" {
				continue // the first time it is not there
			}
			return last, fmt.Errorf("%s: %w", cmd[0].Key, err)
		}
		last.T, last.I, _ = reply.Lookup("operationTime").TimestampOK()
	}
	return last, nil
}

// once copies into a new target, with a kill, and lets another link go on. It
// returns the first one.
func (k *killed) once(t *testing.T, rng *rand.Rand, at point) *process {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{
		SetName: "target", Dialect: k.dialect, Seed: k.seed + 100, TTLInterval: -1, Moods: atPoints,
		// A link that dies while it is being made leaves a transaction open, in a
		// session that nobody else has.
		TransactionLifetime: 500 * time.Millisecond,
	})
	defer set.Close()
	target := embedded{set, false}
	everything := must.Get(scope.New(scope.Config{}))(t)
	m := &mirror{t: t, source: k.source.uriFor(admin), target: target.uriFor(admin), cfg: pipeline.Config{
		Link: "killed", Scope: everything, Writers: 3, FlushDocs: killFlush, Await: 100 * time.Millisecond, RetryMin: 5 * time.Millisecond,
		RetryMax: 200 * time.Millisecond, CheckpointInterval: 10 * time.Millisecond,
		Copy: initialsync.Options{
			Wanted: true, SpoolDir: t.TempDir(), Workers: killWorkers, RangeBytes: 600, IndexesFirst: rng.IntN(4) == 0,
		},
	}}
	docs := k.docs
	if k.writes > 0 {
		docs++ // that of the collection that is made each time
	}
	first := newProcess(at)
	first.writeAt, first.write = 1+rng.IntN(150), k.write
	all := []*process{first}
	k.live(t, m, first)
	if first.killedAt != "" && rng.IntN(3) == 0 {
		again := newProcess(point{1 + rng.IntN(200), rng.IntN(2) == 0})
		all = append(all, again)
		k.elsewhere(t, m, rng)
		k.live(t, m, again)
	}
	last := must.Get(k.write(t.Context()))(t)
	k.elsewhere(t, m, rng)
	final := newProcess(point{})
	all = append(all, final)
	final.begin(m)
	m.await(time.Minute, "it is consistent", func(s monitor.Snapshot) bool {
		return s.Copy != nil && s.Copy.Phase == checkpoint.Copied
	})
	if c := m.p.Load().Snapshot().Copy; c.Number != 1 {
		m.fail("copy %d was made: %s", c.Number, c.Why)
	}
	close(final.gone)
	m.drain(time.Minute, last)
	k.same(t, target, m.cfg.Link)
	k.count(t, docs, all)
	if t.Failed() {
		m.show()
		for _, p := range all {
			t.Logf("killed at %q, command %d", p.killedAt, p.at.n)
		}
	}
	return first
}

// live runs a link until it is killed, or the target is consistent.
func (k *killed) live(t *testing.T, m *mirror, p *process) {
	t.Helper()
	p.begin(m)
	select {
	case <-p.dead:
	case <-p.consistent:
	case <-time.After(time.Minute):
		m.fatal("neither killed at %+v nor consistent", p.at)
	}
	close(p.gone)
	m.end(errEnd)
	if p.err != nil {
		t.Fatal(p.err)
	}
}

// elsewhere lets the next link begin on another machine, or not.
func (k *killed) elsewhere(t *testing.T, m *mirror, rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		m.cfg.Copy.SpoolDir = t.TempDir()
	}
}

// count finds documents that were copied twice.
func (k *killed) count(t *testing.T, docs int, all []*process) {
	t.Helper()
	// Writes meanwhile delete a document, and insert it again, twice; the copy may
	// read it at both places.
	const rewritten = 2
	onTheirWay := (len(all) - 1) * killWorkers * killFlush
	var noted, sent, replaced, discarded int
	for _, p := range all {
		noted += p.noted(t)
		sent += p.sent
		replaced += p.replaced
		discarded += p.discarded
		if t.Failed() {
			t.Logf("%d of %d documents were sent, %d noted, %d replaced", p.sent, docs, p.noted(t), p.replaced)
		}
	}
	if noted-discarded > docs+rewritten || noted-discarded < docs-rewritten-onTheirWay {
		t.Errorf("of %d documents %d are noted as copied, of which %d were discarded", docs, noted, discarded)
	}
	if replaced > onTheirWay+rewritten*killFlush {
		t.Errorf("%d documents were replaced", replaced)
	}
	if sent > docs+rewritten+onTheirWay+replaced+discarded {
		t.Errorf("of %d documents %d were sent, %d of them to replace others, %d to be discarded", docs, sent, replaced, discarded)
	}
}

// same compares.
func (k *killed) same(t *testing.T, target cluster, link string) {
	t.Helper()
	to := connect(t, target.uriFor(admin))
	defer to.Close()
	deferred, err := ddl.ReadDeferred(t.Context(), to, scope.DefaultMetaDB, link)
	if err != nil {
		t.Fatal(err)
	}
	report, err := compare.Compare(t.Context(), compare.Cluster(k.conn), compare.Cluster(to), compare.Options{Deferred: deferred})
	if err != nil || !report.Equal() {
		t.Errorf("%v %s", err, &report)
	}
}

// process is one run of a link.
type process struct {
	at point
	// writeAt is the command at which write is called.
	writeAt  int
	write    func(ctx context.Context) (bson.Timestamp, error)
	registry *prometheus.Registry
	// dead is closed when it is killed, gone when nothing is to be waited for any
	// more, consistent when the target is.
	dead, gone, consistent chan struct{}

	mu sync.Mutex // guards the rest
	// commands were sent, with sent documents of the copy, as long as that goes on;
	// replaced were told of as such, and discarded as of a capped collection that was
	// copied again.
	commands, sent, replaced, discarded int
	copying                             bool
	killedAt                            string
	err                                 error
}

func newProcess(at point) *process {
	return &process{
		at: at, registry: prometheus.NewRegistry(),
		dead: make(chan struct{}), gone: make(chan struct{}), consistent: make(chan struct{}),
	}
}

// begin begins a run of the mirror.
func (p *process) begin(m *mirror) {
	m.t.Helper()
	m.told, m.cfg.Registry = p.told, p.registry
	m.wrap = func(source, target pipeline.Cluster) (pipeline.Cluster, pipeline.Cluster) {
		return watched{source, p, "source"}, watched{target, p, "target"}
	}
	m.begin()
}

func (p *process) told(e event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case initialsync.StepChanged:
		p.copying = e.Step != initialsync.StepDone
	case event.Line:
		switch docs := event.Attr(e, "docs"); {
		case e.Message() == "documents were copied again":
			p.replaced += int(docs.Int64())
		case strings.HasPrefix(e.Message(), "capped collection copied again: "):
			p.discarded += int(docs.Int64())
		}
	case monitor.Consistent:
		close(p.consistent)
	}
}

// noted is how many documents the copy has counted.
func (p *process) noted(t *testing.T) int {
	t.Helper()
	all := must.Get(p.registry.Gather())(t)
	for _, family := range all {
		if family.GetName() == "replicator_initialsync_docs_total" {
			return int(family.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return 0
}

// errDead is the answer to what a process that is dead asks.
var errDead = errors.New("the process is dead")

// call runs a command as long as the process lives.
func (p *process) call(ctx context.Context, to mongo.Caller, side string, cmd mongo.Command) (bson.Raw, error) {
	name, _ := cmd.Body.Index(0).KeyErr()
	if name == "hello" {
		return to.Call(ctx, cmd) // they come at any time
	}
	p.mu.Lock()
	if p.killedAt != "" {
		p.mu.Unlock()
		return p.wait(ctx)
	}
	p.commands++
	last := p.commands == p.at.n
	if last {
		p.killedAt = side + " " + name
	}
	if p.commands == p.writeAt && p.write != nil {
		if _, err := p.write(ctx); err != nil {
			p.err = err
		}
	}
	if p.copying && cmd.DB == killDB && side == "target" && (!last || p.at.answered) {
		p.sent += len(cmd.Docs)
	}
	p.mu.Unlock()
	if !last {
		return to.Call(ctx, cmd)
	}
	if p.at.answered {
		_, _ = to.Call(ctx, cmd) // nobody hears of it
	}
	close(p.dead)
	return p.wait(ctx)
}

// wait is what a dead process does.
func (p *process) wait(ctx context.Context) (bson.Raw, error) {
	select {
	case <-p.gone:
		// It does not know the outcome of its commands: for that a living process
		// would wait for half a minute.
		return nil, &mongo.LostError{Err: errDead, Refused: true}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// watched is a cluster that a process talks to.
type watched struct {
	pipeline.Cluster
	p    *process
	side string
}

func (w watched) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return w.p.call(ctx, w.Cluster, w.side, cmd)
}

func (w watched) Member(host string) mongo.Caller { return watchedMember{w.Cluster.Member(host), w} }

type watchedMember struct {
	mongo.Caller
	w watched
}

func (m watchedMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return m.w.p.call(ctx, m.Caller, m.w.side, cmd)
}
