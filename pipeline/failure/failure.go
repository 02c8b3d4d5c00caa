// Package failure classifies the errors of a link's run: whether the run retries, or ends with which exit
// code and which advice to the operator. docs/errors.md is generated from its rules.
//
// A server's error has a kind first (package servererr); the rules here map kinds and the errors of the
// stages to actions.
package failure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// Action is a run's reaction to an error.
type Action uint8

const (
	// Retry starts a new attempt, after a pause.
	Retry Action = iota + 1
	// Resync ends the run: the oplog alone cannot bring the target forward.
	Resync
	// Exit ends the run for another reason.
	Exit
)

// String returns the action's name.
func (a Action) String() string {
	return [...]string{"none", "retry", "resync", "exit"}[a]
}

// The exit codes that a run can end with, as in docs/exit-codes.md.
const (
	ExitUnexpected  = 1
	ExitFenced      = 5
	ExitResync      = 6
	ExitDiverged    = 7
	ExitConnect     = 8
	ExitCheck       = 9
	ExitNotDrained  = 10
	ExitUnsupported = 11
)

// Class is a run's reaction to an error.
type Class struct {
	Action Action
	// Code is the exit code, for Resync and Exit.
	Code int
	// Hint is advice to the operator, for Resync and Exit.
	Hint string
}

// ErrStopped is the cause of a context that ends a run at once.
var ErrStopped = errors.New("stopped before everything was applied; nothing is lost, the next start resumes from the checkpoint")

const (
	resyncHint = "The oplog alone cannot bring the target up to date. Copy again: a new --link with --drop-existing. " +
		"First give the source a larger oplog."
	foreignHint = "Stop what writes there. Then start the link with --guard=alarm and copy the namespaces again (replicator resync), " +
		"or say that they are as they should be (replicator guard --clear)."
	divergedHint = "Something else writes to the target, or it was not an exact copy. Compare source and target; " +
		"--on-divergence=report continues and reports each case."
)

// TooLargeError reports an operation of the oplog, or a document of a copy, that the target's storage cache is too small for.
type TooLargeError struct {
	// Tried is how long it was refused.
	Tried time.Duration
	// Err names it.
	Err error
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("a write is too large for the storage cache of the target, which has refused it for %s: %v", e.Tried.Round(time.Second), e.Err)
}

// Unwrap returns the error of the last try.
func (e *TooLargeError) Unwrap() error { return e.Err }

