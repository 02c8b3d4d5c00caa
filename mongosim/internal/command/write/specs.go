package write

import (
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
)

var commonWriteFields = []string{"ordered", "bypassDocumentValidation", "stmtId", "stmtIds", "collectionUUID"}

// Specs returns the commands of this package, for one server.
func Specs() []dispatch.Spec {
	t := &tables{}
	with := func(more ...string) []string { return append(more, commonWriteFields...) }
	return []dispatch.Spec{
		{
			Name: "insert", Fields: with("documents"), Sequence: "documents",
			InTxn: true, Writes: true, Run: t.runInsert, Check: mayWrite,
		},
		{
			Name: "update", Fields: with("updates", "let", "runtimeConstants"), Sequence: "updates",
			InTxn: true, Writes: true, Run: t.runUpdate, Check: mayWrite,
		},
		{
			Name: "delete", Fields: with("deletes", "let", "runtimeConstants"), Sequence: "deletes",
			InTxn: true, Writes: true, Run: t.runDelete, Check: mayWrite,
		},
		{
			Name: "findAndModify", Aliases: []string{"findandmodify"},
			Fields: []string{
				"query", "sort", "remove", "update", "new", "fields", "upsert", "bypassDocumentValidation", "collation",
				"arrayFilters", "hint", "let", "stmtId", "runtimeConstants", "collectionUUID",
			},
			InTxn: true, Writes: true, Run: t.runFindAndModify, Check: mayWrite,
		},
	}
}

// mayWrite requires the privileges of the command's operations.
func mayWrite(r *dispatch.Request) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	need := map[string]bool{}
	switch r.Spec.Name {
	case "insert":
		need["insert"] = true
	case "delete":
		need["remove"] = true
	case "update":
		need["update"] = true
		for _, doc := range r.Docs["updates"] {
			if e, ok := rawbson.Lookup(doc, "upsert"); ok && e.Truth() {
				need["insert"] = true
			}
		}
	default:
		given := func(name string) bool {
			e, ok := rawbson.Lookup(r.Cmd, name)
			return ok && e.Truth()
		}
		need["find"] = true
		need["remove"] = given("remove")
		need["update"] = !given("remove")
		need["insert"] = given("upsert")
	}
	if e, ok := rawbson.Lookup(r.Cmd, "bypassDocumentValidation"); ok && e.Truth() {
		need["bypassDocumentValidation"] = true
	}
	for _, action := range []string{"find", "insert", "update", "remove", "bypassDocumentValidation"} {
		if need[action] {
			if err := r.Allowed(action, ns.DB(), ns.Collection()); err != nil {
				return err
			}
		}
	}
	return nil
}
