package command

import "github.com/oplogrep/replicator/internal/rawbson"

var commonWriteFields = []string{"ordered", "bypassDocumentValidation", "stmtId", "stmtIds", "collectionUUID"}

func writeSpecs() []spec {
	with := func(more ...string) []string { return append(more, commonWriteFields...) }
	return []spec{
		{
			name: "insert", fields: with("documents"), sequence: "documents",
			inTxn: true, writes: true, run: runInsert, check: mayWrite,
		},
		{
			name: "update", fields: with("updates", "let", "runtimeConstants"), sequence: "updates",
			inTxn: true, writes: true, run: runUpdate, check: mayWrite,
		},
		{
			name: "delete", fields: with("deletes", "let", "runtimeConstants"), sequence: "deletes",
			inTxn: true, writes: true, run: runDelete, check: mayWrite,
		},
		{
			name: "findAndModify", aliases: []string{"findandmodify"},
			fields: []string{
				"query", "sort", "remove", "update", "new", "fields", "upsert", "bypassDocumentValidation", "collation",
				"arrayFilters", "hint", "let", "stmtId", "runtimeConstants", "collectionUUID",
			},
			inTxn: true, writes: true, run: runFindAndModify, check: mayWrite,
		},
	}
}

// mayWrite asks for what the command's operations take.
func mayWrite(r *request) error {
	ns, err := r.firstName()
	if err != nil {
		return err
	}
	need := map[string]bool{}
	switch r.spec.name {
	case "insert":
		need["insert"] = true
	case "delete":
		need["remove"] = true
	case "update":
		need["update"] = true
		for _, doc := range r.docs["updates"] {
			if e, ok := rawbson.Lookup(doc, "upsert"); ok && e.Truth() {
				need["insert"] = true
			}
		}
	default:
		given := func(name string) bool {
			e, ok := rawbson.Lookup(r.cmd, name)
			return ok && e.Truth()
		}
		need["find"] = true
		need["remove"] = given("remove")
		need["update"] = !given("remove")
		need["insert"] = given("upsert")
	}
	if e, ok := rawbson.Lookup(r.cmd, "bypassDocumentValidation"); ok && e.Truth() {
		need["bypassDocumentValidation"] = true
	}
	for _, action := range []string{"find", "insert", "update", "remove", "bypassDocumentValidation"} {
		if need[action] {
			if err := r.allowed(action, ns.DB(), ns.Collection()); err != nil {
				return err
			}
		}
	}
	return nil
}
