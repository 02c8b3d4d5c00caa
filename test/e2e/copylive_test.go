package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/traffic"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestCopyLive begins a link with a copy while many clients write to the source as
// fast as they can, and while members of both sets step down and are killed,
// connections break, and the link is ended and started again, sometimes on another
// machine. In the end both sets hold the same, and once the copy was said to be
// consistent nothing was met that a copy alone excuses. All of that with access
// control, and with the roles that docs/privileges.md gives.
//
// LIVE_SECONDS, LIVE_SEED and LIVE_DIALECTS (5.0,7.0 or all) choose another run.
func TestCopyLive(t *testing.T) {
	seed := number(t, envLiveSeed, time.Now().UnixNano()&0xffffff)
	eachProvider(t, liveDialects("5.0", "7.0"), func(t *testing.T, p provider) {
		t.Logf("%s=%d", envLiveSeed, seed)
		openCopyLive(t, p, seed).run(t)
	})
}

func openCopyLive(t *testing.T, p provider, seed int64) *copyLive {
	// A copy whose member has rolled back waits for a day then: a hidden member may have its position.
	moods := mongosim.MoodsWithout("no-config", "a copy that cannot be continued does not begin anew without the configuration")
	l := &copyLive{live: openLive(t, p, seed, clusterOptions{expires: expiry, moods: moods})}
	// Servers up to 4.4 log updates in a form that, applied to a newer document, may
	// leave fields in another order; their own initial sync has it so.
	l.anyFieldOrder = l.major < 5
	if !p.real {
		// There is more to be hurt, and less time.
		l.between, l.total = 250*time.Millisecond, time.Duration(number(t, envLiveSeconds, 6))*time.Second
	}
	return l
}

// copyLive is one run of the live test that begins with a copy.
type copyLive struct {
	*live
	registry *prometheus.Registry

	mu sync.Mutex // guards the rest
	// tolerated is what a run had counted when it was consistent; nil before that.
	tolerated map[string]float64
	// consistent are the optimes as of which a copy was.
	consistent []oplog.OpTime
}

// The documents that the source has at first, besides those of the traffic.
const (
	archiveDB   = "archive"
	archiveDocs = 4000
)

func (l *copyLive) run(t *testing.T) {
	l.fill(t)
	end := l.write(t, traffic.Config{Pause: -1, KeeperPause: 20 * time.Millisecond, OnceOnly: true})
	head := time.NewTimer(min(time.Second, l.total/4))
	defer head.Stop()
	<-head.C
	l.configure(t)
	l.start(t)
	defer l.mirror.end(errEnd)
	l.hurt(t, func() (string, error) {
		phase := l.phase()
		name, err := l.injure(t)
		return phase + ": " + name, err
	})
	end()
	l.whole(t)
	last := l.last(t)
	l.mirror.await(l.limit, "it is consistent", func(s monitor.Snapshot) bool {
		return s.Copy != nil && s.Copy.Phase == checkpoint.Copied
	})
	l.mirror.drain(l.limit, last)
	l.check(t)
	if n := l.mirror.p.Load().Snapshot().Copy.Number; len(l.consistent) != 1 {
		t.Errorf("copy %d was consistent as of %s", n, l.consistent)
	} else {
		t.Logf("copy %d is consistent as of %s", n, l.consistent)
	}
	l.same(t)
	l.rarities(t)
}

// fill gives the source something to copy, with _ids of several types.
func (l *copyLive) fill(t *testing.T) {
	t.Helper()
	conn := connect(t, l.source.uriFor(writerUser))
	var docs bson.A
	for i := range archiveDocs {
		id := any(i)
		switch i % 5 {
		case 1:
			id = strconv.Itoa(i)
		case 2:
			id = bson.D{{Key: "i", Value: i}}
		}
		docs = append(docs, bson.D{{Key: "_id", Value: id}, {Key: "k", Value: i % 97}, {Key: "pad", Value: strings.Repeat("x", 150)}})
		if len(docs) == 500 {
			command(t, conn, archiveDB, bson.D{{Key: "insert", Value: fmt.Sprintf("c%d", i*4/archiveDocs)}, {Key: "documents", Value: docs}})
			docs = nil
		}
	}
	for i := range 4 {
		command(t, conn, archiveDB, bson.D{{Key: "createIndexes", Value: fmt.Sprintf("c%d", i)}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}},
		}}})
	}
}

// configure chooses how it is copied: slowly, so that something can happen to it.
func (l *copyLive) configure(t *testing.T) {
	c := &l.mirror.cfg
	c.FlushDocs = []int{0, 20, 100}[l.rnd.IntN(3)]
	c.Copy = initialsync.Options{
		Wanted: true, SpoolDir: t.TempDir(), MaxCopies: 1000,
		Workers:      1 + l.rnd.IntN(6),
		IndexesFirst: l.rnd.IntN(3) == 0,
		RangeBytes:   []int64{0, 10_000, 100_000}[l.rnd.IntN(3)],
		OpsPerSecond: 4 * archiveDocs / max(1, int64(l.total/time.Second)),
	}
	t.Logf("flush=%d workers=%d indexesFirst=%t range=%d ops=%d/s", c.FlushDocs, c.Copy.Workers,
		c.Copy.IndexesFirst, c.Copy.RangeBytes, c.Copy.OpsPerSecond)
	l.mirror.told = l.told
}

