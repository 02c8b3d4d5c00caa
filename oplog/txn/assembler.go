package txn

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// defaultMemoryBytes is the default memory budget for stored parts.
const defaultMemoryBytes = 64 << 20

// Config configures an Assembler.
type Config struct {
	// MemoryBytes bounds the memory of stored parts, in bytes, including those of
	// returned transactions that are not closed yet. Further parts are written to
	// files. Zero means defaultMemoryBytes. A closed transaction no longer counts,
	// but an operation of it that is still in use keeps its part in memory: the bound
	// is exact if Close is called after the last use. Bookkeeping is not included:
	// some hundred bytes per chain, and some tens per part in a file.
	MemoryBytes int64
	// SpillDir is the directory of these files. Empty means the system's directory
	// for temporary files.
	SpillDir string
	// ApplyAfter is the entry up to which everything was applied before; see Restarts
	// in the package's documentation. If the log does not have it, Add returns a
	// [*ResumeError]. Null means that the first entry added is the first to be
	// applied, and that no earlier chain extends past it.
	ApplyAfter oplog.OpTime
}

func (c *Config) setDefaults() {
	if c.MemoryBytes == 0 {
		c.MemoryBytes = defaultMemoryBytes
	}
	if c.SpillDir == "" {
		c.SpillDir = os.TempDir()
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.MemoryBytes < 0 {
		faults = append(faults, fmt.Errorf("memory for open transactions: %d bytes", c.MemoryBytes))
	}
	return errors.Join(faults...)
}

// Outcome tells the applier how to treat an entry.
type Outcome uint8

const (
	// Pass is an entry that is not part of a group: apply it as it is.
	Pass Outcome = iota + 1
	// Partial is a part of a transaction: nothing to apply yet.
	Partial
	// Committed is the end of a transaction, or all of it: apply Result.Txn.
	Committed
	// Aborted is the end of a transaction without effect: nothing to apply.
	Aborted
	// Past is any entry up to and including Config.ApplyAfter: nothing to apply.
	Past
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Pass:
		return "pass"
	case Partial:
		return "partial"
	case Committed:
		return "committed"
	case Aborted:
		return "aborted"
	case Past:
		return "past"
	}
	return "Outcome(" + strconv.Itoa(int(o)) + ")"
}

// Result is the result of adding an entry.
type Result struct {
	Outcome Outcome
	// FetchFrom is where reading has to start again once everything up to this entry
	// has been applied: at the entry itself, or at the first entry of the oldest
	// chain that is open after it. It is null before Config.ApplyAfter, where no
	// checkpoint can be taken.
	FetchFrom oplog.OpTime
	// InDoubt is set if a transaction is prepared and not ended after this entry. Its commit may
	// take effect, on the source, at the time of an entry before that of the commit.
	InDoubt bool
	// Txn is set for Committed only. The caller closes it.
	Txn *Transaction
	// Parts is the number of stored parts that an abort dropped: 0 if the transaction
	// had logged nothing.
	Parts int
	// Dropped is the number of unprepared transactions that were dropped because the
	// entry, whatever its outcome, shows that their session has moved on.
	Dropped int
}

// Assembler assembles transactions. Make one with New.
type Assembler struct {
	cfg      Config
	budget   *budget
	segments *segments
	err      error // the error of an earlier Add

	// first and last are the first and last entry added, null before the first.
	first, last oplog.OpTime
	// started is set once Config.ApplyAfter was added: later entries are to be
	// applied.
	started bool

	// byLast finds a chain by its last part's timestamp, which is unique in one
	// history; the term is compared afterwards.
	byLast map[bson.Timestamp]*chain
	// sessions has the chains of each session.
	sessions map[string][]*chain
	// oldest and newest are the ends of the list of open chains, ordered by start.
	// Chains start in log order, so a new one is always the newest.
	oldest, newest *chain
	// prepared is how many of them are prepared.
	prepared int
	// inMemory has the chains with parts in memory, the largest first.
	inMemory byMemory
}

// New returns an Assembler without open transactions. It does no I/O.
func New(cfg Config) (*Assembler, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("set up the assembly of transactions: %w", err)
	}
	return &Assembler{
		cfg: cfg, budget: &budget{limit: cfg.MemoryBytes},
		segments: &segments{dir: cfg.SpillDir, limit: segmentBytes},
		started:  cfg.ApplyAfter.IsNull(),
		byLast:   map[bson.Timestamp]*chain{}, sessions: map[string][]*chain{},
	}, nil
}

// Add processes the next entry of the log. The entry is not kept, except that a
// Transaction is a view into the bytes of the entry that completed it. The errors
// are those in the package's documentation; after an error every further Add
// returns it again.
func (a *Assembler) Add(e *oplog.Entry) (Result, error) {
	if a.err != nil {
		return Result{}, a.err
	}
	r, err := a.add(e)
	if err != nil {
		a.err = err
		return Result{}, err
	}
	return r, nil
}

