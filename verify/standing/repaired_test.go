package standing

import (
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestRepairedMany: of a repair of very many documents those are kept that are known to differ, and what earlier ones have repaired
// does not differ again.
func TestRepairedMany(t *testing.T) {
	t.Parallel()
	s := newBook(t)
	round, _ := s.begin(90, list("d.a"))
	r := result(round.N, cutAt(101, s.future+101))
	r.Tally = Tally{EqualDocs: 10, Missing: 1, Differs: 2}
	r.Found = []Found{NewFound("differs", "0", "", ""), NewFound("missing", "first", "", ""), NewFound("differs", "other", "", "")}
	must.Succeed(t, s.SaveResult(t.Context(), list("d.a")[0], r, s.told("d.a")))
	s.end(&round)
	differ := func(what string, want int64) {
		t.Helper()
		if st := read(t, s.Store); st.Differences != want {
			t.Errorf("%s: %d differences, want %d", what, st.Differences, want)
		}
	}
	differ("compared", 3)
	at := bson.Timestamp{T: s.future + 200}
	must.Succeed(t, s.Repaired(t.Context(), "d.a", []string{"first"}, at))
	differ("one", 2)
	many := make([]string, 2*mostRepaired)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	must.Succeed(t, s.Repaired(t.Context(), "d.a", many, at))
	differ("a range", 1)
	must.Succeed(t, s.Repaired(t.Context(), "d.a", []string{"other"}, at))
	differ("all", 0)
}
