package ddl_test

import (
	"fmt"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/servererr"
)

// A refusal is of the indexes that can be meant by its code, and by one that says
// nothing, of all that refuse anything.
func TestMayRefuse(t *testing.T) {
	t.Parallel()
	keys := []string{
		`{"a": 1}`, `{"a": 1, "b": -1}`, `{"a": "2d"}`, `{"a": "2dsphere", "b": 1}`, `{"a": "2dsphere_bucket"}`, `{"a": "hashed"}`,
		`{"_fts": "text", "_ftsx": 1}`, `{"$**": 1}`, `{"a.0.b": 1}`,
	}
	const all = "[1 2 3 4 5 6 7 8]"
	for code, want := range map[servererr.Code]string{
		servererr.CannotIndexParallelArrays: "[1 3 6]",
		16746:                               "[8]",
		16755:                               "[3 4]",
		16756:                               "[3 4]",
		183934:                              "[3 4]",
		13026:                               "[2]",
		13027:                               "[2]",
		13068:                               "[2]",
		16804:                               "[2]",
		16766:                               "[5]",
		17261:                               "[6]",
		17262:                               "[6]",
		0:                                   all,
		12345:                               all,
	} {
		var got []int
		for i, key := range keys {
			if ddl.MayRefuse(code, doc(t, `{"key": `+key+`}`)) {
				got = append(got, i)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%d: %v, want %s", code, got, want)
		}
	}
}