// start starts a run of the link, which counts for itself.
func (l *copyLive) start(t *testing.T) {
	t.Helper()
	l.registry = prometheus.NewRegistry()
	l.mirror.cfg.Registry = l.registry
	l.mu.Lock()
	l.tolerated = nil
	if len(l.consistent) > 0 {
		l.tolerated = map[string]float64{}
	}
	l.mu.Unlock()
	l.mirror.begin()
}

func (l *copyLive) told(e event.Event) {
	c, ok := e.(monitor.Consistent)
	if !ok {
		return
	}
	now := l.counted()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.consistent = append(l.consistent, c.OpTime)
	l.tolerated = now
}

// emptyDeletes are deletes that found nothing.
const emptyDeletes = "replicator_applier_deletes_empty_total"

// toleratedMetrics are what only a copy that is not consistent yet may bring.
var toleratedMetrics = []string{
	"replicator_applier_divergences_total", "replicator_applier_ignored_ops_total", emptyDeletes,
}

// counted is what the present run has counted of them.
func (l *copyLive) counted() map[string]float64 {
	all, err := l.registry.Gather()
	if err != nil {
		return map[string]float64{"gather: " + err.Error(): 1}
	}
	counted := map[string]float64{}
	for _, family := range all {
		if slices.Contains(toleratedMetrics, family.GetName()) {
			counted[family.GetName()] = family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return counted
}

// check finds what a run met after it was consistent. A capped collection trims
// itself, and is trimmed by the log then, in vain.
func (l *copyLive) check(t *testing.T) {
	t.Helper()
	now := l.counted()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tolerated == nil {
		return
	}
	t.Logf("up to the end of the copy: %v", l.tolerated)
	for name, n := range now {
		was := l.tolerated[name]
		if name == emptyDeletes {
			trimmed := l.trims(t, l.consistent[len(l.consistent)-1].TS)
			t.Logf("since then %g deletes were empty, and capped collections were trimmed by %d documents", n-was, trimmed)
			// Since 8.0 inserts are grouped in an applyOps, which may be done again: one
			// that is followed by its delete becomes a delete that finds nothing.
			if n-was <= float64(trimmed) || l.major >= 8 {
				continue
			}
		}
		if n != was {
			l.mirror.fail("%s was %g when the target was consistent, and is %g", name, was, n)
		}
	}
}

// trims is how many deletes the source has logged for capped collections after a time. Each is made capped, by create or a conversion, or
// renamed, with the UUID that the deletes have.
func (l *copyLive) trims(t *testing.T, after bson.Timestamp) (n int) {
	t.Helper()
	conn := connect(t, l.source.uriFor(admin))
	logged := func(filter bson.D) []bson.Raw {
		return batch(t, command(t, conn, "local", bson.D{
			{Key: "find", Value: "oplog.rs"},
			{Key: "batchSize", Value: 1_000_000},
			{Key: "singleBatch", Value: true},
			{Key: "filter", Value: filter},
			{Key: "projection", Value: bson.D{{Key: "op", Value: 1}, {Key: "ui", Value: 1}, {Key: "o.applyOps.op", Value: 1}, {Key: "o.applyOps.ui", Value: 1}}},
		}))
	}
	exists := bson.D{{Key: "$exists", Value: true}}
	capped := map[string]bool{}
	for _, entry := range logged(bson.D{{Key: "o.create", Value: exists}, {Key: "o.capped", Value: true}}) {
		capped[entry.Lookup("ui").String()] = true
	}
	count := func(op bson.Raw) {
		if kind, _ := op.Lookup("op").StringValueOK(); kind == "d" && capped[op.Lookup("ui").String()] {
			n++
		}
	}
	for _, entry := range logged(bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gt", Value: after}}},
		// Newer servers group what one command does.
		{Key: "$or", Value: bson.A{bson.D{{Key: "op", Value: "d"}}, bson.D{{Key: "o.applyOps.op", Value: "d"}}}},
	}) {
		count(entry)
		if group, ok := entry.Lookup("o", "applyOps").ArrayOK(); ok {
			for _, op := range must.Get(group.Values())(t) {
				count(op.Document())
			}
		}
	}
	return n
}

// phase is that of the copy.
func (l *copyLive) phase() string {
	if c := l.mirror.p.Load().Snapshot().Copy; c != nil {
		return string(c.Phase)
	}
	return "starting"
}

// injure does something to one of the sets or to the mirror.
func (l *copyLive) injure(t *testing.T) (string, error) {
	switch l.rnd.IntN(8) {
	case 0, 1, 2:
		return l.restart(t), nil
	case 3:
		set, name := l.side()
		if e, ok := set.(embedded); ok {
			member := l.rnd.IntN(e.size())
			e.Cut(mongosim.Client, member)
			e.Heal(mongosim.Client, member)
			return "cut connections to the " + name, nil
		}
	}
	return l.injureSet(t)
}

// restart ends the link and starts it again, on the same machine or on another.
func (l *copyLive) restart(t *testing.T) string {
	t.Helper()
	l.mirror.end(errEnd)
	l.check(t)
	name := "restart"
	if l.rnd.IntN(3) == 0 {
		l.mirror.cfg.Copy.SpoolDir = t.TempDir()
		name = "restart elsewhere"
	}
	l.mirror.cfg.Writers = []int{16, 16, 5}[l.rnd.IntN(3)]
	l.start(t)
	return name
}
