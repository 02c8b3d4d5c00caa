package status

import (
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Snapshot is the state of a link at one moment. Unknown values are nil.
type Snapshot struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	At        time.Time `json:"at"`
	Link      string    `json:"link"`

	// Verdict is the state of the link in one sentence.
	Verdict Verdict `json:"verdict"`

	// State is the pipeline's, Since when it was entered, Reason why, where the
	// state alone does not say it.
	State  string    `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Consistent is false while the target is a copy that was taken while writes
	// went on, is not complete, or is one that the log has not caught up with.
	// ConsistentAt is the entry as of which it became consistent, nil if it is
	// not, or always was.
	Consistent   bool    `json:"consistent"`
	ConsistentAt *OpTime `json:"consistentAt,omitempty"`
	// Cut is the newest consistent cut: a time of the target at which it is the source as of an
	// entry. NoCut is the reason why there is no newer one, empty if none is known.
	Cut   *Cut   `json:"cut,omitempty"`
	NoCut string `json:"noCut,omitempty"`
	// CutIntervalSeconds is the minimum time between two cuts, 0 if they are made on request only.
	CutIntervalSeconds float64 `json:"cutIntervalSeconds"`
	// Guard has the foreign writes to the target, nil while this process does not lead.
	Guard *Guard `json:"guard"`
	// Cutover is the one that is under way, nil if none is known to be.
	Cutover *Cutover `json:"cutover"`
	// Back says which link this one is the way back of, nil if it is none, or while this process does
	// not lead.
	Back *Back `json:"back"`
	// LeftOut are the source's collections that are being copied again, or could not
	// be, and that the target is not consistent of meanwhile.
	LeftOut []LeftOut `json:"leftOut,omitempty"`
	// KeptBack are the target's collections that wait for an index build while the others
	// continue. The position of the link does not advance meanwhile.
	KeptBack []KeptBack `json:"keptBack,omitempty"`
	// LackingViews, LackingIndexes and LackingOptions could not be created on the target, or are
	// invalid on the source too. The target is consistent without them.
	LackingViews   []LackingView   `json:"lackingViews,omitempty"`
	LackingIndexes []LackingIndex  `json:"lackingIndexes,omitempty"`
	LackingOptions []LackingOption `json:"lackingOptions,omitempty"`
	// Deferred counts the options that the target gets at cutover only, nil if that is not known.
	Deferred *Deferred `json:"deferred"`
	// Attempts counts the attempts since the start, Term is the term of the
	// last.
	Attempts int   `json:"attempts"`
	Term     int64 `json:"term"`
	// Lease is nil if the link's lease has no end.
	Lease *Lease `json:"lease,omitempty"`

	Source  Source  `json:"source"`
	Target  Target  `json:"target"`
	OpTimes OpTimes `json:"optimes"`

	// ExactAt is the time, by this process's clock, as of which the target is known to be what
	// the source was; nil if it is not known, or the target is not consistent.
	ExactAt *time.Time `json:"exactAt"`
	// LagSeconds is how far the target is behind the source's commit point, as of
	// its last answer and by its clock; 0 if nothing was missing, nil if that answer is older
	// than an idle source's.
	LagSeconds *float64 `json:"lagSeconds"`
	// DelaySeconds is how far behind the source the target is kept on purpose. It is part of
	// the lag and of the age.
	DelaySeconds float64 `json:"delaySeconds"`
	// AgeOfOldestUnappliedSeconds is an upper bound of the time that the oldest
	// known unapplied entry has waited; 0 if there is none, nil if the source's last answer is
	// too old to say so.
	AgeOfOldestUnappliedSeconds *float64 `json:"ageOfOldestUnappliedSeconds"`
	// OplogWindowLeftSeconds is the part of the source's oplog that is older than
	// the position from which a restart would read, in seconds of its clock. It is
	// that of the sync source if known recently, else of the primary. At 0 the link
	// is stale.
	OplogWindowLeftSeconds *float64 `json:"oplogWindowLeftSeconds"`
	// OplogRolloverSeconds is how long it takes until the oldest entry passes that
	// position, at the pace at which it moves; nil where it does not move, or that
	// is not known.
	OplogRolloverSeconds *float64 `json:"oplogRolloverSeconds"`

	// LagTrend is how fast LagSeconds grows, in seconds per second, negative if it shrinks:
	// over the last two minutes. It is nil while that is not known.
	LagTrend *float64 `json:"lagTrend"`

	Latency Latency `json:"latency"`
	Rates   Rates   `json:"rates"`
	// Stages are the stages that an entry passes, in order.
	Stages []Stage `json:"stages"`
	// Bottleneck is nil if nothing waits to be applied, or it is not known.
	Bottleneck *Bottleneck `json:"bottleneck"`
	// Namespaces are those of the source that have most operations, at most a hundred, those that
	// are copied, and at most a hundred that are left out, copied again or kept back.
	// NamespacesRest sums up all others.
	Namespaces     []Namespace     `json:"namespaces"`
	NamespacesRest *NamespacesRest `json:"namespacesRest"`

	// Copy is the link's copy, nil where it has none.
	Copy *Copy `json:"copy,omitempty"`
	// Spool is the part of the log that is on disk, nil where there is none.
	Spool *Spool `json:"spool,omitempty"`
	// RelayOff is why there is no relay log although there is to be one.
	RelayOff string `json:"relayOff,omitempty"`

	Buffer     Buffer     `json:"buffer"`
	Applier    Applier    `json:"applier"`
	Checkpoint Checkpoint `json:"checkpoint"`
	Feedback   Feedback   `json:"feedback"`

	// Control has the settings and requests of operators, nil while this process does not lead.
	Control *Control `json:"control"`
	// Verified has the results of comparing source and target, nil while this process does not
	// lead, or has not read it.
	Verified *Verified `json:"verified"`
	// Diverged has the collections with operations that met what they cannot have met at the source, as far as the metadata know
	// them and nothing has made them exact again; nil while this process does not lead, or has not read it.
	Diverged *Diverged `json:"diverged"`
	// ReadyToCutover is whether the link could be cut over now, as far as this process knows it;
	// nil while it does not lead. replicator cutover --dry-run checks more.
	ReadyToCutover *Readiness `json:"readyToCutover"`

	// Waits are the commands that have waited for a reply for longer than five seconds, the
	// longest first.
	Waits []Wait `json:"waits"`
	// LastError is the error that ended the last attempt.
	LastError *Failure `json:"lastError"`
	// Problems are the warnings and errors since the start, one for each kind, the
	// newest first.
	Problems []Problem `json:"problems"`

	// silent is how long the source has not answered, in any attempt, and silentAfter how long
	// that may be; blocked is the time since which it is not asked, because the replies
	// read are not taken.
	silent, silentAfter time.Duration
	blocked             time.Time
	// noPrimary is for how long the member of the source that is read has known no primary, zero if it knows one.
	noPrimary time.Duration
	// targetSilent is the time since which the target answers nothing, zero if it does.
	targetSilent time.Time
	// loginRefused says which member of the source refuses the login, and how, empty if it does not.
	loginRefused string
	// metaDB is the metadata database of the target, empty if that is not known.
	metaDB string
	// unwell is whether /healthz is 503.
	unwell bool
	// failing is when the first attempt failed after which nothing was applied or copied,
	// stands is the standstill known to the pipeline, nil if there is none.
	failing time.Time
	stands  *monitor.Stands
}

// Lease is the link's lease, as this process sees it.
type Lease struct {
	// Role is leader, standby, or candidate while that is not known yet, or no process leads.
	Role string `json:"role"`
	// Process is the id of this process.
	Process string `json:"process"`
	// SecondsLeft is the time until this process stops using the lease unless it is
	// renewed, nil if it has none.
	SecondsLeft *float64 `json:"secondsLeft,omitempty"`
	// Leader is the process that leads while this one stands by. Since and Until are times
	// of the target's clock; Until moves with each renewal.
	Leader string     `json:"leader,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Why    string     `json:"why,omitempty"`
	// BlindSince is since when a process that waits for the lease cannot look at it, nil if it
	// can: it does not know whether it has to take over.
	BlindSince *time.Time `json:"blindSince,omitempty"`
	// The rest counts since the start of the process: how often it got the lease after another
	// one; its writes that the target refused because another process had acquired the lease;
	// renewals. LastRenewalSeconds is how long the last one took, nil if there was none.
	Takeovers          int64    `json:"takeovers"`
	FencedWrites       int64    `json:"fencedWrites"`
	Renewals           int64    `json:"renewals"`
	RenewalFailures    int64    `json:"renewalFailures"`
	LastRenewalSeconds *float64 `json:"lastRenewalSeconds"`
}

