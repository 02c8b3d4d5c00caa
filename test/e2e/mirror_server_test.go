package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
)

// recordedMajor is the version of the recordings.
const recordedMajor = 5

// TestMirrorCorpusInto mirrors what a real server logged into a set that is there
// already, real ones above all, and compares with what the first one had.
//
// A newer server than the one that was recorded has its own ways with options and
// indexes: it adds an index to time series, or does not round the size of a capped
// collection. There only the documents have to be the same; what else differs is
// shown. TestLive compares all of it, between servers of one version.
func TestMirrorCorpusInto(t *testing.T) {
	eachProvider(t, []string{"7.0"}, func(t *testing.T, p provider) {
		target := p.open(t, clusterOptions{name: "target", members: 1, moods: mongosim.NoMoods("an attempt that ends counts as a failure here")})
		conn := connect(t, target.uriFor(admin))
		major := majorOf(t, target)
		if major < recordedMajor {
			t.Skipf("the recordings are of %d.0, which a server of %d.x cannot hold", recordedMajor, major)
		}
		empty := emptied(t, target, conn)
		all := scenarios(t)
		for i := range all {
			if race.Enabled && !p.real && i%6 > 0 {
				continue
			}
			t.Run(all[i].Name, func(t *testing.T) {
				r := mirrored.Prove(t.Context(), &all[i], mirrored.Options{
					Work: 1, Seed: 1, Run: mirrored.RunOptions{Target: empty, Limit: 3 * time.Minute},
				})
				if major != recordedMajor {
					for i := range r.Runs {
						r.Runs[i].Report.Differences = documentsOnly(t, r.Runs[i].Report.Differences)
					}
				}
				if !r.OK() || r.Skipped != "" {
					t.Error(r.String())
				}
			})
		}
	})
}

// emptied returns what empties a set for each run, which has it to itself.
func emptied(t *testing.T, target cluster, conn *driver.Set) func(context.Context) (string, error) {
	//nolint:contextcheck // a test fails by itself, and has its own context
	return func(context.Context) (string, error) {
		for _, db := range append(databasesOf(t, conn), "replicator") {
			command(t, conn, db, bson.D{
				{Key: "dropDatabase", Value: 1}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
			})
		}
		return target.uriFor(admin), nil
	}
}

// documentsOnly shows the differences between options or indexes and returns the
// others.
func documentsOnly(t *testing.T, all []compare.Difference) (others []compare.Difference) {
	t.Helper()
	for _, d := range all {
		switch {
		case strings.HasPrefix(d.What, "option "), strings.HasPrefix(d.What, "index "):
			t.Logf("not the same, as the versions are not: %s", d)
		default:
			others = append(others, d)
		}
	}
	return others
}
