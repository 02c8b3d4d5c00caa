package fetcher

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// The server's own numbers, and the bounds that it sets.
const (
	defaultAwait    = 5 * time.Second
	longestAwait    = 30 * time.Second
	defaultFind     = time.Minute
	defaultRefind   = 2 * time.Second
	defaultNetwork  = 5 * time.Second
	defaultRestarts = 1
	// defaultBatchSize is more than fits in a reply of 16 MiB.
	defaultBatchSize = 13981013
)

// Config says how a member is read.
type Config struct {
	// AwaitTime is how long the member waits for new entries before it sends an
	// empty reply. Zero means 5 s; the server's rule is half of the set's election
	// timeout, 30 s at most.
	AwaitTime time.Duration
	// FindTime is the limit of the first find's execution, RefindTime that of a
	// cursor that is opened again. Zero means 60 s and 2 s.
	FindTime, RefindTime time.Duration
	// NetworkTime is how long after the time that a command has its answer may begin
	// to come in, and how long nothing of it may come then; after that it is lost.
	// Zero means 5 s.
	NetworkTime time.Duration
	// Restarts is how often in a row a cursor may be opened again. Zero means 1,
	// negative means never.
	Restarts int
	// BatchSize is how many entries a reply may have. Zero means as many as fit.
	BatchSize int32
	// SmallPause is the pause after a reply of less than 40,000 bytes, so that a
	// busy source is not asked for each entry. Zero means none. A server's own
	// fetcher pauses for 2 ms where replies are not streamed to it; every entry is
	// then later by up to that.
	SmallPause time.Duration
	// RequireFresher refuses a member that has nothing after the entry that
	// reading starts from.
	RequireFresher bool
	// ReplicaSetID is the id that the source's set must have. Zero means that of
	// the first reply.
	ReplicaSetID bson.ObjectID
}

func (c *Config) setDefaults() {
	setDefault(&c.AwaitTime, defaultAwait)
	setDefault(&c.FindTime, defaultFind)
	setDefault(&c.RefindTime, defaultRefind)
	setDefault(&c.NetworkTime, defaultNetwork)
	setDefault(&c.Restarts, defaultRestarts)
	setDefault(&c.BatchSize, defaultBatchSize)
}

func setDefault[V comparable](to *V, v V) {
	var zero V
	if *to == zero {
		*to = v
	}
}

func (c *Config) validate() error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf("fetcher: "+format, args...))
		}
	}
	fault(c.AwaitTime < time.Millisecond || c.AwaitTime > longestAwait, "an await time of %s: want 1ms to %s", c.AwaitTime, longestAwait)
	fault(c.FindTime < time.Millisecond, "a find time of %s: want 1ms or more", c.FindTime)
	fault(c.RefindTime < time.Millisecond, "a find time of %s for cursors opened again: want 1ms or more", c.RefindTime)
	fault(c.NetworkTime < 0, "a network time of %s", c.NetworkTime)
	fault(c.SmallPause < 0, "a pause of %s", c.SmallPause)
	fault(c.BatchSize < 0, "a batch size of %d", c.BatchSize)
	return errors.Join(faults...)
}

// Decision is what the owner makes of a reply.
type Decision int

const (
	// GoOn hands the reply on and reads further.
	GoOn Decision = iota
	// StopAfter hands the reply on and ends.
	StopAfter
	// StopBefore ends without handing on anything of the reply.
	StopBefore
)

// Deps is what a Fetcher works with. All of it may be nil.
type Deps struct {
	// OnReply is told of every reply, empty ones too, once it has passed the
	// checks and before its entries are handed on: here it is decided whether
	// another member would be better. It must not block.
	OnReply func(Metadata) Decision
	// OnError is told of an error before the cursor is opened again, and says
	// whether to leave the member instead. It must not block.
	OnError func(host string, err error) (leave bool)

	Observer event.Observer
	Registry prometheus.Registerer
}

// Metadata is what a member says of itself and its set in a reply.
type Metadata struct {
	// Host is the member.
	Host string
	// First tells that the reply is the first of its cursor.
	First bool
	// Entries is how many entries the reply has, the one that was asked for as
	// proof not counted; LastFetched is the last entry that was read, with this
	// reply.
	Entries     int
	LastFetched oplog.OpTime

	// Term is the member's election term.
	Term int64
	// ConfigVersion and ConfigTerm name the set's configuration.
	ConfigVersion, ConfigTerm int64
	// ReplicaSetID is the set's, zero where the server does not tell.
	ReplicaSetID bson.ObjectID
	// IsPrimary tells whether the member is the primary.
	IsPrimary bool
	// Committed is the commit point as the member knows it, CommittedWall its
	// primary's clock, in milliseconds since the epoch.
	Committed     oplog.OpTime
	CommittedWall bson.DateTime
	// Applied is the last entry that the member has applied.
	Applied oplog.OpTime
	// RBID is the member's rollback id.
	RBID int64
	// PrimaryIndex and SyncSourceIndex are places in the configuration's members
	// of the primary and of whom the member reads from, -1 for none.
	PrimaryIndex, SyncSourceIndex int64
	// SyncSourceHost is whom the member reads from, ":27017" for none.
	SyncSourceHost string
}
