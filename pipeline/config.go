package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/stages"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/standby"
	"github.com/oplogrep/replicator/syncsource"
)

// Cluster is a replica set: *driver.Set.
type Cluster = mongo.Cluster

// The sides of a link, as waits name them.
const (
	sideSource = "source"
	sideTarget = "target"
)

// Config is the configuration of a link. Zero values mean the defaults given.
type Config struct {
	// Link is the link's name. Required.
	Link string
	// MetaDB is the metadata database of the target. Default "replicator".
	MetaDB string
	// Scope selects the namespaces to mirror, and their names on the target. Required.
	Scope resync.Scope
	// Filters are the lists that Scope was made from, for the link's document; nil to leave them out.
	Filters *checkpoint.Filters

	// Vacancy, if not nil, was read before the checks by which the link may be created: it is not created any more once another
	// process has run it since, and it was removed. Default: read when the run begins.
	Vacancy *checkpoint.Vacancy
	// StartAt is where a new link starts that does not copy: after the newest entry that is
	// not later. Default: now.
	StartAt bson.Timestamp
	// CopiedUntil: the target holds a copy that was taken while writes continued, until
	// this time. It applies to a new link only.
	CopiedUntil oplog.OpTime

	// Copy says how a new link copies the existing data.
	Copy initialsync.Options

	// RelayBytes is the size of the relay log, in bytes, 0 for none: entries that are not durable
	// on the target are on disk then, in Copy.SpoolDir, also while the target keeps up. A target
	// that does not may take more, up to Copy.SpoolBytes.
	RelayBytes int64

	// Await is how long a member waits for new entries before it returns an empty
	// reply. Default 5 s.
	Await time.Duration
	// Rules are the rules for choosing a sync source.
	Rules syncsource.Rules
	// Memory is the memory of the whole process, in bytes, of which the stages have shares; of
	// a process with several links, see memory.OfLink.
	// The process sets the limit of Go's runtime. Default 320 MiB; at least memory.MinLink.
	Memory int64

	// BatchOps and BatchBytes limit a batch. Defaults 5,000 and 100 MiB.
	BatchOps   int
	BatchBytes int64
	// Delay is how far behind the source the target is kept. Default 0.
	Delay time.Duration
	// SpillDir is the folder for large open transactions. Default: the system's folder
	// for temporary files.
	SpillDir string

	// Writers is the number of lanes. Default 16.
	Writers int
	// Relaxed applies the source's transactions as ordinary operations.
	Relaxed bool
	// ReportDivergence continues after a divergence.
	ReportDivergence bool
	// UniqueIndexes defaults to ddl.Relaxed.
	UniqueIndexes ddl.UniqueIndexes
	// FlushDocs, FlushBytes and CoalesceWindow limit one transaction of a writer; see
	// applier.Config.
	FlushDocs, FlushBytes, CoalesceWindow int
	// ShareOps and ShareRest are for the comparison of the shares of collections; see
	// applier.Config.
	ShareOps, ShareRest int
	// WindowBytes limits the bytes that writers have in flight. Default: a share of Memory.
	WindowBytes int64

	// CheckpointInterval is the minimum time between two checkpoints. Default 100 ms.
	CheckpointInterval time.Duration

	// CutInterval is the minimum time between two consistent cuts. Zero means that cuts are
	// made for Cut only.
	CutInterval time.Duration
	// OnCut is called with each cut that the target has confirmed; see applier.Config. May be
	// nil.
	OnCut func(checkpoint.Cut)
	// OnRepaired is called with documents that a repair has found the same on both sides at a cut; see
	// repair.Config. May be nil.
	OnRepaired func(ctx context.Context, ns oplog.Namespace, ids []bson.RawValue, cut *checkpoint.Cut) error

	// Guard is the reaction to foreign writes to the target. Empty means guard.Off.
	Guard guard.Mode

	// Feedback is how the link's progress is reported to the source. Default:
	// feedback.None.
	Feedback feedback.Mode
	// MemberID is the member to report as, for feedback.Member.
	MemberID int
	// KeepAlive is the maximum time between two reports; see feedback.Config.
	KeepAlive time.Duration

	// Lease says how this process gets and keeps the link's lease.
	Lease standby.Options

	// RetryMin and RetryMax limit the pause between two attempts, which doubles from
	// one to the next. Defaults 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// TooLargeFor is how long the target may refuse an operation, or a document of a copy, as too large for its storage
	// cache before the run ends. Default 10 min.
	TooLargeFor time.Duration

	// SetLogLevel sets the level of the log: debug, info, warn or error, empty for that of the
	// start. May be nil.
	SetLogLevel func(level string)
	// Verification compares the link continuously, nil if nothing does.
	Verification control.Verification

	// OnFlush is called with each flush that the target has acknowledged; see
	// applier.Config. May be nil.
	OnFlush func(ops int, wall bson.DateTime, at time.Time)

	Observer event.Observer
	Registry prometheus.Registerer

	// mirrorMember is the _id of the source's member that represents the mirror, -1 for
	// none.
	mirrorMember int
	// part, if not nil, says that the link is a part of another one.
	part *part
	// slots are shared with the parts of the link.
	slots *applier.IndexSlots
}