// Source is the state of the source.
type Source struct {
	Set string `json:"set"`
	// Host is the sync source, empty while there is none, and Why the reason
	// for choosing it, or for choosing none, at that time.
	Host string `json:"host"`
	Why  string `json:"why"`
	// HeardAt is the time of its last answer, DataAgeSeconds how long ago that
	// was.
	HeardAt        *time.Time `json:"heardAt"`
	DataAgeSeconds *float64   `json:"dataAgeSeconds"`
	// Refused are the members rejected in the last selection, Denied those that are
	// excluded for a while.
	Refused []Refused `json:"refused"`
	Denied  []Denied  `json:"denied"`
	// WritesBlocked is whether writes of users are blocked (setUserWriteBlockMode), nil if that is
	// not known.
	WritesBlocked *bool `json:"writesBlocked"`
}

// Refused is a member that was rejected.
type Refused struct {
	Host   string `json:"host"`
	Reason string `json:"reason"`
}

// Denied is a member that is excluded until then.
type Denied struct {
	Host   string    `json:"host"`
	Reason string    `json:"reason"`
	Until  time.Time `json:"until"`
}

// Target is the state of the target.
type Target struct {
	Set     string   `json:"set"`
	Primary string   `json:"primary"`
	Hosts   []string `json:"hosts"`
}

