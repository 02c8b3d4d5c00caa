package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// symptom tells whether a condition holds; see condition.holds.
type symptom = func(*Snapshot) (string, time.Time)

func (s *Snapshot) is(states ...monitor.State) bool {
	return slices.Contains(states, monitor.State(s.State))
}

// leads reports whether this process does the link's work, or tries to.
func (s *Snapshot) leads() bool {
	return s.is(monitor.Starting, monitor.InitialSync, monitor.CatchingUp, monitor.Steady)
}

// because adds the reason of the state. A link that does not work has the last error, if it
// has no other.
func (s *Snapshot) because() string {
	switch {
	case s.Reason != "":
		return ": " + s.Reason
	case s.LastError != nil && !s.is(monitor.InitialSync, monitor.CatchingUp, monitor.Steady):
		return ": " + s.LastError.Error
	}
	return ""
}

func inState(state monitor.State, what string) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if !s.is(state) {
			return "", time.Time{}
		}
		return what + s.because() + ".", s.Since
	}
}

// oplogLasts says how long the source's oplog lasts, empty if that is not known.
func (s *Snapshot) oplogLasts() string {
	switch {
	case s.OplogRolloverSeconds != nil:
		return " The source's oplog lasts " + coarse(ofSeconds(*s.OplogRolloverSeconds)) + " at its present pace."
	case s.OplogWindowLeftSeconds != nil:
		return " The source's oplog reaches back " + coarse(ofSeconds(*s.OplogWindowLeftSeconds)) + " before the checkpoint."
	}
	return ""
}

// coarse is a duration for people: two units at most.
func coarse(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%d days %d h", d/day, d%day/time.Hour)
	}
}

func (s *Snapshot) windowGone() bool {
	return s.OplogRolloverSeconds != nil && s.OplogWindowLeftSeconds != nil && *s.OplogWindowLeftSeconds <= 0
}

func oplogGone(s *Snapshot) (string, time.Time) {
	if !s.leads() || !s.windowGone() {
		return "", time.Time{}
	}
	return "The source's oplog no longer has the entries to read next.", time.Time{}
}

func oplogShort(s *Snapshot) (string, time.Time) {
	if !s.leads() || s.windowGone() || s.OplogRolloverSeconds == nil || ofSeconds(*s.OplogRolloverSeconds) >= leastRollover {
		return "", time.Time{}
	}
	return fmt.Sprintf("The source's oplog rolls over in about %s.", ofSeconds(*s.OplogRolloverSeconds).Round(time.Second)), time.Time{}
}

func resyncFailed(s *Snapshot) (string, time.Time) {
	failed := s.failedCollections()
	if len(failed) == 0 {
		return "", time.Time{}
	}
	i := slices.IndexFunc(s.LeftOut, func(l LeftOut) bool { return l.Failed != "" })
	out := fmt.Sprintf("Not consistent: %s could not be copied again: %s", failed[0], s.LeftOut[i].Failed)
	if n := len(failed) - 1; n > 0 {
		out += fmt.Sprintf("; nor could %d more", n)
	}
	return out + ".", time.Time{}
}

func resyncing(s *Snapshot) (string, time.Time) {
	var names []string
	for i := range s.LeftOut {
		if s.LeftOut[i].Failed == "" {
			names = append(names, s.LeftOut[i].Namespace)
		}
	}
	if len(names) == 0 || !s.leads() {
		return "", time.Time{}
	}
	return "Copying again: " + some(names) + ". The target is not consistent in them meanwhile.", time.Time{}
}

// some lists the first few names.
func some(names []string) string { return someOf(names, 0) }

// someOf is some for more names than are listed.
func someOf(names []string, more int) string {
	const shown = 5
	out := strings.Join(names[:min(shown, len(names))], ", ")
	if n := more + max(0, len(names)-shown); n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}

// silentFor holds while the source has been silent for longer than after, and at most until.
func silentFor(after, until time.Duration) symptom {
	return func(s *Snapshot) (string, time.Time) {
		// While it is starting the source may not have been asked at all.
		if !s.leads() || s.is(monitor.Starting) || s.silent <= max(after, s.silentAfter) || s.silent > until {
			return "", time.Time{}
		}
		if s.loginRefused != "" {
			return fmt.Sprintf("The source refuses the login, and has not been read from for %s: %s. How far the target lags is not known.", s.silent.Round(time.Second), s.loginRefused),
				s.At.Add(-s.silent)
		}
		return fmt.Sprintf("There is no reply from the source for %s: how far the target lags is not known.", s.silent.Round(time.Second)),
			s.At.Add(-s.silent)
	}
}

