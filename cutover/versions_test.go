package cutover_test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/status"
)

// noLog is a set whose oplog the user may not read.
type noLog struct{ mongo.Caller }

// Call implements mongo.Caller.
func (n noLog) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB == "local" {
		return nil, &servererr.Error{Code: 13, Message: "not authorized"}
	}
	return n.Caller.Call(ctx, cmd)
}

// TestReversible: there is no way back if the old server does not understand entries that the new one logs
// for mirrored collections, if the filters are not recorded, or if the new side's oplog cannot be read to find
// foreign writes. Nothing else prevents one.
func TestReversible(t *testing.T) {
	t.Parallel()
	sets := map[string]mongo.Caller{}
	for _, version := range []string{"5.0", "6.0", "7.0", "8.0"} {
		sets[version] = open(t, version)
		for db, cmd := range map[string]string{
			"series": `{"create": "s", "timeseries": {"timeField": "at"}}`,
			"plain":  `{"create": "c"}`,
		} {
			must.Get(sets[version].Call(t.Context(), mongo.Command{DB: db, Body: bsongen.FromJSON(t, cmd)}))(t)
		}
	}
	sets["blind"] = noLog{sets["7.0"]}
	for _, c := range []struct {
		from, to, include string
		standing          status.Standing
		says              string
	}{
		{"7.0", "7.0", "series", status.Met, "7.0 knows all that 7.0 logs"},
		{"8.0", "5.0", "series", status.Met, "8.0 knows all that 5.0 logs"},
		{"6.0", "7.0", "series", status.Met, "it stops at the first collection or index whose options 7.0 has, and 6.0 does not"},
		{"5.0", "8.0", "plain", status.Met, "whose options 8.0 has"},
		{"5.0", "6.0", "series", status.Unmet, "5.0 would not read the buckets of the time series series.s that 6.0 writes"},
		{"7.0", "8.0", "series", status.Unmet, "7.0 would not read the buckets of the time series series.s that 8.0 writes"},
		{"7.0", "blind", "plain", status.Unmet, "may not read local.oplog.rs"},
		{"7.0", "7.0", "", status.Unmet, "not recorded"},
	} {
		st := checkpoint.State{Filters: &checkpoint.Filters{Include: []string{c.include}}}
		if c.include == "" {
			st.Filters = nil
		}
		p := must.Get(cutover.Reversible(t.Context(), sets[c.from], sets[c.to], &st, "replicator"))(t)
		if p.Standing != c.standing || !strings.Contains(p.Value, c.says) || (p.Standing == status.Unmet) != strings.Contains(p.Next, "--reverse=none") {
			t.Errorf("%s to %s: %+v", c.from, c.to, p)
		}
	}
}
