package standby

import (
	"cmp"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// Options say how a process gets the link's lease, and keeps it. With the zero Options it takes
// it over from any other process, and ends once another one does so.
type Options struct {
	// TTL is how long the lease lasts without a renewal, by the target's clock; Every is the
	// time between two renewals. With a TTL, one process leads and the others stand by.
	TTL, Every time.Duration
	// Process identifies this one: see lease.NewProcess. Default: one without an address.
	Process string
	// TakeOver takes the lease from the process that has it, once.
	TakeOver bool
	// Once ends the run with lease.ErrHeld or lease.ErrFenced in place of standing by.
	Once bool
	// SpoolWait is how long a free lease is left to other processes if no member of the source
	// that answers has the link's oplog, and this process does not have it in its spool: an
	// owner of that may come back. Default 5 minutes.
	SpoolWait time.Duration
	// CutOff is how long nothing may be read from any member of the source before a leader
	// offers the lease to a process that can read it. Default 1 minute.
	CutOff time.Duration
	// OfferFor is how long the lease is offered to a process that can read on, before the link
	// ends or its copy is void because no member of the source has the oplog. Default 20 s.
	OfferFor time.Duration
	// Target runs the renewals. It should have connections of its own. Default: the
	// pipeline's target.
	Target mongo.Caller
}

// minTTL is the shortest TTL.
const minTTL = 500 * time.Millisecond

// Validate returns an error for options that are not valid.
func (l *Options) Validate() error {
	switch {
	case l.TTL == 0:
		return nil
	case l.TTL < minTTL:
		return fmt.Errorf("lease: %s is shorter than %s", l.TTL, minTTL)
	case l.Every <= 0 || l.Every > l.TTL/4:
		return fmt.Errorf("lease: renewed every %s: want at most a fourth of %s", l.Every, l.TTL)
	}
	return nil
}

// SetDefaults sets the defaults of zero fields, if there is a TTL.
func (l *Options) SetDefaults() {
	if l.TTL == 0 {
		return
	}
	if l.Process == "" {
		l.Process = lease.NewProcess("")
	}
	l.SpoolWait = cmp.Or(l.SpoolWait, 5*time.Minute)
	l.CutOff = cmp.Or(l.CutOff, time.Minute)
	// A process that stands by looks at the lease each second, and asks each member of the source.
	l.OfferFor = cmp.Or(l.OfferFor, 20*time.Second)
}

// NewKeeper returns the Keeper that renews the lease of a link of a metadata database, nil without a TTL.
// Target is the default of Options.Target.
func (l *Options) NewKeeper(target mongo.Caller, db, link string, reg prometheus.Registerer) *lease.Keeper {
	if l.TTL == 0 {
		return nil
	}
	if l.Target != nil {
		target = l.Target
	}
	return lease.NewKeeper(lease.KeeperConfig{
		Target: target, DB: db, Collection: metadata.Links, ID: link, Holder: l.Process,
		TTL: l.TTL, Every: l.Every, Renewed: renewalTimes(reg, link),
	})
}
