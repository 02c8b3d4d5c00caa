package lease

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Stats says for how long a Keeper has its lease, and counts the events since it was
// created.
type Stats struct {
	// Left is the time until this process stops using the lease unless it is renewed, 0 if it
	// has none.
	Left time.Duration
	// Takeovers are the acquisitions of a lease that another process had last.
	Takeovers int64
	// Fenced are the writes of this process that were sent, and that the servers refused
	// because another process has acquired the lease.
	Fenced int64
	// Renewals are those that succeeded, Failures the others. LastRenewal is how long the last
	// one took that succeeded, 0 if none has.
	Renewals, Failures int64
	LastRenewal        time.Duration
}

// Stats returns them as of now.
func (k *Keeper) Stats() Stats {
	if k == nil {
		return Stats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.stats
	if k.lost == nil && !k.until.IsZero() {
		s.Left = left(k.until)
	}
	return s
}

// left returns the time until then by the clock that says less, at least 0: see isOver.
func left(until time.Time) time.Duration {
	now := time.Now()
	return max(0, min(until.Sub(now), until.Round(0).Sub(now.Round(0))))
}

// CountFenced counts an error of a write if it is the server's refusal of an older term. Writes
// that were not sent, as this process already knew, do not count.
func (k *Keeper) CountFenced(err error) {
	superseded, isSuperseded := errors.AsType[*supersededError](err)
	if k == nil || !servererr.IsOldNumber(err) && (!isSuperseded || superseded.read) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.Fenced++
}

// begins records the lease that an acquisition finds, before it is tried.
func (k *Keeper) begins(found *Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.others = k.others || found.Holder != "" && found.Holder != k.cfg.Holder
}

// acquired counts an acquisition. If the reply to the one before was lost, it was that one
// that took the lease over.
func (k *Keeper) acquired() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.others {
		k.stats.Takeovers++
	}
	k.others = false
}

// renewed counts a renewal.
func (k *Keeper) renewed(took time.Duration, err error) {
	k.cfg.Renewed(took, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.stats.Failures++
		return
	}
	k.stats.Renewals++
	k.stats.LastRenewal = took
}
