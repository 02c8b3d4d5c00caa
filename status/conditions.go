package status

import (
	"math"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// condition is a row of the table that verdicts, health and docs/troubleshooting.md
// share.
type condition struct {
	name  string
	level Level
	// holds returns the sentence that describes it, empty if it does not hold, and since
	// when it does, zero if that is not known.
	holds symptom
	// window adds how long the source's oplog lasts to the verdict.
	window bool
	// next says what can be done, nil for nothing.
	next func(*Snapshot) string
	// unwell reports that /healthz is 503, for a condition that holds; nil for never.
	unwell func(*Snapshot) bool
	// means explains it, in docs/troubleshooting.md.
	means string
}

const (
	// silentSoon is how long the source may be silent without being mentioned, if the pipeline
	// does not know better. An idle source answers every five seconds.
	silentSoon = 8 * time.Second
	// targetSoon is how long the target may answer nothing without being mentioned: it is asked
	// something every second.
	targetSoon = 7 * time.Second
	// clockOff is how far the clocks of the source and of this machine may be apart.
	clockOff = 5 * time.Second
	// spoolSlow is how long the spool may take to store a reply.
	spoolSlow = 5 * time.Second
	// stuckGrace is how long attempts may fail without anything applied in between.
	stuckGrace = time.Minute
	// stalledAfter is how long nothing may be applied although there is something to apply,
	// and stalledGrace how long that counts as healthy.
	stalledAfter = 30 * time.Second
	stalledGrace = 2 * time.Minute
	forEver      = time.Duration(math.MaxInt64)
)

// conditions are tried in this order. The first that holds is the verdict.
var conditions = []condition{
	{
		name: "failed", level: Broken, holds: inState(monitor.Failed, "Ended with an error"), unwell: always,
		next:  says("Do what the error says. docs/exit-codes.md says when to start it again."),
		means: "The run has ended. The error says what failed and on what, and the exit code whether to restart. The target has everything up to the checkpoint.",
	},
	{
		name: "stale", level: Broken, holds: inState(monitor.Stale, "The oplog alone cannot bring the target up to date"), unwell: always,
		next:  says("replicator run --link NEW --drop-existing … copies everything again; give the source a larger oplog first."),
		means: "No member of the source has the entry from which the link resumes, or the link's metadata are unusable. The reason names what may help without a copy: a member that is down and still has the entry, another `--source`.",
	},
	{
		name: "oplog-gone", level: Broken, holds: oplogGone, unwell: always,
		next:  says("Keep the process running; do not stop or restart it. Give the source a larger oplog."),
		means: "The source has deleted the entry from which a restart would read. While this process runs it may still have what follows; once it ends, everything has to be copied again.",
	},
	{
		name: "resync-failed", level: Broken, holds: resyncFailed, unwell: always,
		next: func(s *Snapshot) string {
			return s.command("resync", "--namespace", s.failedCollections()[0])
		},
		means: "A collection could not be copied again. It stays left out and the position of the link does not advance, so that the source's oplog may roll over. Remove the cause, then request the resync again.",
	},
	{
		name: "source-gone", level: Broken, window: true, holds: silentFor(silentGrace, forEver), unwell: always,
		next:  sourceMembers,
		means: "No member of the source has answered for more than a minute. The link looks for one all the time and continues by itself, if that takes no longer than the source's oplog lasts.",
	},
	{
		name: "source-silent", level: Unknown, window: true, holds: silentFor(0, silentGrace), next: sourceLogin,
		means: "The source usually answers every few seconds, also when it is idle. What it has written since its last answer, and so the lag, is not known. If its members refuse the login, the sentence says so, and the next step is to check that.",
	},
	{
		name: "source-no-primary", level: Unknown, window: true, holds: noPrimary, next: sourceMembers, unwell: noPrimaryForLong,
		means: "The member of the source that is read answers, and knows no primary: the set elects one, has lost its majority, or that member is cut off from it. While there is no primary nothing is written; but a member that is cut off does not know what the others have, so that the lag is not known. Nothing is lost: the link reads on, and from another member as soon as one is better.",
	},
	{
		name: "standby-blind", level: Unknown, holds: blind, unwell: blindForLong,
		next:  says("Check the target and the network to it."),
		means: "A process that stands by cannot read the lease in the target: it does not know which process leads, and would not take over.",
	},
	{
		name: "standby-free", level: Working, holds: standsBy(false),
		means: "No process has the link's lease now. This process takes it within seconds, or leaves it for a while to the one that has the spool.",
	},
	{
		name: "standby", level: Good, holds: standsBy(true),
		means: "Another process has the link's lease and does the work. This one takes over if the lease ends. It does not know the target's position: ask the leader.",
	},
	{
		name: "target-gone", level: Broken, window: true, holds: targetSilentFor(silentGrace, forEver), unwell: always,
		next:  says("Check the target's members, and the network to them. A restart of this process does not help."),
		means: "The target has answered no command for more than a minute. Entries read from the source go to the spool, if there is one, and the link continues by itself once the target answers, if that takes no longer than the source's oplog lasts.",
	},
	{
		name: "target-silent", level: Attention, window: true, holds: targetSilentFor(targetSoon, silentGrace),
		next:  says("Check the target's members, and the network to them."),
		means: "The link sends the target a command every second, and has had no reply for a while. Nothing is lost; nothing is applied meanwhile, and the lease ends, so that a process that reaches the target may take over.",
	},
	{
		name: "starting-long", level: Broken, window: true, holds: starting(startingGrace, forEver), unwell: always,
		next:  says("Repair what the reason names. A restart of this process does not help."),
		means: "An attempt has not begun to read for a minute: it cannot acquire the lease, cannot reach a server, or finds no member of the source to read from.",
	},
	{
		name: "no-progress", level: Broken, window: true, holds: retrying(stuckGrace, forEver), unwell: always,
		next:  unblocksOr("Repair what the error names. A restart of this process does not help."),
		means: "Attempts have failed for more than a minute, and nothing was applied or copied in between. The link tries again with a pause of at most 30 s.",
	},
	{
		name: "retrying", level: Working, window: true, holds: retrying(0, stuckGrace),
		next:  unblocksOr(""),
		means: "An attempt ended with a transient error, such as an election or a lost connection. The next one has not applied anything yet.",
	},
	{
		name: "cutover-interrupted", level: Attention, window: true, holds: cutoverInterrupted, next: continueCutover,
		means: "A [cutover](cutover.md) of the link was begun, and no process works on it: it has died, or has ended with an error. Writes to the source may be stopped until the cutover is continued or cancelled; from the step `convert` on nothing is applied either. Every process of the link shows it, and without one `replicator status` and the page of all links, from the metadata.",
	},
	{
		name: "foreign-writes", level: Attention, window: true, holds: foreign,
		next:  dealWithForeign,
		means: "The target's oplog has writes to mirrored namespaces that the link has not made. The documents that they changed differ from the source's, and stay so. [Foreign writes](foreign-writes.md) says how to find the client. The verdict remains until each collection has been copied again, or an operator has cleared it.",
	},
	{
		name: "differences", level: Attention, window: true, holds: differs,
		next:  repairs,
		means: "Source and target were compared at a consistent cut ([verify](verify.md)), by the link itself or by `replicator verify --link`, and differ. `verified.differing` in `/status` names collections and documents. The link continues, and does not repair them by itself. The verdict remains until a later comparison finds the difference gone: after `replicator repair`, a resync, or a change by the source.",
	},
	{
		name: "diverged", level: Attention, window: true, holds: diverges,
		next:  dealWithDiverged,
		means: "With `--on-divergence=report` the link has continued after operations that met on the target what cannot have been at the source: a document that is missing, or exists already, or no collection. The copy of these collections may differ since. The metadata keep it (`diverged` in `/status`), also over a restart. The verdict remains until each of them was copied again, was compared without a difference ([verify](verify.md)), or repaired after a comparison, or the source has dropped it. Find out what else writes to the target.",
	},
	{
		name: "oplog-short", level: Attention, holds: oplogShort, unwell: always,
		next:  says("Give the source a larger oplog now: db.adminCommand({replSetResizeOplog: 1, size: MB}) on each member."),
		means: "At its present pace the source deletes the entry from which a restart would read within two minutes.",
	},
	{
		name: "paused-short", level: Attention, holds: paused(true),
		next:  resumes,
		means: "The link is paused, and in less than an hour the source deletes the entry from which it has to continue. After that everything has to be copied again. A larger oplog of the source, or `--spool-dir`, lets a pause last longer.",
	},
	{
		name: "paused", level: Attention, holds: paused(false),
		next:  resumes,
		means: "An operator has paused the link. Nothing is copied or applied; the source is still read, and the lease is kept. A restart or a takeover does not end the pause.",
	},
	{
		name: "control-unread", level: Attention, window: true, holds: unread, unwell: unreadForLong,
		next:  says("Check the target, and the collection control of the metadata database."),
		means: "The settings that operators have made for the link cannot be read. A process that has read them before keeps them; one that has just begun to lead applies nothing, because the link may be paused.",
	},
	{
		name: "spool-full", level: Attention, window: true, holds: spoolFull, unwell: spoolFullForLong,
		next:  says("Make room under --spool-dir, or start the link again with a larger --spool-bytes or, if the disk is full, a smaller --spool-free."),
		means: "The oplog is not read while the spool has no room. The source may delete entries that have not been read.",
	},
	{
		name: "spool-waits", level: Attention, window: true, holds: spoolWaits, unwell: spoolWaitsForLong,
		next:  says("Look at the disk of --spool-dir: dmesg, iostat -x 1, its mount."),
		means: "Entries read from the source go to the spool, and its disk does not accept them. The oplog is not read meanwhile, and the source may delete entries before they are read.",
	},
	{
		name: "relay-off", level: Attention, window: true, holds: relayOff,
		next:  says("Repair the disk of --spool-dir, or free space on it. The link tries again every 30 s."),
		means: "`--relay-log` is set, but its directory cannot be written to. The link continues without a relay log. If the source is lost now, entries that are not durable on the target are lost with this process.",
	},
	{
		name: "relay-over", level: Attention, window: true, holds: relayOver,
		next:  says("Find out what the target waits for. A larger --relay-log raises the limit of this verdict."),
		means: "The entries that were read and are not durable on the target take more than `--relay-log`. Nothing is lost or dropped: it grows up to `--spool-bytes`, and only then reading pauses (verdict spool-full).",
	},
	{
		name: "feedback-refused", level: Attention, window: true, holds: feedbackRefused, next: allowFeedback,
		means: "The source refuses to be told how far the target is (`--feedback`): its configuration has no such member (any more), or the user lacks a privilege. The link continues. Write concerns that wait for the mirror ([runbook](runbook.md#write-concerns-that-wait-for-the-mirror)) are not fulfilled by it. It reports again once the cause is removed.",
	},
	{
		name: "target-waits", level: Attention, window: true, holds: waitsFor("target"),
		next:  says("Look at the target: db.currentOp(), its disk, its flow control."),
		means: "A command on the target has had no reply for more than five seconds. The link waits; nothing is lost.",
	},
	{
		name: "source-waits", level: Attention, window: true, holds: waitsFor("source"),
		next:  says("Look at the source's members: db.currentOp(), their disks and locks."),
		means: "A command on the source has had no reply for more than five seconds. The link waits; nothing is lost.",
	},
	{
		name: "stalled", level: Attention, window: true, holds: stalled, unwell: stalledForLong,
		next:  says("kill -QUIT PID prints what each part of the process waits for, and ends it. Report that, then start it again."),
		means: "Entries have been read and not applied for longer than 30 s, although no reply of a server is outstanding. This is a bug.",
	},
	{
		name: "clocks", level: Attention, window: true, holds: clocksDiffer,
		next:  says("Compare the clocks, here and on the source's members: timedatectl, chronyc tracking."),
		means: "The link does not need equal clocks: leases count by the target's, lag by the source's. But \"exact as of\" and the times of the log are by this machine's clock. So is the end of `--delay`: with a clock that is ahead entries are applied earlier by the difference, with one that is behind later. Latencies take the difference into account.",
	},
	{
		name: "source-blocked", level: Attention, window: true, holds: sourceBlocked,
		next:  unblockSource,
		means: "Writes of users to the source are blocked (`setUserWriteBlockMode`): by an operator for a [cutover](cutover.md), or by another program. The link continues, and applications cannot write to the source. The program that has blocked it may have died: each process of the link, those that stand by too, shows it until the block is lifted.",
	},
	{
		name: "cutover", level: Working, window: true, holds: cutsOver,
		means: "A [cutover](cutover.md) of the link is under way: `replicator cutover --status` has its steps.",
	},
	{
		name: "index-build", level: Working, window: true, holds: keptBack,
		means: "Operations on these collections wait until the target has built their indexes; all others continue. The position does not advance meanwhile.",
	},
	{
		name: "resync", level: Working, window: true, holds: resyncing,
		means: "Collections are being copied again while the others continue. Until that has finished, the target is not consistent in these collections.",
	},
	{
		name: "starting", level: Working, holds: starting(0, startingGrace),
		means: "An attempt acquires the lease, checks its position, and chooses a member of the source to read from.",
	},
	{
		name: "copying", level: Working, window: true, holds: copyPhase(checkpoint.Copying, copies),
		means: "Documents are copied. The target is not consistent until that has finished and the oplog since its beginning has been applied.",
	},
	{
		name: "replaying", level: Working, window: true, holds: copyPhase(checkpoint.Replaying, replays),
		means: "All documents are copied. The oplog since the beginning of the copy is applied to them; the target is consistent after that.",
	},
	{
		name: "not-consistent", level: Working, window: true, holds: notConsistent,
		means: "The oplog has not been applied yet to everything that was copied.",
	},
	{
		name: "throttled", level: Working, window: true, holds: throttled(true),
		next:  func(s *Snapshot) string { return s.command("throttle", "--off") },
		means: "An operator has limited how fast the oplog is applied, and the link has not caught up. The lag grows while the source writes more than that.",
	},
	{
		name: "catching-up-target", level: Working, window: true, holds: catchingUp(true),
		means: "The target accepts less than the source sends: entries wait in memory, or on disk. The target (its CPU, disk, flow control) sets the pace.",
	},
	{
		name: "catching-up", level: Working, window: true, holds: catchingUp(false),
		means: "The source has entries that are not applied yet.",
	},
	{
		name: "steady", level: Good, window: true, holds: steady,
		means: "Everything that the source has committed is applied, or in flight.",
	},
	{
		name: "throttle-set", level: Working, holds: throttled(false),
		means: "An operator has limited how fast the oplog is applied. It is enough at present; this is shown with the verdict `steady`.",
	},
	{
		name: "stopped", level: Attention, holds: inState(monitor.Stopped, "Stopped as requested"), unwell: always,
		next:  says("Start it again: it resumes from its checkpoint."),
		means: "The run has ended because it was told to.",
	},
}

// repairs is what to do about differences.
func repairs(s *Snapshot) string {
	if len(s.Verified.Differing) == 0 {
		return s.verifies()
	}
	return s.command("repair", "--from-verified")
}

func resumes(s *Snapshot) string { return s.command("resume") }

func always(*Snapshot) bool { return true }

func says(t string) func(*Snapshot) string { return func(*Snapshot) string { return t } }