func (a *Assembler) add(e *oplog.Entry) (Result, error) {
	// Compare the timestamps too: optimes of different terms are ordered by term
	// alone, but timestamps must ascend through the whole log.
	if !a.last.IsNull() && (oplog.CompareTimestamps(e.OpTime.TS, a.last.TS) <= 0 || e.OpTime.Before(a.last)) {
		return Result{}, fmt.Errorf("assemble transactions: entry %s after %s: %w", e.OpTime, a.last, ErrOutOfOrder)
	}
	if err := a.checkResume(e.OpTime); err != nil {
		return Result{}, err
	}
	if a.first.IsNull() {
		a.first = e.OpTime
	}
	a.last = e.OpTime

	r := Result{Outcome: Pass}
	var err error
	switch e.Command {
	case oplog.CommandApplyOps:
		r, err = a.applyOps(e)
	case oplog.CommandCommitTransaction:
		r, err = a.commit(e)
	case oplog.CommandAbortTransaction:
		r, err = a.abort(e)
	default:
		// All other entries stand alone.
	}
	if err != nil {
		return Result{}, err
	}
	if r.Dropped, err = a.moveOn(e); err != nil {
		return Result{}, err
	}
	if !a.started {
		r.Outcome = Past
		if r.Txn != nil {
			err = r.Txn.Close()
			r.Txn = nil
		}
		if !e.OpTime.Equal(a.cfg.ApplyAfter) {
			return r, err
		}
		a.started = true
		// A ghost has no operations, so no entry after ApplyAfter may continue it.
		maps.DeleteFunc(a.byLast, func(_ bson.Timestamp, c *chain) bool { return c.ghost })
	}
	r.FetchFrom, r.InDoubt = e.OpTime, a.prepared > 0
	if a.oldest != nil {
		r.FetchFrom = a.oldest.start
	}
	return r, err
}

// checkResume checks that the log contains Config.ApplyAfter. Comparing optimes
// alone is not enough: a later timestamp of an earlier term belongs to another
// history, and would be mistaken for applied.
func (a *Assembler) checkResume(at oplog.OpTime) error {
	want := a.cfg.ApplyAfter
	if a.started || at.Equal(want) || at.Before(want) && oplog.CompareTimestamps(at.TS, want.TS) < 0 {
		return nil
	}
	return &ResumeError{Want: want, Got: at}
}

// moveOn drops a session's unprepared transactions when the session starts a newer
// one. This is a second safeguard: after a failover the server ends such
// transactions by an abort. A prepared transaction is never dropped.
func (a *Assembler) moveOn(e *oplog.Entry) (dropped int, err error) {
	var old []*chain
	if len(a.sessions) == 0 || !e.HasSession() {
		return 0, nil
	}
	s := e.Session()
	for _, c := range a.sessionChains(&s) {
		if !c.prepared && c.txnNumber < s.TxnNumber {
			old = append(old, c)
		}
	}
	_, err = a.dropAll(old)
	return len(old), err
}

// find returns the chain that an entry continues by its link, which must not be
// null. It is a ghost if the chain started before the first entry added and must
// have ended up to Config.ApplyAfter.
func (a *Assembler) find(e *oplog.Entry, s *oplog.Session) (*chain, error) {
	c := a.byLast[s.PrevOpTime.TS]
	if c != nil && c.last.Equal(s.PrevOpTime) {
		return c, c.belongs(e, s)
	}
	if !a.started && s.PrevOpTime.Before(a.first) {
		return a.begin(e, s, true), nil
	}
	return nil, &BrokenChainError{OpTime: e.OpTime, Prev: s.PrevOpTime}
}

func (a *Assembler) applyOps(e *oplog.Entry) (Result, error) {
	group, err := e.ApplyOps()
	if err != nil {
		return Result{}, err
	}
	s := e.Session()
	isPart := group.Prepare || group.PartialTxn
	if !e.InTransaction() {
		if isPart {
			return Result{}, bad(e, "o", "a part of a transaction that does not link to the others")
		}
		return a.single(e, &s, &group)
	}
	var c *chain
	if !s.PrevOpTime.IsNull() && (!appliesAlone(e, &s, &group) || a.byLast[s.PrevOpTime.TS] != nil) {
		if c, err = a.find(e, &s); err != nil {
			return Result{}, err
		}
		if c.prepared {
			return Result{}, bad(e, "prevOpTime", "it continues %s, which is prepared and can only be committed or aborted", c.last)
		}
	}
	switch {
	case isPart:
		if c == nil {
			c = a.begin(e, &s, false)
		}
		return Result{Outcome: Partial}, a.extend(c, e, &group)
	case c == nil:
		return a.single(e, &s, &group)
	default:
		return a.finish(c, e, &group)
	}
}