// noPrimary holds while the member of the source that is read knows no primary, for longer than the source may be silent.
func noPrimary(s *Snapshot) (string, time.Time) {
	// While it is not asked, it does not say either that there is one again.
	if !s.leads() || s.is(monitor.Starting) || !s.blocked.IsZero() || s.noPrimary <= s.silentAfter {
		return "", time.Time{}
	}
	return fmt.Sprintf("The source has no primary, or %s, which is read, is cut off from it, for %s: what else it has written, and how far the target lags, is not known.",
		cmp.Or(s.Source.Host, "the member"), s.noPrimary.Round(time.Second)), s.At.Add(-s.noPrimary)
}

func noPrimaryForLong(s *Snapshot) bool { return s.noPrimary >= silentGrace }

// targetSilentFor holds while the target has not replied for longer than after, and at
// most until.
func targetSilentFor(after, until time.Duration) symptom {
	return func(s *Snapshot) (string, time.Time) {
		d := s.At.Sub(s.targetSilent)
		if !s.leads() || s.targetSilent.IsZero() || d <= after || d > until {
			return "", time.Time{}
		}
		return fmt.Sprintf("There is no reply from the target for %s%s.", coarse(d), s.because()), s.targetSilent
	}
}

// clocksDiffer holds while the clock of the source's primary is not this process's.
func clocksDiffer(s *Snapshot) (string, time.Time) {
	l := &s.Latency
	if !s.leads() || l.ClockAheadSeconds == nil || l.ClockWithinSeconds == nil {
		return "", time.Time{}
	}
	d, how := ofSeconds(*l.ClockAheadSeconds), "behind"
	if d < 0 {
		d, how = -d, "ahead of"
	}
	if d-ofSeconds(*l.ClockWithinSeconds) < clockOff {
		return "", time.Time{}
	}
	return fmt.Sprintf("The clock of this machine is %s %s that of the source's primary: the times that are shown are by this one.",
		coarse(d.Round(time.Second)), how), time.Time{}
}

// spoolWaits holds while the entries read are not written to disk, although the spool has room.
func spoolWaits(s *Snapshot) (string, time.Time) {
	d := s.At.Sub(s.blocked)
	if s.Spool == nil || s.Spool.Full || s.blocked.IsZero() || d <= spoolSlow || !s.leads() {
		return "", time.Time{}
	}
	return fmt.Sprintf("The oplog is not read: its spool has accepted no entries for %s: the disk does not answer, or is too slow.", coarse(d)), s.blocked
}

func spoolWaitsForLong(s *Snapshot) bool { return s.At.Sub(s.blocked) > fullGrace }

// sourceLogin says what to do about a source that refuses the login.
func sourceLogin(s *Snapshot) string {
	if s.loginRefused == "" {
		return ""
	}
	return "Check user name, password, authSource and the TLS files of --source, and the user at the source. The link tries again by itself."
}

func sourceMembers(s *Snapshot) string {
	if login := sourceLogin(s); login != "" {
		return login
	}
	if len(s.Source.Refused) == 0 {
		return "Check the source's members, and the network to them."
	}
	return "Check the source's members: " + s.Source.Refused[0].Host + " " + s.Source.Refused[0].Reason + "."
}

func blind(s *Snapshot) (string, time.Time) {
	if !s.is(monitor.Standby) || s.Lease == nil || s.Lease.BlindSince == nil {
		return "", time.Time{}
	}
	return "Standing by, but the lease cannot be read" + s.because() + ".", *s.Lease.BlindSince
}

func blindForLong(s *Snapshot) bool { return s.At.Sub(*s.Lease.BlindSince) >= silentGrace }

// standsBy holds while another process leads, or none does.
func standsBy(led bool) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if !s.is(monitor.Standby) || led != (s.Lease != nil && s.Lease.Leader != "") {
			return "", time.Time{}
		}
		if !led && s.Cutover != nil && s.Cutover.Interrupted {
			// Nobody leads because of it, and no other process says so: it is not over by itself.
			return "", time.Time{}
		}
		return "Standing by" + s.because() + ".", s.Since
	}
}

