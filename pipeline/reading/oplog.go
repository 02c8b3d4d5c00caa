package reading

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/overflow"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

// Config says how the oplog of a link is read.
type Config struct {
	// Link is the link's name. Part means that it is a part of another one.
	Link string
	Part bool
	// Source is the source, Watcher knows its members, and Resolver chooses one of them.
	Source   mongo.Cluster
	Watcher  *syncsource.Watcher
	Resolver *syncsource.Resolver
	// MirrorMember is that of [fetcher.Config].
	MirrorMember int
	// Copy has the settings of the spool.
	Copy initialsync.Options
	// RelayBytes is the size of the relay log in bytes, 0 for none.
	RelayBytes int64
	// Await is how long a member waits for new entries. Delay is how far behind the source the target
	// is kept.
	Await, Delay time.Duration
	// Memory returns the share of memory of entries that are read.
	Memory func() int64
	// Paused reports whether the link is paused.
	Paused func() bool
	// Passes reports whether an error of the source is transient.
	Passes func(error) bool

	// Monitor knows the link's progress, and shows where the oplog is read.
	Monitor  *monitor.Monitor
	Observer event.Observer
	Registry prometheus.Registerer
}

// Oplog is the oplog of a link's source, as the attempts of one run read it. Make one with New. Its
// methods are for one goroutine at a time.
type Oplog struct {
	cfg Config
	// run is the context of the run, which outlasts that of a lease.
	run context.Context //nolint:containedctx // It is that of work that outlasts a call.
	// earlier, if not null, is an entry before the checkpoint's FetchFrom to read from:
	// a transaction turned out to begin there.
	earlier oplog.OpTime
	// earlierFor is the entry that needs it: once it has been applied, the checkpoint's
	// FetchFrom is correct again.
	earlierFor oplog.OpTime
	// log is the oplog of a copy that is not consistent, or not drained, yet. It stays
	// open from one attempt to the next.
	log *initialsync.Log
	// overflow spools the oplog while the target does not keep up.
	overflow *overflow.Overflow
	// relayDrained means that all of the relay log was sent on before the run ends.
	relayDrained bool
}

// New returns an Oplog of which nothing is read yet. It does no I/O and starts nothing.
func New(cfg Config) *Oplog {
	o := &Oplog{cfg: cfg}
	o.log = o.newLog()
	o.overflow = o.newOverflow()
	return o
}

// newLog creates the log of the link's copy.
func (o *Oplog) newLog() *initialsync.Log {
	cfg := &o.cfg
	return initialsync.NewLog(initialsync.LogConfig{
		Link: cfg.Link, Dir: cfg.Copy.SpoolDir, Limit: cfg.Copy.SpoolBytes, MinFree: cfg.Copy.SpoolFree, Writer: cfg.Copy.SpoolWriter,
		Relay:      cfg.RelayBytes,
		Memory:     cfg.Memory,
		SourceWait: cfg.Copy.SourceWait, Run: cfg.Monitor.Fetch,
		Observer: cfg.Observer, Registry: cfg.Registry,
	})
}

// newOverflow creates the Overflow that spools the oplog of the link while its target does not keep up.
func (o *Oplog) newOverflow() *overflow.Overflow {
	m := o.cfg.Monitor
	return overflow.New(overflow.Config{
		Source: o.cfg.Source, Reaches: o.cfg.Resolver.Reaches, Fetch: o.fetchConfig,
		Delay: o.cfg.Delay, Relay: o.cfg.RelayBytes > 0, Paused: o.cfg.Paused, Observer: o.cfg.Observer,
		Show: overflow.Show{MostLag: m.MostLag, Oldest: m.Oldest, RunsShort: m.RunsShort, Spools: m.Spools, Relays: m.Relays},
	}, o.log)
}

// Begin begins the run: until ctx is done, the oplog may be read, also without a lease.
func (o *Oplog) Begin(ctx context.Context) { o.run = ctx }

// Log returns the log of the link's copy, which is another one after StartOver.
func (o *Oplog) Log() *initialsync.Log { return o.log }

// Overflow returns the Overflow that spools the oplog while the target does not keep up.
func (o *Oplog) Overflow() *overflow.Overflow { return o.overflow }

// Spool starts to spool the oplog of a copy, until soft or the run is done.
func (o *Oplog) Spool(soft context.Context, src checkpoint.Source, st checkpoint.State) error {
	return o.log.Start(o.run, soft, st.Copy, o.fetchConfig(src, st))
}

// Recover prepares the log for an attempt after one that ended with err; see
// [initialsync.Log.Recover].
func (o *Oplog) Recover(soft context.Context, err error) error {
	return o.log.Recover(o.run, soft, err)
}

// HasSpooled reports whether there are unapplied entries on disk.
func (o *Oplog) HasSpooled() bool {
	if o.relayDrained {
		return false // all stored entries were sent on
	}
	m := o.cfg.Monitor
	return o.log.Spool() != nil && m.Gaps().Copying || o.log.HasUnapplied(m.Progress().Applied)
}

// Remove forgets the state of a copy that another one replaces, and deletes its spool.
func (o *Oplog) Remove() error {
	o.earlier, o.earlierFor = oplog.OpTime{}, oplog.OpTime{}
	return o.log.Remove()
}

// StartOver forgets everything, as if the process had just been started.
func (o *Oplog) StartOver() {
	if err := o.log.Close(); err != nil {
		// The files are checked again before they are read.
		o.cfg.Observer.Log(slog.LevelWarn, "the spool could not be closed", slog.String(keyError, err.Error()))
	}
	o.log = o.newLog()
	o.earlier, o.earlierFor = oplog.OpTime{}, oplog.OpTime{}
	o.overflow.Reset(o.log)
}