// rules are tried in order; the first match decides.
var rules = []struct {
	name  string
	fits  func(error) bool
	class Class
}{
	{"stopped", is(ErrStopped), Class{Action: Exit, Code: ExitNotDrained, Hint: "Start it again with the same link: it resumes from the checkpoint."}},
	{"another process took over", is(lease.ErrFenced), Class{Action: Exit, Code: ExitFenced, Hint: "Another process runs this link now. Start this one without --once to stand by, or with --takeover to take the link back."}},
	{"another process has the lease", is(lease.ErrHeld), Class{Action: Exit, Code: ExitFenced, Hint: "Start it without --once to stand by, or with --takeover to take the link over at once."}},
	{"lease not renewed in time", is(lease.ErrExpired), Class{Action: Retry}},
	{"target lost acknowledged writes", is(lease.ErrRewound), Class{Action: Retry}},
	{"reply of a former primary of the target", is(lease.ErrBehind), Class{Action: Retry}},
	{"target has a write whose outcome was unknown", is(checkpoint.ErrAhead), Class{Action: Retry}},
	{"oplog ends before the last announced write", is(applier.ErrLogIncomplete), Class{Action: Retry}},
	{"write that acquires the lease not sent in time", is(mongo.ErrTooLate), Class{Action: Retry}},
	{"number of writers changed, or a copy began", is(lease.ErrSpent), Class{Action: Retry}},
	{"source is another replica set", is(checkpoint.ErrOtherSource), Class{Action: Resync, Code: ExitResync, Hint: "Check --source and --link: the link belongs to another replica set."}},
	{"link was promoted", wasPromoted, Class{Action: Exit, Code: ExitResync, Hint: "Do not mirror that source into this target any more. replicator rewind lists what only the source has; then a new link with --drop-existing, from this target to it, copies it again."}},
	{"target is not consistent, or leaves collections out", cannotPromote, Class{Action: Exit, Code: ExitCheck, Hint: "Such a target is not the source at any time. --accept-left-out promotes it without the collections that are named."}},
	{"link was cut over, with a way back", hasWayBack, Class{Action: Exit, Code: ExitResync, Hint: "Do not mirror that source into this target any more. The way back needs no copy: replicator run --start-at=cutover, with a new --link, and with --source and --target exchanged. replicator cutover --link, of this link, prints the command."}},
	{"link was cut over", as[*checkpoint.OverError], Class{Action: Exit, Code: ExitResync, Hint: "Do not mirror that source into this target any more. To mirror in the other direction make a new link, with a new copy."}},
	{"cutover converts the deferred options", as[*checkpoint.ConvertingError], Class{Action: Exit, Code: ExitFenced, Hint: "Go on with the cutover, or take it back: replicator cutover --resume, or --cancel. Without --once this process waits for that."}},
	{"link created concurrently", is(checkpoint.ErrExists), Class{Action: Retry}},
	{"link was removed", is(checkpoint.ErrRemoved), Class{Action: Exit, Code: ExitCheck, Hint: "Start it again only if nothing uses the target: it then creates the link, and copies as its settings say."}},
	{"settings differ from the link's", is(checkpoint.ErrSettings), Class{Action: Exit, Code: ExitCheck, Hint: "Use the settings that the link was created with, or a new --link with a new copy."}},
	{"metadata of another release", as[*checkpoint.VersionError], Class{Action: Exit, Code: ExitCheck, Hint: "Use the release that wrote the link, or a newer one."}},
	{"document routing of another release", as[*checkpoint.RoutingError], Class{Action: Exit, Code: ExitCheck, Hint: "Start the previous release once more and stop it with one SIGTERM (it ends with 0). Then start this one."}},
	{"metadata damaged", as[*metadata.DamagedError], Class{Action: Resync, Code: ExitResync, Hint: resyncHint}},
	{"start point is older than the oplog", is(replset.ErrTooOld), Class{Action: Resync, Code: ExitResync, Hint: "Choose a later --start-at with a newer copy, or give the source a larger oplog."}},

	{"newest oplog entry is older than at the last start", as[*replset.WentBackError], Class{Action: Retry}},

	{"ten void copies", is(initialsync.ErrCopies), Class{Action: Resync, Code: ExitResync, Hint: "The message and the log say why the copies failed. Start it again with the same link for another ten."}},
	{"void copy", initialsync.Void, Class{Action: Retry}},
	{"no member can continue the copy at present", is(initialsync.ErrNoMember), Class{Action: Retry}},
	{"member that is copied restarted, rolled back or was resynced", as[*origin.ChangedError], Class{Action: Retry}},
	{"feature compatibility version is changing, or unknown", as[*origin.FCVError], Class{Action: Retry}},
	{"member cannot be copied at present", is(origin.ErrState), Class{Action: Retry}},
	{"start of a copy not majority-committed", is(origin.ErrUncommitted), Class{Action: Retry}},
	{"no spool", is(initialsync.ErrNoSpool), Class{Action: Exit, Code: ExitCheck, Hint: "Give --spool-dir, preferably the directory with which the copy was started: its entries need not be read again."}},
	{"spool in use", is(spool.ErrInUse), Class{Action: Retry}}, // by the process that this one has just fenced
	{"spool without room at the start", as[*spool.FullError], Class{Action: Exit, Code: ExitCheck, Hint: "Give it more room, with --spool-bytes or on its disk, and start the link again: it resumes."}},
	{"spool cannot be read at present", as[*spool.ReadError], Class{Action: Retry}}, // opening it again tells whether it can be
	{"spool damaged", as[*spool.DamagedError], Class{Action: Retry}},

	{"no member's oplog reaches back to the link's position", as[*syncsource.TooStaleError], Class{Action: Resync, Code: ExitResync, Hint: resyncHint}},
	{"no member to read from", is(syncsource.ErrNoSource), Class{Action: Retry}},
	{"oplog history diverged from the link's", is(fetcher.ErrOtherHistory), Class{Action: Resync, Code: ExitResync, Hint: resyncHint}},
	{"checkpoint's entry is not in the oplog", as[*txn.ResumeError], Class{Action: Resync, Code: ExitResync, Hint: resyncHint}},
	{"transaction without its first entry", as[*txn.BrokenChainError], Class{Action: Resync, Code: ExitResync, Hint: resyncHint}},

	{"collection must be copied", as[*ddl.ResyncError], Class{Action: Resync, Code: ExitResync, Hint: "Give --spool-dir: the link then copies that collection. Or change the filters so that it is mirrored from the start."}},
	{"target diverged, found by a DDL command", as[*ddl.DivergedError], Class{Action: Exit, Code: ExitDiverged, Hint: divergedHint}},
	{"target diverged", as[*applier.DivergenceError], Class{Action: Exit, Code: ExitDiverged, Hint: divergedHint}},
	{"foreign write to the target, with --guard=stop", as[*guard.ForeignError], Class{Action: Exit, Code: ExitDiverged, Hint: foreignHint}},
	{"unique index of the target refuses a write", as[*applier.UniqueError], Class{Action: Exit, Code: ExitDiverged, Hint: "Drop the index on the target, or make it not unique, until cutover; or use --unique-indexes=serialized."}},
	{"unique index of the target refuses a copied document", as[*clone.UniqueError], Class{Action: Exit, Code: ExitDiverged, Hint: "Drop the index on the target, or let the copy create its collections itself: --drop-existing."}},
	{"unique index cannot be created", as[*ddl.UniqueError], Class{Action: Exit, Code: ExitDiverged, Hint: "Remove the documents that only the target has, or start a new link with --unique-indexes=relaxed."}},
	{"index that cannot be built", as[*ddl.IndexError], Class{Action: Exit, Code: ExitDiverged, Hint: "Remove what prevents the target from building that index, or drop the index at the source."}},
	{"options of a collection that the target does not accept", as[*ddl.OptionError], Class{Action: Exit, Code: ExitUnsupported, Hint: "Upgrade the target, or raise its feature compatibility version, and start again: the link resumes there. Otherwise change them at the source, or exclude the collection, in a new link with a new copy."}},
	{"name that the target does not accept", as[*ddl.NameError], Class{Action: Exit, Code: ExitUnsupported, Hint: "If the target has a database whose name differs in case only, drop that if it is not needed, also if it is empty and not listed, and start again: the link resumes there. Otherwise give it another, or a shorter, name with --map, in a new link with a new copy."}},
	{"I/O error in the spill directory", as[*txn.SpillError], Class{Action: Exit, Code: ExitUnexpected, Hint: "Give --spill-dir a disk with room; nothing is lost."}},

	{"member without a configuration of its set", is(replset.ErrNoConfig), Class{Action: Retry}},
	{"member with an empty oplog", is(replset.ErrEmptyOplog), Class{Action: Retry}},
	{"member with an unreadable optime", is(replset.ErrOpTime), Class{Action: Retry}},
	{"entry not supported", as[*oplog.EntryError], Class{Action: Exit, Code: ExitUnsupported, Hint: "This release does not support that entry. Nothing after it was applied; a newer release may support it."}},

	{"login refused", as[*driver.AuthError], Class{Action: Exit, Code: ExitConnect, Hint: "Check user name, password, authSource and the TLS files."}},
	{"privilege missing", kind(servererr.Auth), Class{Action: Exit, Code: ExitConnect, Hint: "Grant what the message names; docs/privileges.md lists what each side needs."}},
	{"no reply from a server", kind(servererr.Lost), Class{Action: Retry}},
	{"outcome of a write unknown", kind(servererr.Unconfirmed), Class{Action: Retry}},
	{"operation or document too large for the target's storage cache, for 10 min", as[*TooLargeError], Class{Action: Exit, Code: ExitUnsupported, Hint: "Give the target's members a larger storage cache, or raise their parameter transactionTooLargeForCacheThreshold, and start again: the link, or its copy, resumes there."}},
	{"conflict that lasts for 30 s", as[*applier.StuckError], Class{Action: Retry}},
	{"document that the target refuses", as[*clone.RefusedError], Class{Action: Exit, Code: ExitUnsupported, Hint: "The message says why. Change that document at the source, or exclude its collection, and start again: the copy resumes."}},
	{"temporary error of a server", passes, Class{Action: Retry}},
	{"time limit exceeded", is(context.DeadlineExceeded), Class{Action: Retry}},
}