// retrying holds while attempts have failed for at least after, and for less than until,
// and nothing was applied or copied since the first of them.
func retrying(after, until time.Duration) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if !s.leads() || s.failing.IsZero() || s.LastError == nil {
			return "", time.Time{}
		}
		d := s.At.Sub(s.failing)
		if d < after || d >= until {
			return "", time.Time{}
		}
		return fmt.Sprintf("Attempts fail, and nothing was applied for %s: %s.", coarse(d), s.LastError.Error), s.failing
	}
}

// unblocksOr says how writes to the target are allowed again if it refuses them while it blocks those of users. For other errors it says otherwise.
func unblocksOr(otherwise string) func(*Snapshot) string {
	return func(s *Snapshot) string {
		if s.LastError == nil || !servererr.SaysWriteBlock(s.LastError.Error) {
			return otherwise
		}
		return "Let the cutover that has blocked writes to the target lift the block, or, if none needs it, do so on the target's primary: " +
			"db.adminCommand({setUserWriteBlockMode: 1, global: false})"
	}
}

// stalled holds while nothing is applied although there is something to apply, and nothing is
// known to be waited for.
func stalled(s *Snapshot) (string, time.Time) {
	if !s.leads() || s.stands == nil || s.Control != nil && s.Control.Paused != nil || len(s.KeptBack) > 0 || s.At.Sub(s.stands.Since) < stalledAfter {
		return "", time.Time{}
	}
	return fmt.Sprintf("Stalled: nothing has been applied for %s, although there is something to apply: %s.",
		coarse(s.At.Sub(s.stands.Since)), s.stands.Why), s.stands.Since
}

func stalledForLong(s *Snapshot) bool { return s.At.Sub(s.stands.Since) >= stalledGrace }

// starting holds while the link has been starting for at least after, and for less than until.
func starting(after, until time.Duration) symptom {
	return func(s *Snapshot) (string, time.Time) {
		d := s.At.Sub(s.Since)
		if !s.is(monitor.Starting) || d < after || d >= until {
			return "", time.Time{}
		}
		if after > 0 {
			return fmt.Sprintf("Has not been able to start for %s%s.", coarse(d), s.because()), s.Since
		}
		return "Starting" + s.because() + ".", s.Since
	}
}

// spools reports whether entries read wait on disk.
func (s *Snapshot) spools() bool { return s.Spool != nil && !s.Spool.KeepsUp }

// relayOff holds while there is no relay log although one is configured.
func relayOff(s *Snapshot) (string, time.Time) {
	if s.RelayOff == "" || !s.leads() {
		return "", time.Time{}
	}
	return "The relay log is not written: " + s.RelayOff + ". Entries that were read and are not durable on the target are in memory only.", time.Time{}
}

// feedbackRefused holds while the source refuses reports for a reason that does not pass by itself.
func feedbackRefused(s *Snapshot) (string, time.Time) {
	f := &s.Feedback
	if f.Hint == "" || f.Since == nil || !s.leads() {
		return "", time.Time{}
	}
	return "The source refuses to be told how far the target is: " + f.Error + ".", *f.Since
}

// allowFeedback is what to do about it.
func allowFeedback(s *Snapshot) string {
	return strings.ToUpper(s.Feedback.Hint[:1]) + s.Feedback.Hint[1:] + " (--feedback)."
}

// relayOver holds while the relay log is larger than --relay-log.
func relayOver(s *Snapshot) (string, time.Time) {
	if s.Spool == nil || s.Spool.RelayBytes == 0 || s.Spool.Bytes <= s.Spool.RelayBytes || !s.leads() {
		return "", time.Time{}
	}
	return fmt.Sprintf("The relay log is full: it has %s, more than --relay-log (%s), and grows up to %s. The target does not keep up.",
		size(s.Spool.Bytes), size(s.Spool.RelayBytes), size(s.Spool.LimitBytes)), time.Time{}
}

func spoolFull(s *Snapshot) (string, time.Time) {
	if s.Spool == nil || !s.Spool.Full {
		return "", time.Time{}
	}
	var full time.Duration
	if s.Spool.FullSeconds != nil {
		full = ofSeconds(*s.Spool.FullSeconds)
	}
	return fmt.Sprintf("The oplog is not read: the spool is full for %s: %s.", full.Round(time.Second), s.Spool.Why), s.At.Add(-full)
}