// Cut is a consistent cut, majority-committed on the target.
type Cut struct {
	// Source is the entry of the source up to which everything, and nothing later, is visible
	// on the target to a read with {level: "snapshot", atClusterTime: Target}.
	Source *OpTime `json:"source"`
	// Target is a cluster time of the target. Its Wall is when the cut was made, by the clock
	// of the process that made it.
	Target ClusterTime `json:"target"`
	// AgeSeconds is the time since then. The target refuses the read after
	// minSnapshotHistoryWindowInSeconds, which is 300 unless it was changed.
	AgeSeconds float64 `json:"ageSeconds"`
}

// ClusterTime is a time of a replica set's logical clock.
type ClusterTime struct {
	T    uint32    `json:"t"`
	I    uint32    `json:"i"`
	Wall time.Time `json:"wall"`
}

// KeptBack is a collection that waits for an index build.
type KeptBack struct {
	Namespace string `json:"namespace"`
	// Commit is the entry of the source that committed the build, Since when the current
	// attempt began to wait for it.
	Commit *OpTime   `json:"commit"`
	Since  time.Time `json:"since"`
}

// LeftOut is a collection that the link leaves out.
type LeftOut struct {
	Namespace string `json:"namespace"`
	// Since is the entry up to which the link had it.
	Since *OpTime `json:"since"`
	// Failed is why it could not be copied again; it is then not retried.
	Failed string `json:"failed,omitempty"`
}

// LackingView is a view of the source that the target does not have.
type LackingView struct {
	// Namespace is the source's; for a definition without a name, that of the
	// collection and its _id.
	Namespace string `json:"namespace"`
	Why       string `json:"why"`
}

