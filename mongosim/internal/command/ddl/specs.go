package ddl

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

func ddlSpecs() []dispatch.Spec {
	return []dispatch.Spec{
		{Name: "create", Run: runCreate, Fields: createFields, InTxn: true, Writes: true, Check: dispatch.Needs("createCollection")},
		{Name: "drop", Run: runDrop, Fields: []string{uuidField}, Writes: true, Check: dispatch.Needs("dropCollection")},
		{Name: "dropDatabase", Run: runDropDatabase, Fields: []string{}, Writes: true, Check: dispatch.NeedsDB("dropDatabase")},
		{Name: "collMod", Run: runCollMod, Fields: collModFields, Writes: true, Check: dispatch.Needs("collMod")},
		{Name: "convertToCapped", Run: runConvertToCapped, Fields: []string{"size"}, Writes: true, Check: dispatch.Needs("convertToCapped")},
		{Name: "emptycapped", Run: runEmptyCapped, Fields: []string{}, Writes: true, Test: true, Check: dispatch.Needs("emptycapped")},
		{
			Name: "renameCollection", Run: runRename, Fields: []string{"to", "dropTarget", "stayTemp", uuidField},
			AdminOnly: true, Writes: true, Check: needsRename,
		},
	}
}

func indexCommands() []dispatch.Spec {
	return []dispatch.Spec{
		{
			Name: "createIndexes", Run: runCreateIndexes, Fields: []string{"indexes", "commitQuorum", "ignoreUnknownIndexOptions", uuidField},
			InTxn: true, Writes: true, Check: dispatch.Needs("createIndex"),
		},
		{
			Name: "dropIndexes", Aliases: []string{"deleteIndexes"}, Run: runDropIndexes, Fields: []string{"index", uuidField},
			Writes: true, Check: dispatch.Needs("dropIndex"),
		},
	}
}

// needsRename requires the privileges on both sides of a rename.
func needsRename(r *dispatch.Request) error {
	from, err := renameName(r, r.Name, "source")
	if err != nil {
		return err
	}
	to, err := renameName(r, "to", "target")
	if err != nil {
		return err
	}
	type need struct{ action, db, coll string }
	needs := []need{
		{"find", from.DB(), from.Collection()},
		{"dropCollection", from.DB(), from.Collection()},
		{"insert", to.DB(), to.Collection()},
		{"createIndex", to.DB(), to.Collection()},
	}
	e, _ := rawbson.Lookup(r.Cmd, "dropTarget")
	over := e.Truth() || e.Type == bson.TypeBinary
	if over {
		needs = append(needs, need{"dropCollection", to.DB(), to.Collection()})
	}
	// Within a database fewer are enough, unless it would move an unreadable
	// collection to a readable name (rename_collection_common.cpp).
	//nolint:nilerr // The refusal is a condition here, not the reply.
	if from.DB() == to.DB() && r.Allowed("renameCollectionSameDB", from.DB(), "") == nil &&
		(!over || r.Allowed("dropCollection", to.DB(), to.Collection()) == nil) &&
		(r.Allowed("find", from.DB(), from.Collection()) == nil || r.Allowed("find", to.DB(), to.Collection()) != nil) {
		return nil
	}
	for _, need := range needs {
		if err := r.Allowed(need.action, need.db, need.coll); err != nil {
			return err
		}
	}
	return nil
}

// Specs returns the commands of this package.
func Specs() []dispatch.Spec { return slices.Concat(ddlSpecs(), indexCommands()) }
