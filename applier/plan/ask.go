package plan

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Ask finds the Options of a target. What a server offers is found by trying, not by its version.
func Ask(ctx context.Context, target mongo.Caller, db string) (Options, error) {
	o := Options{Coalesce: true}
	var err error
	if o.InternalApply, err = AskInternalApply(ctx, target, db); err != nil || o.InternalApply {
		return o, err
	}
	set := bson.D{{Key: "field", Value: "x"}, {Key: "input", Value: "$$ROOT"}, {Key: "value", Value: 1}}
	has, err := accepts(ctx, target, db, bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$setField", Value: set}}}})
	if err != nil {
		return o, fmt.Errorf("ask the target whether it has $setField: %w", err)
	}
	o.NoFieldOperators = !has
	return o, nil
}

// AskInternalApply finds Options.InternalApply of a target by an update, in a database,
// that matches no document. Servers from 6.0 on have the stage, unless something keeps
// clients from using it.
func AskInternalApply(ctx context.Context, target mongo.Caller, db string) (bool, error) {
	delta := bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 1}}}}}}
	has, err := accepts(ctx, target, db, bson.D{{Key: "$_internalApplyOplogUpdate", Value: bson.D{{Key: "oplogUpdate", Value: delta}}}})
	if err != nil {
		return false, fmt.Errorf("ask the target whether it can apply deltas: %w", err)
	}
	return has, nil
}

// accepts reports whether a target accepts a stage in an update that matches no document.
func accepts(ctx context.Context, target mongo.Caller, db string, stage bson.D) (bool, error) {
	body, err := bson.Marshal(bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "nobody", Value: "has this"}}}}},
		{Key: "u", Value: bson.A{stage}},
	}}}})
	if err != nil {
		return false, err
	}
	reply, err := mongo.Twice(target).Call(ctx, mongo.Command{DB: db, Body: body})
	if k := servererr.Classify(err); k != servererr.None && !k.Passes() {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	refused, err := mongo.WriteErrors(reply)
	if err == nil && len(refused) > 0 && refused[0].Kind().Passes() {
		err = &refused[0].Error // of the server's present state, such as during an election
	}
	return err == nil && len(refused) == 0, err
}
