package command

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

func ddlSpecs() []spec {
	return []spec{
		{name: "create", run: runCreate, fields: createFields, inTxn: true, writes: true, check: needs("createCollection")},
		{name: "drop", run: runDrop, fields: []string{uuidField}, writes: true, check: needs("dropCollection")},
		{name: "dropDatabase", run: runDropDatabase, fields: []string{}, writes: true, check: needsDB("dropDatabase")},
		{name: "collMod", run: runCollMod, fields: collModFields, writes: true, check: needs("collMod")},
		{name: "convertToCapped", run: runConvertToCapped, fields: []string{"size"}, writes: true, check: needs("convertToCapped")},
		{name: "emptycapped", run: runEmptyCapped, fields: []string{}, writes: true, test: true, check: needs("emptycapped")},
		{
			name: "renameCollection", run: runRename, fields: []string{"to", "dropTarget", "stayTemp", uuidField},
			adminOnly: true, writes: true, check: needsRename,
		},
	}
}

func indexSpecs() []spec {
	return []spec{
		{
			name: "createIndexes", run: runCreateIndexes, fields: []string{"indexes", "commitQuorum", "ignoreUnknownIndexOptions", uuidField},
			inTxn: true, writes: true, check: needs("createIndex"),
		},
		{
			name: "dropIndexes", aliases: []string{"deleteIndexes"}, run: runDropIndexes, fields: []string{"index", uuidField},
			writes: true, check: needs("dropIndex"),
		},
	}
}

// needs asks for an action on the collection that the command names.
func needs(action string) func(*request) error {
	return func(r *request) error {
		ns, err := r.firstName()
		if err != nil {
			return err
		}
		return r.allowed(action, ns.DB(), ns.Collection())
	}
}

// needsDB asks for an action on the command's database.
func needsDB(action string) func(*request) error {
	return func(r *request) error { return r.allowed(action, r.db, "") }
}

// needsRename asks for what the two sides of a rename take.
func needsRename(r *request) error {
	from, err := renameName(r, r.name, "source")
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
	e, _ := rawbson.Lookup(r.cmd, "dropTarget")
	over := e.Truth() || e.Type == bson.TypeBinary
	if over {
		needs = append(needs, need{"dropCollection", to.DB(), to.Collection()})
	}
	// Within a database less is enough, but not to bring what one may not read to
	// where one may (rename_collection_common.cpp).
	//nolint:nilerr // A refusal decides, and is not what is answered.
	if from.DB() == to.DB() && r.allowed("renameCollectionSameDB", from.DB(), "") == nil &&
		(!over || r.allowed("dropCollection", to.DB(), to.Collection()) == nil) &&
		(r.allowed("find", from.DB(), from.Collection()) == nil || r.allowed("find", to.DB(), to.Collection()) != nil) {
		return nil
	}
	for _, need := range needs {
		if err := r.allowed(need.action, need.db, need.coll); err != nil {
			return err
		}
	}
	return nil
}

// allowed asks the Authorizer, if there is one.
func (r *request) allowed(action, db, coll string) error {
	if r.srv.cfg.Auth == nil || r.conn.Internal {
		return nil
	}
	return r.srv.cfg.Auth.Check(r.conn, action, db, coll, r.cmd)
}
