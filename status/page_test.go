package status

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestPageFixture: what the tests of the page take for a status has the fields of one, and all of
// them that are always there.
func TestPageFixture(t *testing.T) {
	t.Parallel()
	text := must.Get(os.ReadFile("../test/browser/testdata/base.json"))(t)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var s Snapshot
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	var given, has any
	must.Succeed(t, json.Unmarshal(text, &given))
	must.Succeed(t, json.Unmarshal([]byte(jsonOf(t, s)), &has))
	lacks(t, "", given, has)
}

// lacks reports the names that has has, and given lacks.
func lacks(t *testing.T, path string, given, has any) {
	t.Helper()
	switch has := has.(type) {
	case map[string]any:
		given, _ := given.(map[string]any)
		for name, v := range has {
			g, ok := given[name]
			if !ok {
				t.Errorf("base.json lacks %s.%s", path, name)
				continue
			}
			lacks(t, path+"."+name, g, v)
		}
	case []any:
		given, _ := given.([]any)
		for i := range min(len(has), len(given)) {
			lacks(t, path+"[]", given[i], has[i])
		}
	}
}
