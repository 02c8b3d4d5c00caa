package traffic

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCheck: each of the faults that a mirror could have is found.
func TestCheck(t *testing.T) {
	t.Parallel()
	// many are n documents with a field, as they are without a fault; wrong, if not nil, is in place of the first one.
	many := func(n int, of func(i int) bson.D, wrong bson.D) (docs []bson.Raw) {
		for i := range n {
			d := of(i)
			if i == 0 && wrong != nil {
				d = wrong
			}
			docs = append(docs, must.Get(bson.Marshal(d))(t))
		}
		return docs
	}
	pair := func(i int) bson.D { return fields("_id", int32(i), "v", int32(i)) }
	account := func(i int) bson.D { return fields("_id", int32(i), "amount", int64(balance)) }
	member := func(i int) bson.D { return fields("_id", int32(i), "stamp", int64(i/membersOf)) }
	row := func(i int) bson.D { return fields("_id", int32(i), "run", int64(7), "of", int32(4)) }
	for _, tt := range []struct {
		name        string
		check       func([]bson.Raw) error
		good, wrong []bson.Raw
	}{
		{"value twice", checkPairs, many(pairsKeys, pair, nil), many(pairsKeys, pair, fields("_id", int32(0), "v", int32(1)))},
		{"pair missing", checkPairs, many(pairsKeys, pair, nil), many(pairsKeys-1, pair, nil)},
		{"amount lost", checkAccounts, many(accountsKeys, account, nil), many(accountsKeys, account, fields("_id", int32(0), "amount", int64(1)))},
		{"aborted insert", checkAccounts, many(accountsKeys, account, nil), many(accountsKeys, account, one("_id", "void-1-0"))},
		{"torn group", checkGroups, many(groupsKeys*membersOf, member, nil), many(groupsKeys*membersOf, member, fields("_id", int32(0), "stamp", int64(9)))},
		{"incomplete report", checkReport, many(4, row, nil), many(3, row, nil)},
		{"mixed report", checkReport, many(4, row, nil), many(4, row, fields("_id", int32(0), "run", int64(6), "of", int32(4)))},
	} {
		if err := tt.check(tt.good); err != nil {
			t.Errorf("%s: %v without a fault", tt.name, err)
		}
		if tt.check(tt.wrong) == nil {
			t.Errorf("%s: not found", tt.name)
		}
	}
	docs := many(3, func(int) bson.D { return one("at", future) }, one("at", bson.A{future, past}))
	if n := expired(docs); n != 1 {
		t.Errorf("%d of %s have expired, want 1", n, docs)
	}
}
