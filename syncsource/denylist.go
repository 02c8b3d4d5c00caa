package syncsource

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// How long a member is denied, by cause. A member that is shutting down is denied
// for as long as it announces; see QuietTime.
const (
	// DenyNetwork is for a member that did not answer, or returned an error.
	DenyNetwork = 10 * time.Second
	// DenyBadOplog is for a member whose oldest entry does not exist or has no
	// timestamp.
	DenyBadOplog = 10 * time.Second
	// denyTooStale is for a member whose oplog begins after the last fetched entry.
	denyTooStale = time.Minute
	// DenyFetched is for a member whose oplog, while it was read, turned out to begin
	// too late or to contain invalid BSON.
	DenyFetched = time.Minute
)

// RetryInterval is how long to wait before the next try if there was no source, or
// if the same one was chosen again.
const RetryInterval = time.Second

// Denial excludes a member from the choice for a while.
type Denial struct {
	// Until is when the denial ends, exclusive.
	Until time.Time
	// Reason completes a sentence that starts with the member's name.
	Reason string
	// Oldest is the member's oldest entry, if it is denied because that is newer than
	// the last fetched entry; otherwise the null optime.
	Oldest oplog.OpTime
}

// Denylist has the denials by host.
type Denylist map[string]Denial

// denied returns a host's denial if it is in force at this time.
func (d Denylist) denied(host string, now time.Time) (Denial, bool) {
	denial, ok := d[host]
	if !ok || !denial.Until.After(now) {
		return Denial{}, false
	}
	return denial, true
}

// expire removes denials that have ended.
func (d Denylist) expire(now time.Time) {
	for host, denial := range d {
		if !denial.Until.After(now) {
			delete(d, host)
		}
	}
}

// QuietTime returns for how long a member will not serve, if the error says that it
// is shutting down and for how long.
func QuietTime(err error) (time.Duration, bool) {
	refused, ok := errors.AsType[*servererr.Error](err)
	if !ok || !servererr.IsQuiescing(err) {
		return 0, false
	}
	e, ok := rawbson.Lookup(refused.Info, "remainingQuiesceTimeMillis")
	ms, isNumber := e.Int64()
	if !ok || !isNumber || ms < 0 || ms > (24*time.Hour).Milliseconds() {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

// history has the times at which the source was set, oldest first, as many as tooOften
// needs. The same source again counts too, as in the server (topology_coordinator.cpp).
type history []time.Time

// add returns the history with a change at now.
func (h history) add(now time.Time) history {
	return append(slices.Clone(h[max(0, len(h)-maxChangesPerHour+1):]), now)
}

// tooOften reports whether the source was set maxChangesPerHour times within the last
// hour.
func (h history) tooOften(now time.Time) bool {
	return len(h) >= maxChangesPerHour && h[len(h)-maxChangesPerHour].After(now.Add(-time.Hour))
}

// inSeconds formats a duration for messages.
func inSeconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%d s", int64((d+time.Second/2)/time.Second))
}

// lagSeconds returns by how many seconds a is before b.
func lagSeconds(a, b bson.Timestamp) int64 { return int64(b.T) - int64(a.T) }