// LackingIndex is an index of the source that the target does not have.
type LackingIndex struct {
	// Namespace is the target's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// LackingOption is an option of a source's collection, such as its validator, that the target's does not have.
type LackingOption struct {
	// Namespace is the target's.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Deferred counts indexes and collections that get options at cutover only, or that do not exist
// until then.
type Deferred struct {
	Indexes     int `json:"indexes"`
	Collections int `json:"collections"`
}

// OpTimes are the positions of the stages.
type OpTimes struct {
	// Fetched is the last entry that was read in this attempt.
	Fetched *OpTime `json:"fetched"`
	// Applied is up to where everything that is mirrored is acknowledged by the
	// target, Durable up to where it is committed by its majority: null while the
	// target is not consistent, and no further than where a collection was left out.
	Applied *OpTime `json:"applied"`
	Durable *OpTime `json:"durable"`
	// LogApplied is the optime up to which the log was applied to the existing
	// data.
	LogApplied *OpTime `json:"logApplied"`
	// SourceNewest is the sync source's lastApplied, SourceCommitted the commit
	// point that it knows.
	SourceNewest    *OpTime `json:"sourceNewest"`
	SourceCommitted *OpTime `json:"sourceCommitted"`
	// CopiedUntil is where the target becomes consistent, nil where it always was.
	CopiedUntil *OpTime `json:"copiedUntil,omitempty"`
}

// OpTime is an optime.
type OpTime struct {
	// T is in seconds since the epoch, I counts within it.
	T    uint32 `json:"t"`
	I    uint32 `json:"i"`
	Term int64  `json:"term"`
	// Wall is the clock of the primary that wrote it.
	Wall *time.Time `json:"wall,omitempty"`
}

// opTime returns nil for the null optime. wall is in milliseconds since the epoch,
// 0 where it is not known.
func opTime(o oplog.OpTime, wall int64) *OpTime {
	if o.IsNull() {
		return nil
	}
	t := &OpTime{T: o.TS.T, I: o.TS.I, Term: o.Term}
	if wall != 0 {
		at := time.UnixMilli(wall).UTC()
		t.Wall = &at
	}
	return t
}

// Buffer is the state of the buffer: entries fetched and not applied.
type Buffer struct {
	Bytes      int64 `json:"bytes"`
	LimitBytes int64 `json:"limitBytes"`
	// Count is the number of replies that wait to be cut into batches.
	Count            int     `json:"count"`
	OldestAgeSeconds float64 `json:"oldestAgeSeconds"`
	// Full is true while reading waits for room.
	Full bool `json:"full"`
}

// Applier counts the operations on the target since the start. Operations
// repeated by another attempt count again.
type Applier struct {
	Writers    int   `json:"writers"`
	OpsApplied int64 `json:"opsApplied"`
	// OpsPerSecond is the mean of the last ten seconds.
	OpsPerSecond *float64 `json:"opsPerSecond"`
	Flushes      int64    `json:"flushes"`
	Coalesced    int64    `json:"coalesced"`
	Commands     int64    `json:"commands"`
	Barriers     int64    `json:"barriers"`
	Divergences  int64    `json:"divergences"`
	DeletesEmpty int64    `json:"deletesEmpty"`
	Retries      int64    `json:"retries"`
	// Skipped were already in the target.
	Skipped int64 `json:"skipped"`
}

// Checkpoint is the position from which a restart resumes.
type Checkpoint struct {
	// Applied is up to where everything that is mirrored is in the target, as
	// OpTimes.Durable.
	Applied   *OpTime `json:"applied"`
	FetchFrom *OpTime `json:"fetchFrom"`
	// At is when it was written, nil if that was before the start.
	At *time.Time `json:"at"`
}

// Feedback is the state of reporting to the source.
type Feedback struct {
	// Mode is none, member or document.
	Mode string `json:"mode"`
	// State is off, waiting for the first report, reporting, or failing.
	State string `json:"state"`
	// Host is the member reported to, Since when it has accepted or refused
	// reports.
	Host  string     `json:"host,omitempty"`
	Since *time.Time `json:"since,omitempty"`
	Error string     `json:"error,omitempty"`
	// Hint says what to do about an error that does not pass by itself.
	Hint string `json:"hint,omitempty"`
}

// Wait is a command that has had no reply for long.
type Wait struct {
	// Side is source or target, Host the member, empty for the primary.
	Side      string    `json:"side"`
	Host      string    `json:"host,omitempty"`
	Command   string    `json:"command"`
	Namespace string    `json:"namespace"`
	Since     time.Time `json:"since"`
	// For is the reason why it waits, as far as that is known. Expected is true for what takes
	// long by its nature, such as an index build.
	For      string `json:"for,omitempty"`
	Expected bool   `json:"expected,omitempty"`
}

// Failure is an error.
type Failure struct {
	At    time.Time `json:"at"`
	Error string    `json:"error"`
}

// Problem is one kind of warning or error.
type Problem struct {
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Count   int       `json:"count"`
	FirstAt time.Time `json:"firstAt"`
	LastAt  time.Time `json:"lastAt"`
	// Fields are those of the last one.
	Fields map[string]string `json:"fields"`
}
