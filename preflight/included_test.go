package preflight

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestIncludedNothing: a new link is warned of each value of --include that nothing of the source matches, and may begin.
func TestIncludedNothing(t *testing.T) {
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Moods: mongosim.GentleMoods("nothing here begins another attempt")})
	source := client.Open(t, driver.Config{URI: set.URI()})
	must.Get(source.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "create", Value: "orders"}}))(t)}))(t)
	for name, tt := range map[string]struct {
		include []string
		found   bool
		want    string // of the values
	}{
		"no filter":                 {},
		"a database":                {include: []string{"shop"}},
		"a collection":              {include: []string{"shop.orders"}},
		"a pattern":                 {include: []string{"sh*.ord?rs"}},
		"another database":          {include: []string{"shopp"}, want: "shopp"},
		"another collection":        {include: []string{"shop.order"}, want: "shop.order"},
		"a pattern of nothing":      {include: []string{"*.users"}, want: "*.users"},
		"two of three":              {include: []string{"shopp", "shop", "shop.x"}, want: "shopp, --include shop.x"},
		"a link that exists":        {include: []string{"shopp"}, found: true},
		"a database of the server":  {include: []string{"loca?"}, want: "loca?"},
		"an expression of nothing":  {include: []string{"/shopp\\..*/"}, want: "/shopp\\..*/"},
		"an expression that is met": {include: []string{"/shop\\..*/"}},
	} {
		c := &checker{cfg: Config{Include: tt.include, MetaDB: "replicator", Copy: true}}
		c.report.Found = tt.found
		if err := c.included(t.Context(), &server{side: "source", caller: source}); err != nil || c.report.Err() != nil {
			t.Fatal(name, err, c.report.Err())
		}
		got := ""
		for _, f := range c.report.Findings {
			if f.Level != Warn {
				t.Errorf("%s: %+v", name, f)
			}
			got = f.Detail
		}
		if want := "nothing that the source has matches --include " + tt.want; tt.want == "" && got != "" || tt.want != "" && !strings.Contains(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
