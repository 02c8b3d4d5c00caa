package syncsource

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// ErrForce is the error of a source that cannot be asked for.
var ErrForce = errors.New("syncsource: this source cannot be forced")

// forceLag is how far behind what was fetched a forced source may be without a
// warning, in seconds.
const forceLag = 10

// CheckForce tells whether a source may be asked for. The warning, if there is one,
// does not keep it from being used.
func CheckForce(v View, q Query, host string) (warning string, err error) {
	q.Rules.setDefaults()
	refuse := func(reason string) (string, error) { return "", fmt.Errorf("%w: %s %s", ErrForce, host, reason) }
	if q.Rules.Pinned != "" {
		return refuse("is not asked: the source is pinned to " + q.Rules.Pinned)
	}
	if len(v.Members) == 0 {
		return refuse("is not known: no member of the set has answered yet")
	}
	m, known := v.find(host)
	switch {
	case !known || m.Stranger:
		return refuse("is not in the set's configuration")
	case m.Arbiter || m.State == oplog.MemberArbiter:
		return refuse("is an arbiter and has no data")
	case m.NoIndexes && !q.Rules.NoIndexes:
		return refuse("does not build indexes")
	case m.NonVoting && q.Rules.Voter:
		return refuse("has no vote, and the reader has one")
	case m.Fault != "":
		return refuse(m.Fault)
	}
	if lag := lagSeconds(m.Applied.TS, q.LastFetched.TS); lag > forceLag {
		warning = fmt.Sprintf("%s is %d s behind what was fetched", host, lag)
	}
	return warning, nil
}
