package mongosim

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestOtherCaseAfterElection: a member that has applied the log, and is primary now, accepts a database whose name differs in case only
// from that of one which was dropped before, and refuses it while that is there.
func TestOtherCaseAfterElection(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 3, Seed: 1, Dialect: "7.0"})
	create := func(c *client, db string) error {
		_, err := c.call(ctx, db, bson.D{{Key: "create", Value: "c"}, {Key: "writeConcern", Value: w(3)}})
		return err
	}
	first := dial(t, s.Primary())
	succeed(t, create(first, "Shop"))
	succeed(t, create(first, "Kept"))
	first.run(ctx, "Shop", bson.D{{Key: "dropDatabase", Value: 1}, {Key: "writeConcern", Value: w(3)}})
	succeed(t, s.StepDown(ctx))
	next := dial(t, must[*Member](t)(s.AwaitPrimary(ctx)))
	succeed(t, create(next, "shop"))
	wantCode(t, "create kept.c", create(next, "kept"), 13297)
}