// Transient reports whether a run retries after an error.
func Transient(err error) bool { return Classify(err).Action == Retry }

// Passing reports whether an error is transient, and a retry may help at once: not if no server could be selected, as the
// driver has waited for one already.
func Passing(err error) bool {
	lost, ok := errors.AsType[*mongo.LostError](err)
	return (!ok || lost.Host != "") && Transient(err)
}

// unexpected is the class of errors that no rule names.
var unexpected = Class{Action: Exit, Code: ExitUnexpected, Hint: "Only what the checkpoint covers counts as applied. If the message makes no sense, report it."}

// Classify returns the class of an error: how a run reacts to it. No other place decides this.
func Classify(err error) Class {
	for _, r := range rules {
		if r.fits(err) {
			return r.class
		}
	}
	return unexpected
}

// Unexplained reports whether a run that ends with err may make some more attempts: a server refused a command for a
// reason that says nothing of it, and the next attempt examines what effect the command had. An operation of the
// oplog that was refused alone will be refused again.
func Unexplained(err error) bool {
	_, refused := errors.AsType[*applier.OpError](err)
	return !refused && servererr.IsUnexplained(err) && Classify(err) == unexpected
}

// Retries reports whether another attempt follows one that ended with err, of a process that was
// authorized before or not.
func Retries(err error, authorized, part bool) bool {
	switch {
	case Transient(err):
		return true
	case isLogin(err):
		return authorized
	}
	// A link ends, so that the process can be restarted. A part would have to start
	// from the beginning.
	return part && isLocal(err)
}

