package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// Control has the settings that operators have made for a link, and their requests.
type Control struct {
	// Paused is nil if the link is not paused.
	Paused   *Paused  `json:"paused"`
	Throttle Throttle `json:"throttle"`
	// LogLevel is the one that was asked for, nil for that of the start.
	LogLevel *string `json:"logLevel"`
	// Requests are the newest 50, and older ones that are open, the newest first.
	Requests []request.Record `json:"requests"`

	// known is false if it has not been read yet: nothing is applied before that.
	known     bool
	unreadWhy string
}

// Paused describes a pause.
type Paused struct {
	Since time.Time `json:"since"`
	By    string    `json:"by"`
	Why   string    `json:"why"`
	// MayLastSeconds is how long the source's oplog has what the link needs next at its present
	// pace. If that is not known it is how far the oplog reaches back before the checkpoint. It
	// is nil if neither is known, or the oplog is spooled to disk.
	MayLastSeconds *float64 `json:"mayLastSeconds"`
}

// Throttle has the limits that operators have set, nil for none.
type Throttle struct {
	CopyBytesPerSecond  *int64 `json:"copyBytesPerSecond"`
	CopyOpsPerSecond    *int64 `json:"copyOpsPerSecond"`
	ApplyBytesPerSecond *int64 `json:"applyBytesPerSecond"`
	ApplyOpsPerSecond   *int64 `json:"applyOpsPerSecond"`
	// Adaptive lowers the limits of applying while the target is under pressure: to Factor of
	// them now, Reason says why if it is below 1.
	Adaptive bool    `json:"adaptive"`
	Factor   float64 `json:"factor"`
	Reason   string  `json:"reason,omitempty"`
	// By, At and Why are those of the last request.
	By  string     `json:"by"`
	At  *time.Time `json:"at"`
	Why string     `json:"why"`
	// UnreadSince is since when the requests cannot be read, nil if they can: all of this stays
	// as it was.
	UnreadSince *time.Time `json:"unreadSince"`
}

// addControl adds the settings of operators. The window must be known.
func addControl(s *Snapshot, p *monitor.Snapshot) {
	c := p.Control
	if c == nil || !s.leads() {
		return
	}
	l := &c.Throttle
	s.Control = &Control{
		Throttle: Throttle{
			CopyBytesPerSecond: limitOf(c.CopyBytesPerSecond), CopyOpsPerSecond: limitOf(c.CopyOpsPerSecond),
			ApplyBytesPerSecond: limitOf(l.BytesPerSecond), ApplyOpsPerSecond: limitOf(l.OpsPerSecond),
			Adaptive: l.Adaptive, Factor: c.Factor, Reason: c.Why, By: l.By, Why: l.Why, UnreadSince: known(c.UnreadSince),
		},
		Requests: append([]request.Record{}, c.Records...),
		known:    c.Known, unreadWhy: c.UnreadWhy,
	}
	if l.Request != "" {
		s.Control.Throttle.At = known(l.At)
	}
	if c.Level != "" {
		s.Control.LogLevel = &c.Level
	}
	if by := c.Paused; by != nil {
		s.Control.Paused = &Paused{Since: by.Since, By: by.By, Why: by.Why, MayLastSeconds: s.mayPause()}
	}
}

func limitOf(perSecond int64) *int64 {
	if perSecond <= 0 {
		return nil
	}
	return &perSecond
}

// mayPause is how long the source has what the link needs next, nil if that is not known, or does
// not matter as it is on disk.
func (s *Snapshot) mayPause() *float64 {
	if s.Spool != nil && !s.Spool.Full {
		return nil
	}
	if s.OplogRolloverSeconds != nil {
		return s.OplogRolloverSeconds
	}
	return s.OplogWindowLeftSeconds
}

// pauseShort is how long a pause may last at the least without a warning.
const pauseShort = time.Hour

// paused holds while the link is paused, and may be for long, or only for a short time.
func paused(short bool) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if s.Control == nil || s.Control.Paused == nil {
			return "", time.Time{}
		}
		p := s.Control.Paused
		if short != (p.MayLastSeconds != nil && ofSeconds(*p.MayLastSeconds) < pauseShort) {
			return "", time.Time{}
		}
		out := fmt.Sprintf("Paused for %s by %s", coarse(max(0, s.At.Sub(p.Since))), cmp.Or(p.By, "an operator"))
		if p.Why != "" {
			out += ": " + p.Why
		}
		switch {
		case s.Spool != nil && !s.Spool.Full:
			out += fmt.Sprintf(". The oplog goes to disk meanwhile: %s of %s", size(s.Spool.Bytes), size(s.Spool.LimitBytes))
		case s.OplogRolloverSeconds != nil:
			out += ". It may last " + coarse(ofSeconds(*s.OplogRolloverSeconds)) + " more: then the source's oplog no longer has what comes next"
		case s.OplogWindowLeftSeconds != nil:
			out += ". How long it may last is not known; the source's oplog reaches back " + coarse(ofSeconds(*s.OplogWindowLeftSeconds)) + " before the checkpoint"
		default:
			out += ". How long it may last is not known"
		}
		return out + ".", p.Since
	}
}

// unread holds while it is not known which settings operators have made.
func unread(s *Snapshot) (string, time.Time) {
	if s.Control == nil || s.Control.Throttle.UnreadSince == nil {
		return "", time.Time{}
	}
	since := *s.Control.Throttle.UnreadSince
	if !s.Control.known {
		return "Nothing is applied: whether the link is paused cannot be read: " + s.Control.unreadWhy + ".", since
	}
	return "Requests of operators cannot be read: pause and throttle stay as they are: " + s.Control.unreadWhy + ".", since
}

func unreadForLong(s *Snapshot) bool {
	return !s.Control.known && s.At.Sub(*s.Control.Throttle.UnreadSince) >= silentGrace
}

// throttled holds while applying is limited, and the link has caught up, or has not.
func throttled(behind bool) symptom {
	return func(s *Snapshot) (string, time.Time) {
		if s.Control == nil || behind == s.is(monitor.Steady) {
			return "", time.Time{}
		}
		t := &s.Control.Throttle
		limits := limitText(t.ApplyOpsPerSecond, "operations") + limitText(t.ApplyBytesPerSecond, "bytes")
		if limits == "" {
			return "", time.Time{}
		}
		out := "Applying is throttled to" + limits[len(" and"):] + " by " + cmp.Or(t.By, "an operator")
		if t.Why != "" {
			out += ": " + t.Why
		}
		if t.Factor < 1 {
			out += fmt.Sprintf("; adaptive: %.0f %% of the limit now, as the target shows pressure: %s", 100*t.Factor, t.Reason)
		}
		var since time.Time
		if t.At != nil {
			since = *t.At
		}
		if !behind {
			return out + ".", since
		}
		if s.AgeOfOldestUnappliedSeconds != nil {
			out += fmt.Sprintf("; the oldest entry not applied is %s old", coarse(ofSeconds(*s.AgeOfOldestUnappliedSeconds)))
		}
		return out + ".", since
	}
}

func limitText(limit *int64, what string) string {
	if limit == nil {
		return ""
	}
	return fmt.Sprintf(" and %d %s per second", *limit, what)
}