func spoolFullForLong(s *Snapshot) bool {
	return s.Spool.FullSeconds != nil && ofSeconds(*s.Spool.FullSeconds) > fullGrace
}

// waitsFor holds while a command of one side waits, unless it is one that is expected to take
// long.
func waitsFor(side string) symptom {
	return func(s *Snapshot) (string, time.Time) {
		for _, w := range s.Waits {
			if w.Side != side || w.Expected {
				continue
			}
			out := fmt.Sprintf("The %s has not answered for %s: %s on %s", w.Side, coarse(s.At.Sub(w.Since)), w.Command, w.Namespace)
			if w.Host != "" {
				out += ", member " + w.Host
			}
			if w.For != "" {
				out += ": " + w.For
			}
			return out + ".", w.Since
		}
		return "", time.Time{}
	}
}

func keptBack(s *Snapshot) (string, time.Time) {
	if len(s.KeptBack) == 0 {
		return "", time.Time{}
	}
	names, since := make([]string, len(s.KeptBack)), s.KeptBack[0].Since
	for i, k := range s.KeptBack {
		names[i] = k.Namespace
		if k.Since.Before(since) {
			since = k.Since
		}
	}
	return "Operations on these collections wait for an index build of the target, all others continue: " + some(names) + ".", since
}

// copyPhase holds while the copy is in a phase.
func copyPhase(phase checkpoint.CopyPhase, describe func(*Snapshot) string) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if !s.leads() || s.Copy == nil || s.Copy.Phase != string(phase) {
			return "", time.Time{}
		}
		return describe(s), s.Copy.Started
	}
}

func copies(s *Snapshot) string {
	out := "Copying"
	if p := s.Copy.Progress; p != nil {
		if step := initialsync.Step(p.Step); step != "" && step != initialsync.StepCopy {
			out += ", " + p.Step // there may be nothing to count yet
		}
		out += fmt.Sprintf(": %d of %d collections, %s of about %s", p.Collections, p.TotalCollections, size(p.Bytes), size(p.TotalBytes)) + p.left(coarse)
	}
	if s.Copy.Pace.Why != "" {
		out += fmt.Sprintf("; slowed down by the %s: %s", s.Copy.Pace.Side, s.Copy.Pace.Why)
	}
	return out + ". The target is not consistent yet."
}

func replays(s *Snapshot) string {
	out := "All documents are copied"
	if stop, done := s.Copy.Stop, s.OpTimes.LogApplied; stop != nil && done != nil && done.T <= stop.T {
		out += fmt.Sprintf("; %s of the oplog must still be applied to them", coarse(time.Duration(stop.T-done.T)*time.Second))
	}
	return out + ". The target is not consistent yet."
}

func notConsistent(s *Snapshot) (string, time.Time) {
	copied := s.Copy == nil || s.Copy.Phase == string(checkpoint.Copied)
	if s.Consistent || !copied || len(s.LeftOut) > 0 || !s.is(monitor.InitialSync, monitor.CatchingUp, monitor.Steady) {
		return "", time.Time{}
	}
	return "The oplog has not been applied yet to everything that was copied: the target is not consistent yet.", time.Time{}
}

// catchingUp holds while the link catches up and the target sets the pace, or does not.
func catchingUp(target bool) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if !s.is(monitor.CatchingUp) || target != (s.Buffer.Full || s.spools()) {
			return "", time.Time{}
		}
		out := "Catching up" + s.because()
		if target {
			out = "Catching up, and " + s.slower() + s.because()
		}
		if s.AgeOfOldestUnappliedSeconds != nil {
			out += fmt.Sprintf("; the oldest entry not applied is %s old", coarse(ofSeconds(*s.AgeOfOldestUnappliedSeconds)))
		}
		if s.Applier.OpsPerSecond != nil {
			out += fmt.Sprintf("; %.0f operations per second are applied", *s.Applier.OpsPerSecond)
		}
		return out + s.paceText() + ".", s.Since
	}
}

func steady(s *Snapshot) (string, time.Time) {
	if !s.is(monitor.Steady) {
		return "", time.Time{}
	}
	out := "Steady" + s.because() + "."
	if at := s.ExactAt; at != nil {
		out += fmt.Sprintf(" Exact as of %s UTC, %s ago.", at.Format("15:04:05.0"), coarse(max(0, s.At.Sub(*at))))
	} else {
		out += " How far the target lags is not known yet."
	}
	return out, s.Since
}
