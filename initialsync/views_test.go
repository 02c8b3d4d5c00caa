package initialsync_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/scope"
)

// TestInvalidViews: an invalid definition prevents no listing, at the source or on the
// target. It is reported if it is mirrored, and everything else is copied.
func TestInvalidViews(t *testing.T) {
	t.Parallel()
	source, target := start(t, 1, "5.0"), start(t, 2, "5.0")
	for _, s := range []*server{source, target} {
		s.json(t, "db",
			`{"create": "series", "timeseries": {"timeField": "t", "metaField": "m"}}`,
			`{"create": "view", "viewOn": "c", "pipeline": [{"$match": {"a": 1}}]}`)
		s.fill(t, "db", "c", 10, 1)
	}
	source.json(t, "db",
		`{"create": "collated", "viewOn": "c", "pipeline": [], "collation": {"locale": "de"}}`,
		`{"insert": "system.views", "documents": [
			{"_id": "db.bad", "viewOn": "c", "pipeline": 7}, {"_id": "db.not mirrored", "viewOn": "c"}, {"_id": "other.view", "viewOn": "c", "pipeline": []},
			{"_id": 7, "viewOn": "c", "pipeline": []}]}`)
	target.json(t, "db", `{"insert": "system.views", "documents": [{"_id": "db.old", "pipeline": []}]}`)
	l := newLink(t, source, target, scope.Config{Exclude: []string{"db.not mirrored"}})
	l.cfg.Observer = func(event.Event) {}
	c, link, err := l.run(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range c.Progress().Failed {
		failed = append(failed, string(f.NS)+": "+f.Why)
	}
	slices.Sort(failed)
	const invalid = "its definition in system.views is invalid: "
	if diff := cmp.Diff([]string{
		"db.bad: " + invalid + "its pipeline is not an array of documents; remove or correct it there",
		`db.system.views {"$numberInt":"7"}: ` + invalid + "its _id is not the name of a view of db; remove or correct it there",
		"other.view: " + invalid + "its _id is not the name of a view of db; remove or correct it there",
	}, failed); diff != "" {
		t.Errorf("left out: -want +got:\n%s", diff)
	}
	source.json(t, "db", `{"delete": "system.views", "deletes": [{"q": {"_id": {"$in": ["db.bad", "db.not mirrored", "other.view", 7]}}, "limit": 0}]}`)
	l.check(t, link)
}