// appliesAlone reports whether a group that links to another one is not the end of its chain. Grouped writes without a
// session, such as one insert of many documents (since 8.0), that do not fit into one entry are logged as several that
// link to each other: none of them is partial, and the last one has no count, which the end of a chain always has.
func appliesAlone(e *oplog.Entry, s *oplog.Session, group *oplog.ApplyOps) bool {
	return !group.Prepare && !group.PartialTxn && !group.HasCount && s.LSID == nil && !e.HasTxnNumber()
}

// single processes a group that is one entry.
func (a *Assembler) single(e *oplog.Entry, s *oplog.Session, group *oplog.ApplyOps) (Result, error) {
	if !a.started {
		return Result{Outcome: Past}, nil
	}
	c := chain{
		start: e.OpTime, flat: newFlattener(e),
		lsid: s.LSID, txnNumber: s.TxnNumber, hasTxnNumber: s.HasTxnNumber,
		store: store{budget: a.budget},
	}
	if err := c.take(group); err != nil {
		return Result{}, err
	}
	// A count in a client's command has no meaning: servers before 4.4 ignored it,
	// newer ones refuse it.
	if e.InTransaction() {
		if err := c.checkCount(e, group); err != nil {
			return Result{}, err
		}
	}
	t := c.transaction(e)
	t.tail = e.O
	return Result{Outcome: Committed, Txn: t}, nil
}

// finish ends an unprepared chain with its last part.
func (a *Assembler) finish(c *chain, e *oplog.Entry, group *oplog.ApplyOps) (Result, error) {
	if c.ghost {
		a.end(c)
		return Result{Outcome: Past}, nil
	}
	if err := c.take(group); err != nil {
		return Result{}, err
	}
	if err := c.checkCount(e, group); err != nil {
		return Result{}, err
	}
	a.end(c)
	t := c.transaction(e)
	t.tail = e.O
	return Result{Outcome: Committed, Txn: t}, nil
}

// commit ends a prepared chain.
func (a *Assembler) commit(e *oplog.Entry) (Result, error) {
	at, err := e.CommitTimestamp()
	s := e.Session()
	switch {
	case err != nil:
		return Result{}, err
	case !s.HasPrevOpTime || s.PrevOpTime.IsNull():
		return Result{}, bad(e, "prevOpTime", "a commit of no transaction")
	case oplog.CompareTimestamps(at, e.OpTime.TS) > 0:
		return Result{}, bad(e, "o.commitTimestamp", "it is %d:%d, later than its own entry", at.T, at.I)
	case oplog.CompareTimestamps(at, s.PrevOpTime.TS) < 0:
		return Result{}, bad(e, "o.commitTimestamp", "it is %d:%d, earlier than the prepared entry %s", at.T, at.I, s.PrevOpTime)
	}
	c, err := a.find(e, &s)
	switch {
	case err != nil:
		return Result{}, err
	case c.ghost:
		a.end(c)
		return Result{Outcome: Past}, nil
	case !c.prepared:
		return Result{}, bad(e, "prevOpTime", "a commit of %s, which is not prepared", c.last)
	}
	a.end(c)
	t := c.transaction(e)
	t.CommitTimestamp = at
	return Result{Outcome: Committed, Txn: t}, nil
}

// abort ends a chain without effect. The chain may be unknown: a transaction may
// have logged nothing, or may have started before the first entry added; in either
// case there is nothing to apply.
func (a *Assembler) abort(e *oplog.Entry) (Result, error) {
	r := Result{Outcome: Aborted}
	s := e.Session()
	if c := a.byLast[s.PrevOpTime.TS]; c != nil && s.HasPrevOpTime && c.last.Equal(s.PrevOpTime) {
		err := c.belongs(e, &s)
		if err == nil {
			r.Parts, err = a.drop(c)
		}
		return r, err
	}
	// The link finds no chain; the session may: the server's applier drops the parts
	// of the aborting session.
	var same []*chain
	for _, c := range a.sessionChains(&s) {
		switch {
		case c.txnNumber != s.TxnNumber:
		case c.prepared:
			return r, bad(e, "prevOpTime", "the abort of %s, prepared, links to %s", c.last, s.PrevOpTime)
		default:
			same = append(same, c)
		}
	}
	var err error
	r.Parts, err = a.dropAll(same)
	return r, err
}

// Bytes returns the memory of stored parts, in bytes, including those of returned
// transactions that are not closed yet.
func (a *Assembler) Bytes() int64 { return a.budget.used.Load() }

// Close drops all open transactions and frees their memory and files. Returned
// transactions are not affected. It is idempotent.
func (a *Assembler) Close() error {
	var faults []error
	for a.oldest != nil {
		_, err := a.drop(a.oldest)
		faults = append(faults, err)
	}
	if a.err == nil {
		a.err = ErrClosed
	}
	return errors.Join(faults...)
}
