package command

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestCollectionUUID: a command that says which collection it means does nothing to
// another one of the same name, and says where the one is that is meant.
func TestCollectionUUID(t *testing.T) {
	commands := []struct{ name, text string }{
		{"drop", `{drop: "c", collectionUUID: %s, $db: "d"}`},
		{"createIndexes", `{createIndexes: "c", indexes: [{key: {y: 1}, name: "y_1"}], collectionUUID: %s, $db: "d"}`},
		{"dropIndexes", `{dropIndexes: "c", index: "x_1", collectionUUID: %s, $db: "d"}`},
		{"collMod", `{collMod: "c", validationLevel: "off", collectionUUID: %s, $db: "d"}`},
		{"rename", `{renameCollection: "d.c", to: "d.new", collectionUUID: %s, $db: "admin"}`},
		{"rename over", `{renameCollection: "d.other", to: "d.c", dropTarget: %s, $db: "admin"}`},
		{"find", `{find: "c", collectionUUID: %s, $db: "d"}`},
		{"delete", `{delete: "c", deletes: [{q: {}, limit: 0}], collectionUUID: %s, $db: "d"}`},
	}
	const other = `{$binary: {base64: "AAECAwQFBgcICQoLDA0ODw==", subType: "04"}}`
	for _, version := range []string{"4.4.29", "5.0.7", "6.0.0", "7.0.0", "8.0.0"} {
		t.Run(version, func(t *testing.T) {
			old := version < "6"
			for _, c := range commands {
				m := newMember(t, version)
				m.run(t, `{insert: "c", documents: [{_id: 1, x: 1}], $db: "d"}`)
				m.run(t, `{createIndexes: "c", indexes: [{key: {x: 1}, name: "x_1"}], $db: "d"}`)
				m.run(t, `{create: "v", viewOn: "c", pipeline: [], $db: "d"}`)
				m.run(t, `{create: "other", $db: "d"}`)
				own := uuidText(t, m, "c")
				reply := m.run(t, fmt.Sprintf(c.text, other))
				if code := codeOf(reply); old && code == 0 || !old && !mismatch(reply) {
					t.Errorf("%s, of another collection: %s", c.name, reply)
				}
				if text := reply.String(); !old && !strings.Contains(text, `"expectedCollection": "c"`) {
					t.Errorf("%s: %s", c.name, reply)
				}
				if got := uuidText(t, m, "c"); got != own {
					t.Errorf("%s: c is another one now", c.name)
				}
				// A view has none, so it is never the one that is meant.
				view := strings.Replace(strings.Replace(c.text, `"c"`, `"v"`, 1), `"d.c"`, `"d.v"`, 1)
				reply = m.run(t, fmt.Sprintf(view, own))
				if !old && (!mismatch(reply) || !strings.Contains(reply.String(), `"actualCollection": "c"`)) {
					t.Errorf("%s, of a view: %s", c.name, reply)
				}
				reply = m.run(t, fmt.Sprintf(c.text, own))
				if code := codeOf(reply); old == (code == 0) {
					t.Errorf("%s: %s", c.name, reply)
				}
			}
		})
	}
}

// mismatch reports whether a command or statement was refused because of the UUID.
func mismatch(reply bson.Raw) bool {
	return codeOf(reply) == 361 || strings.Contains(reply.String(), `"code": {"$numberInt":"361"}`)
}

// uuidText returns the UUID of a collection of d, in extended JSON, empty where there is none.
func uuidText(t *testing.T, m *member, name string) string {
	t.Helper()
	reply := m.run(t, fmt.Sprintf(`{listCollections: 1, filter: {name: %q}, $db: "d"}`, name))
	docs, err := reply.Lookup("cursor", "firstBatch").Array().Values()
	if err != nil || len(docs) == 0 {
		return ""
	}
	return docs[0].Document().Lookup("info", "uuid").String()
}