// wasPromoted reports whether a link has ended because its source was gone.
func wasPromoted(err error) bool {
	over, ok := errors.AsType[*checkpoint.OverError](err)
	return ok && over.Over.Promoted != nil
}

// hasWayBack reports whether a link has ended, and one in the other direction may begin without a copy.
func hasWayBack(err error) bool {
	over, ok := errors.AsType[*checkpoint.OverError](err)
	return ok && over.Over.Reverse != nil
}

// cannotPromote reports whether a target is not the source at any time.
func cannotPromote(err error) bool {
	return errors.Is(err, initialsync.ErrNotCopied) || errors.Is(err, resync.ErrLeavesOut)
}

// isLogin reports whether a login was refused. A server that cannot read its users
// returns the same error: during a rollback, an initial sync, or its shutdown.
func isLogin(err error) bool {
	_, ok := errors.AsType[*driver.AuthError](err)
	return ok
}

// isLocal reports whether err is a fault of this machine's disks: full, or missing.
func isLocal(err error) bool {
	return as[*spool.FullError](err) || as[*txn.SpillError](err) || as[*fs.PathError](err) || as[*os.SyscallError](err)
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}

// kind returns a function that reports whether an error is of a kind.
func kind(want servererr.Kind) func(error) bool {
	return func(err error) bool { return servererr.Classify(err) == want }
}

// passes reports whether a server refused for a transient reason.
func passes(err error) bool { return servererr.Classify(err).Passes() }
