package syncsource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

// probeTimeout limits one query of a member's oplog.
const probeTimeout = 30 * time.Second

var errNoProbe = fmt.Errorf("no answer within %s", inSeconds(probeTimeout))

// denied says why a probed member cannot serve.
type denied struct {
	Denial
	// lasts is how long to deny it.
	lasts time.Duration
	err   error
}

// probe checks that a member still has the last fetched entry. It returns why to deny the
// member, nil if it can serve.
func probe(ctx context.Context, caller mongo.Caller, last oplog.OpTime) *denied {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errNoProbe)
	defer cancel()
	find := replset.Oldest()
	_, doc, err := find.Run(ctx, caller)
	var oldest replset.Entry
	var problem string
	switch {
	case errors.Is(err, mongo.ErrNoBatch):
		problem = "answered with " + err.Error()
	case err != nil:
		return refusedProbe("could not be asked for its oldest entry", err)
	case doc == nil:
		problem = "has an empty oplog"
	default:
		if oldest, err = replset.ReadEntry(doc); err != nil {
			problem = "has a malformed oldest entry: " + err.Error()
		}
	}
	if problem != "" {
		return &denied{Denial: Denial{Reason: problem}, lasts: DenyBadOplog}
	}
	// Only timestamps: the two entries may be of different histories, whose terms
	// cannot be compared.
	if oplog.CompareTimestamps(last.TS, oldest.OpTime.TS) < 0 {
		reason := fmt.Sprintf("has an oplog that begins at %s, after %s, which was fetched", oldest.OpTime, last)
		return &denied{Denial: Denial{Reason: reason, Oldest: oldest.OpTime}, lasts: denyTooStale}
	}
	return nil
}

func refusedProbe(what string, err error) *denied {
	d := &denied{Denial: Denial{Reason: deniedBy(what, err)}, lasts: DenyNetwork, err: err}
	if quiet, ok := QuietTime(err); ok {
		d.lasts = max(quiet, RetryInterval)
	}
	return d
}