// Fingerprint is the hash of the settings that decide the target's content. They must
// not change while a link exists.
func (c *Config) Fingerprint() string {
	unique := "relaxed"
	if c.UniqueIndexes == ddl.Serialized {
		unique = "serialized"
	}
	return c.Scope.Fingerprint() + ";unique=" + unique
}

// SetDefaults replaces zero values by their defaults.
func (c *Config) SetDefaults() {
	def(&c.MetaDB, "replicator")
	c.mirrorMember = -1
	if c.Feedback == feedback.Member {
		c.mirrorMember = c.MemberID
	}
	def(&c.Await, 5*time.Second)
	// Nothing replicates from a mirror, so it cannot close a cycle.
	c.Rules.AcceptEqual = true
	def(&c.Memory, memory.Default)
	def(&c.BatchOps, 5000)
	def(&c.BatchBytes, 100<<20)
	def(&c.Writers, 16)
	def(&c.Guard, guard.Off)
	def(&c.UniqueIndexes, ddl.Relaxed)
	def(&c.CheckpointInterval, 100*time.Millisecond)
	c.Copy.SetDefaults()
	def(&c.RetryMin, 100*time.Millisecond)
	def(&c.RetryMax, 30*time.Second)
	def(&c.TooLargeFor, 10*time.Minute)
}

// Validate returns the faults of the settings.
func (c *Config) Validate() error {
	var errs []error
	if c.Link == "" {
		errs = append(errs, errors.New("link: a name is needed"))
	}
	if c.Scope == nil {
		errs = append(errs, errors.New("scope: missing"))
	}
	if c.Writers < 1 || c.Writers > 256 {
		errs = append(errs, fmt.Errorf("writers: %d is not from 1 to 256", c.Writers))
	}
	if c.Memory < memory.MinLink {
		errs = append(errs, fmt.Errorf("memory: %d bytes: want %d or more", c.Memory, memory.MinLink))
	}
	errs = append(errs, c.Copy.Validate(), c.Lease.Validate())
	if c.RelayBytes < 0 || c.RelayBytes > 0 && c.Copy.SpoolDir == "" {
		errs = append(errs, fmt.Errorf("relay log: %d bytes, and no folder for a spool", c.RelayBytes))
	}
	if c.CutInterval < 0 {
		errs = append(errs, fmt.Errorf("time between two cuts: %s is negative", c.CutInterval))
	}
	if c.Delay < 0 {
		errs = append(errs, fmt.Errorf("delay: %s is negative", c.Delay))
	}
	if c.RetryMin > c.RetryMax {
		errs = append(errs, fmt.Errorf("retry: the shortest pause, %s, is longer than the longest, %s", c.RetryMin, c.RetryMax))
	}
	return errors.Join(errs...)
}

// Stages configures the stages that apply the oplog of a link to its target, as far as the settings say how.
func (c *Config) Stages(link *checkpoint.Link, target mongo.Caller, scope resync.Scope, share memory.Shares) stages.Config {
	return stages.Config{
		Link: link, Target: target, Commands: c.commands(scope),
		Batcher: batcher.Config{
			MaxOps: c.BatchOps, MaxBytes: c.BatchBytes, Delay: c.Delay, SpillDir: c.SpillDir, MemoryBytes: share.Txn,
			Observer: c.Observer, Registry: c.Registry,
		},
		Applier: applier.Config{
			Scope: scope, Link: c.Link, Of: c.partOf(), Relaxed: c.Relaxed, ReportDivergence: c.ReportDivergence,
			FlushDocs: c.FlushDocs, FlushBytes: c.FlushBytes, CoalesceWindow: c.CoalesceWindow, ShareOps: c.ShareOps, ShareRest: c.ShareRest,
			IndexBuilds: c.Copy.IndexWorkers, IndexSlots: c.slots, WindowBytes: share.Window, OnFlush: c.OnFlush,
			Observer: c.Observer, Registry: c.Registry,
		},
		Checkpoint: checkpoint.CheckpointerConfig{Interval: c.CheckpointInterval},
	}
}

// partOf is the link that this one is a part of, empty for none.
func (c *Config) partOf() string {
	if c.part == nil {
		return ""
	}
	return c.part.link
}

// commands configures the ddl.Executor of the target.
func (c *Config) commands(scope resync.Scope) ddl.Config {
	whole := c.whole()
	return ddl.Config{
		Scope: scope, Names: whole.scope, MetaDB: c.MetaDB, Link: whole.link, Own: c.Link, UniqueIndexes: c.UniqueIndexes, Observer: c.Observer,
	}
}

// def sets *p to value if it is zero.
func def[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}
