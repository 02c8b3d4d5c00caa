package preflight

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// targetDisk is the name of the check of the target's disk.
const targetDisk = "target disk"

const (
	// leastShare is the share of a disk (1/n) that has to be free for a target that is about to take all
	// writes, and to build indexes; leastFree is sufficient on any disk.
	leastShare = 20
	leastFree  = 50 << 30
)

// room checks whether the disk of the target's primary has room.
func (c *checker) room(ctx context.Context, s *server) error {
	reply, err := ask(ctx, s.caller, c.cfg.MetaDB, bson.D{{Key: "dbStats", Value: 1}})
	if e, ok := refusal(err); ok {
		c.warn(targetDisk, "Look yourself: after the cutover it takes all writes.", "not known: %s", told(e))
		return nil
	}
	if err != nil {
		return err
	}
	used, _ := reply.Lookup("fsUsedSize").AsFloat64OK()
	total, known := reply.Lookup("fsTotalSize").AsFloat64OK()
	free := max(0, total-used)
	switch {
	case !known || total <= 0:
		c.warn(targetDisk, "Look yourself: after the cutover it takes all writes.", "not known: the server does not tell it")
	case free < min(total/leastShare, leastFree):
		c.fail(targetDisk, "Make room: after the cutover it takes all writes, and indexes are built before.",
			"%s of %s are free on the primary", bytesText(int64(free)), bytesText(int64(total)))
	default:
		c.ok(targetDisk, "%s of %s are free on the primary", bytesText(int64(free)), bytesText(int64(total)))
	}
	return nil
}
