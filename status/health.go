package status

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Healthy reports whether /healthz answers 200. It is for a Snapshot of a Tracker: the JSON
// form does not have it. It is false if
//   - the link is stale, failed or stopped, or starting for longer than
//     a minute,
//   - attempts have failed for a minute and nothing was applied or copied since the first,
//   - nothing was applied for two minutes although there is something to apply, and no
//     server is known to be waited for,
//   - a collection could not be copied again, and is left out,
//   - the source has not answered for longer than a minute,
//   - a process that stands by could not look at the lease for longer than a minute,
//   - the spool is full for longer than a minute: the log is not
//     read meanwhile, and may roll over,
//   - the source's oplog rolls over in less than two minutes: at its
//     current pace the oldest entry will pass the position from which a restart
//     would read. An oplog whose whole window is shorter than that counts too.
//
// All but the first and the silence are for alerting an operator; restarting the program does not
// help, nor does it harm the copy, which resumes. A copy that is throttled, or not consistent yet,
// is healthy, and so is a process that stands by otherwise.
func (s *Snapshot) Healthy() bool { return !s.unwell }

// Health is the text of /healthz: the verdict, and the link in a few lines.
func (s *Snapshot) Health() string { return s.Verdict.lines() + s.sentence() }

// blindGrace is how long a process that stands by counts as ready although it cannot look at the
// lease.
const blindGrace = 10 * time.Second

// Ready returns why the process cannot do its work, nil if it can: it leads, and has begun or is
// beginning again, or it stands by and can look at the lease. It is not whether the link is healthy:
// a source that is away makes a process neither leave its place nor hide its page.
func (t *Tracker) Ready() error {
	s := t.Snapshot()
	return t.readiness(&s)
}

// readiness is Ready as of a Snapshot. What the process has been is not forgotten.
func (t *Tracker) readiness(s *Snapshot) error {
	switch state := monitor.State(s.State); {
	case state == monitor.Failed || state == monitor.Stopped || state == monitor.Stale:
		return fmt.Errorf("the link is %s: %s", s.State, s.Verdict.Sentence)
	case state == monitor.Standby:
		if blind := s.Lease.blindFor(s.At); blind > blindGrace {
			return fmt.Errorf("it stands by, and could not look at the lease for %s", blind.Round(time.Second))
		}
		t.ready.Store(true)
	case state != monitor.Starting:
		t.ready.Store(true)
	case !t.ready.Load():
		return errors.New("starting: " + s.Verdict.Sentence)
	}
	return nil
}

// blindFor is how long the lease could not be read.
func (l *Lease) blindFor(now time.Time) time.Duration {
	if l == nil || l.BlindSince == nil {
		return 0
	}
	return now.Sub(*l.BlindSince)
}

// lines are the verdict, what to do, and what else is not good.
func (v *Verdict) lines() string {
	out := string(v.Level) + ": " + v.Sentence + "\n"
	if v.Next != "" {
		out += "next: " + v.Next + "\n"
	}
	if len(v.Also) > 0 {
		out += "also: " + strings.Join(v.Also, "\nalso: ") + "\n"
	}
	return out
}

// failedCollections returns the collections that are left out and no longer
// retried.
func (s *Snapshot) failedCollections() []string {
	var list []string
	for i := range s.LeftOut {
		if s.LeftOut[i].Failed != "" {
			list = append(list, s.LeftOut[i].Namespace)
		}
	}
	return list
}

func ofSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// sentence describes the link in a few lines.
func (s *Snapshot) sentence() string {
	out := fmt.Sprintf("%s for %s", s.State, s.At.Sub(s.Since).Round(time.Second))
	if s.Reason != "" {
		out += ": " + s.Reason
	}
	out += "\n"
	if monitor.State(s.State) == monitor.Standby {
		return out // It knows nothing of the rest.
	}
	out += s.doubts()
	switch {
	case s.LagSeconds != nil:
		out += fmt.Sprintf("lag %.3f s at the source's last reply, %.1f s ago\n", *s.LagSeconds, *s.Source.DataAgeSeconds)
	case s.Source.DataAgeSeconds != nil:
		out += fmt.Sprintf("lag not known: the source's last reply is %.1f s old\n", *s.Source.DataAgeSeconds)
	default:
		out += "lag not known: no reply from the source in this attempt\n"
	}
	if s.LastError != nil {
		out += fmt.Sprintf("last error, %s ago: %s\n", s.At.Sub(s.LastError.At).Round(time.Second), s.LastError.Error)
	}
	return out
}
