package ddl

import (
	"context"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// creation is the command that builds indexes.
func (s *step) creation(coll *catalog.Collection, specs []*DeferredSpec) change {
	list := bsoncore.NewArrayBuilder()
	for _, h := range specs {
		list.AppendDocument(bsoncore.Document(asked(coll, h).document()))
	}
	ns := coll.NS
	// By default the build would wait for every voting member, even one that is down.
	return change{
		db: ns.DB(), name: "createIndexes", first: ns.Collection(), coll: coll, builds: true,
		rest: fields{{"indexes", bson.RawValue{Type: bson.TypeArray, Value: list.Build()}}, {optionQuorum, stringValue("majority")}},
	}
}

// optionQuorum says how many members have to be ready before an index build commits.
const optionQuorum = "commitQuorum"

// sendBuild sends the command that builds indexes. If the set has too few members that build any, the primary alone has to be ready:
// the others wait for their own builds, as far as they have any, before they apply anything after the commit.
func (s *step) sendBuild(ctx context.Context, coll *catalog.Collection, specs []*DeferredSpec) error {
	d := s.creation(coll, specs)
	_, err := s.send(ctx, d)
	if says(err, servererr.IsQuorumUnsatisfiable) {
		s.log(slog.LevelWarn, "index is built without a majority of members that are ready, as too few of the target's build indexes",
			slog.String(keyNS, string(coll.NS)), slog.Any(keyError, err))
		d.readyAlone()
		_, err = s.send(ctx, d)
	}
	return err
}

// readyAlone makes a build commit once it is ready on the primary.
func (d *change) readyAlone() {
	d.rest = d.rest.set(optionQuorum, bson.RawValue{Type: bson.TypeInt32, Value: bsoncore.AppendInt32(nil, 1)})
}

// isLeftOut reports whether the target refused an index for a reason that stays: for its definition, as a target of another version
// does, for documents that it cannot contain, or for the memory that its build needs.
func isLeftOut(err error) bool {
	return says(err, servererr.IsIndexRefused) || says(err, servererr.IsBuildTooLarge) ||
		says(err, func(err error) bool { return servererr.KeyFaultOf(err) != servererr.AnyKey })
}

// isOfDocuments reports whether an index was not built because of documents that the source's index contains: one of another shape or text than the
// target's version takes, or more than there is memory for. Each try reads them.
func isOfDocuments(err error) bool {
	return says(err, servererr.IsBuildTooLarge) || says(err, func(err error) bool { return servererr.KeyFaultOf(err).DependsOnVersion() })
}

// mayBuild is busy for index builds: one that exceeds the memory would read the whole collection, and do so again.
func mayBuild(err error) bool { return busy(err) && !says(err, servererr.IsBuildTooLarge) }

// again reports whether a command is sent again after a refusal.
func (d *change) again(err error) bool {
	switch d.name {
	case "createIndexes":
		return mayBuild(err)
	case "collMod":
		return busy(err) || says(err, servererr.IsIndexModified)
	}
	return busy(err)
}
