package cutover

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/status"
)

// WayBack is the name of the precondition that a link back can begin without a copy.
const WayBack = "way-back"

// withoutWayBack is how to go on where there can be none.
const withoutWayBack = "Or do without a way back: --reverse=none."

// bucketsSince are the versions that have changed how the buckets of time series are stored: a server before
// one of them does not read what one from it on writes.
var bucketsSince = []version{{6, 0}, {8, 0}}

// version is a feature compatibility version.
type version [2]int

func (v version) before(w version) bool { return v[0] < w[0] || v[0] == w[0] && v[1] < w[1] }

func (v version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

// Reversible is the precondition that a link back can begin without a copy once the link has ended, and
// that its target will understand what its source logs. Nothing is written.
func Reversible(ctx context.Context, source, target mongo.Caller, st *checkpoint.State, metaDB string) (status.Precondition, error) {
	p := status.Precondition{Name: WayBack, Standing: status.Unmet}
	if st.Filters == nil {
		p.Value = "what the link mirrors is not recorded in its document"
		p.Next = "Start it once with this release. " + withoutWayBack
		return p, nil
	}
	names, err := scope.New(ScopeOf(st.Filters, metaDB))
	if err != nil {
		return p, err
	}
	if _, err := replset.NewestEntry(ctx, mongo.Reads(target), replset.Majority); servererr.Classify(err) == servererr.Auth {
		p.Value = "the user of the target may not read local.oplog.rs, which says whether something else has written to it"
		p.Next = "Grant the role clusterMonitor on the target. " + withoutWayBack
		return p, nil
	} else if err != nil {
		return p, fmt.Errorf("read the target's oplog: %w", err)
	}
	older, err := fcv(ctx, source)
	if err != nil {
		return p, fmt.Errorf("ask the source for its version: %w", err)
	}
	newer, err := fcv(ctx, target)
	if err != nil {
		return p, fmt.Errorf("ask the target for its version: %w", err)
	}
	p.Standing, p.Value = status.Met, fmt.Sprintf("it can begin without a copy; %s knows all that %s logs", older, newer)
	if !older.before(newer) {
		return p, nil
	}
	p.Value = fmt.Sprintf("it can begin without a copy; it stops at the first collection or index whose options %s has, and %s does not", newer, older)
	for _, since := range bucketsSince {
		if !older.before(since) || newer.before(since) {
			continue
		}
		series, err := timeSeries(ctx, target, names)
		if err != nil {
			return p, err
		}
		if series != "" {
			p.Standing = status.Unmet
			p.Value = fmt.Sprintf("%s would not read the buckets of the time series %s that %s writes", older, series, newer)
			p.Next = fmt.Sprintf("Leave the feature compatibility version of the target below %s until there is no way back any more. ", since) + withoutWayBack
		}
		break
	}
	return p, nil
}

// timeSeries returns a time series of a set that is mirrored, empty for none.
func timeSeries(ctx context.Context, set mongo.Caller, names *scope.Scope) (oplog.Namespace, error) {
	dbs, err := databases(ctx, set)
	if err != nil {
		return "", err
	}
	for _, db := range dbs {
		list, err := catalog.List(ctx, mongo.Reads(set), db, "")
		if err != nil {
			return "", err
		}
		for _, doc := range list {
			name, _ := doc.Lookup("name").StringValueOK()
			kind, _ := doc.Lookup("type").StringValueOK()
			ns := oplog.NewNamespace(db, strings.Clone(name))
			if _, mirrored := names.Source(ns); kind == "timeseries" && mirrored {
				return ns, nil
			}
		}
	}
	return "", nil
}

// fcv returns a set's feature compatibility version, which decides what it logs; or its version, if
// the user may not ask for that.
func fcv(ctx context.Context, set mongo.Caller) (v version, err error) {
	text := ""
	reply, err := askAdmin(ctx, set, bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
	switch {
	case err == nil:
		text, _ = reply.Lookup("featureCompatibilityVersion", "version").StringValueOK()
	case servererr.Classify(err) != servererr.Auth:
		return v, err
	default:
		if reply, err = askAdmin(ctx, set, bson.D{{Key: "buildInfo", Value: 1}}); err != nil {
			return v, err
		}
		text, _ = reply.Lookup("version").StringValueOK()
	}
	if _, err := fmt.Sscanf(text, "%d.%d", &v[0], &v[1]); err != nil {
		return v, errors.New("it does not say its version")
	}
	return v, nil
}

func askAdmin(ctx context.Context, set mongo.Caller, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	return mongo.Reads(set).Call(ctx, mongo.Command{DB: "admin", Body: body})
}
