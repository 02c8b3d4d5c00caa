package ddl_test

import (
	"slices"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// TestUUIDs: commands name by UUID the intended collection, and the one they replace,
// where the server accepts that; and a collection is created in a transaction, which
// commits only under the lease.
func TestUUIDs(t *testing.T) {
	t.Parallel()
	for dialect, takes := range map[string]bool{"5.0": false, "6.0": true} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, dialect, ddl.Relaxed, scope.Config{})
			var sent []string
			b.before = func(cmd mongo.Command) error {
				elems, err := cmd.Body.Elements()
				if err != nil {
					return err
				}
				name := elems[0].Key()
				if !slices.Contains([]string{"create", "drop", "dropIndexes", "collMod", "createIndexes", "renameCollection"}, name) {
					return nil
				}
				sent = append(sent, name)
				if name == "create" {
					if auto, ok := cmd.Body.Lookup("autocommit").BooleanOK(); !ok || auto {
						t.Errorf("not in a transaction: %s", cmd.Body)
					}
					return nil
				}
				collection, _ := elems[0].Value().StringValueOK()
				ns := oplog.NewNamespace("db", collection)
				if name == "renameCollection" {
					ns = oplog.Namespace(collection)
				}
				want := uuidOf(t, b, ns)
				_, got, _ := cmd.Body.Lookup("collectionUUID").BinaryOK()
				if takes && !slices.Equal(got, want[:]) || !takes && got != nil {
					t.Errorf("want %x in %s", want, cmd.Body)
				}
				over := cmd.Body.Lookup("dropTarget")
				if name != "renameCollection" {
					return nil
				}
				want = uuidOf(t, b, "db.d")
				if _, got, _ = over.BinaryOK(); takes && !slices.Equal(got, want[:]) || !takes && !over.Boolean() {
					t.Errorf("want %x to be dropped in %s", want, cmd.Body)
				}
				return nil
			}
			for _, line := range []string{
				`c db.$cmd {"create": "c", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`,
				`c db.$cmd {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x_1"}`,
				`c db.$cmd {"dropIndexes": "c", "index": "x_1"} {"v": 2, "key": {"x": 1}, "name": "x_1"}`,
				`c db.$cmd {"collMod": "c", "validationLevel": "moderate"} {"collectionOptions_old": {}}`,
				`c db.$cmd {"create": "d", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`,
				`c db.$cmd {"renameCollection": "db.c", "to": "db.d", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}`,
				`c db.$cmd {"drop": "d"}`,
			} {
				if err := b.exec.Apply(t.Context(), b.operation(t, line), ddl.Once); err != nil {
					t.Fatal(line, err)
				}
			}
			b.before = nil
			want := []string{"create", "createIndexes", "dropIndexes", "collMod", "create", "renameCollection", "drop"}
			if !slices.Equal(slices.Compact(sent), want) {
				t.Errorf("sent %q, want %q", sent, want)
			}
		})
	}
}

// uuidOf returns the UUID of a collection in the catalog, without I/O.
func uuidOf(t *testing.T, b *bench, ns oplog.Namespace) oplog.UUID {
	t.Helper()
	coll, exists, err := b.cfg.Catalog.Get(t.Context(), ns)
	if err != nil || !exists {
		t.Errorf("%s is not known: %v", ns, err)
		return oplog.UUID{}
	}
	return coll.UUID
}
