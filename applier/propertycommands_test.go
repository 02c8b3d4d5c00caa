package applier

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

// command logs a command: a collection is created, or one of the model's is made anew, or replaced. The new one may be capped.
func (m *model) command(t *rapid.T) {
	kind := 0
	if m.renews {
		kind = rapid.IntRange(0, 2).Draw(t, "command")
	}
	switch kind {
	case 1:
		m.recreate(t)
	case 2:
		m.replace(t)
	default:
		name := fmt.Sprintf("made%d", len(m.entries))
		m.alone(commandOp(m.db, bson.D{{Key: "create", Value: name}}))
		m.versions[m.db+"/"+name] = []version{{len(m.entries) - 1, 1}}
	}
}

// recreate logs that a collection is dropped and created again.
func (m *model) recreate(t *rapid.T) {
	coll := m.replaceable(t)
	m.end()
	m.becomes(coll, nil)
	m.alone(commandOp(m.db, bson.D{{Key: "drop", Value: coll}}))
	m.create(t, coll)
}

// replace logs that a collection is replaced by another one, which is renamed.
func (m *model) replace(t *rapid.T) {
	coll, name := m.replaceable(t), fmt.Sprintf("tmp%d", len(m.entries))
	m.create(t, name)
	docs := map[int]int{}
	for id := range rapid.IntRange(0, 4).Draw(t, "documents") {
		m.v++
		docs[id] = m.v
		m.add(insertOp(m.db+"."+name, doc(id, m.v)))
	}
	m.end()
	m.becomes(coll, docs)
	m.alone(commandOp(m.db, bson.D{
		{Key: "renameCollection", Value: m.db + "." + name},
		{Key: "to", Value: m.db + "." + coll},
		{Key: "stayTemp", Value: false},
		{Key: "dropTarget", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}},
	}))
}

func (m *model) replaceable(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "a", "b", "t0"}).Draw(t, "replaced")
}

// create logs the create of a collection, which may be capped. It never becomes full.
func (m *model) create(t *rapid.T, name string) {
	cmd := bson.D{{Key: "create", Value: name}}
	if rapid.Bool().Draw(t, "capped") {
		cmd = append(cmd, bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 1 << 20})
	}
	m.alone(commandOp(m.db, cmd))
}

// becomes records that the next entry gives a collection these documents, and no others.
func (m *model) becomes(coll string, docs map[int]int) {
	ns := m.db + "." + coll
	for id, live := range m.live[ns] {
		if live && docs[id] == 0 {
			m.note(ns, id, 0)
		}
		m.live[ns][id] = false
	}
	for id, v := range docs {
		m.live[ns][id] = true
		m.note(ns, id, v)
	}
}
