package inventory_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// model is a source that has only names and an oplog. It is the Source and the Log of a
// listing.
type model struct {
	t testing.TB

	mu sync.Mutex
	// byName are the existing collections and views, the latter with zero UUIDs.
	byName map[oplog.Namespace]oplog.UUID
	// entries are the oplog; the time of each is its index in it, from 1.
	entries []bson.Raw
	created uint64
	// open are the transactions that have entries, by their number.
	open map[int]*openTxn
	txns int

	begin oplog.OpTime
	// atBegin are the names of the collections at Begin, used the names of collections
	// at Begin or later; inserted are the views that were created after Begin.
	atBegin        map[oplog.UUID]oplog.Namespace
	used, inserted map[oplog.Namespace]bool

	// lists are what listCollections shows, of databases where it is not of now;
	// listedAt is the time of it.
	lists    map[string][]bson.Raw
	listedAt map[string]uint32
	waited   bson.Timestamp
	refuse   map[string]servererr.Code // by the command's name
	asked    []string
	byteSize map[oplog.UUID]int64
}

type openTxn struct {
	ns   oplog.Namespace
	uuid oplog.UUID
	prev oplog.OpTime
}

func newModel(t testing.TB) *model {
	m := &model{
		t: t, byName: map[oplog.Namespace]oplog.UUID{}, open: map[int]*openTxn{},
		lists: map[string][]bson.Raw{}, listedAt: map[string]uint32{}, used: map[oplog.Namespace]bool{},
		inserted: map[oplog.Namespace]bool{}, refuse: map[string]servererr.Code{}, byteSize: map[oplog.UUID]int64{},
	}
	m.note()
	return m
}

func (m *model) newUUID() oplog.UUID {
	m.created++
	var u oplog.UUID
	binary.BigEndian.PutUint64(u[8:], m.created)
	return u
}

func (m *model) now() oplog.OpTime { return oplog.NewOpTime(1, uint32(len(m.entries)), 1) }

// log appends an entry.
func (m *model) log(op, ns string, ui oplog.UUID, o bson.D, more ...bson.E) oplog.OpTime {
	at := oplog.NewOpTime(1, uint32(len(m.entries))+1, 1)
	e := bson.D{
		{Key: "op", Value: op},
		{Key: "ns", Value: ns},
		{Key: "o", Value: o},
		{Key: "ts", Value: at.TS},
		{Key: "t", Value: at.Term},
		{Key: "v", Value: int64(2)},
		{Key: "wall", Value: bson.DateTime(0)},
	}
	if !ui.IsZero() {
		e = append(e, bson.E{Key: "ui", Value: ui.Binary()})
	}
	m.entries = append(m.entries, must.Marshal(m.t, append(e, more...)))
	return at
}

func (m *model) command(ns oplog.Namespace, ui oplog.UUID, o bson.D) {
	m.log("c", ns.DB()+".$cmd", ui, o)
}

func (m *model) note() { m.log("n", "", oplog.UUID{}, bson.D{{Key: "msg", Value: "x"}}) }

func (m *model) appear(ns oplog.Namespace, u oplog.UUID) {
	m.byName[ns] = u
	m.used[ns] = true
}

// free reports whether a name is unused.
func (m *model) free(ns oplog.Namespace) bool {
	if _, taken := m.byName[ns]; taken {
		return false
	}
	for _, x := range m.open {
		if x.ns == ns {
			return false
		}
	}
	return true
}

func (m *model) collection(ns oplog.Namespace) (oplog.UUID, bool) {
	u, ok := m.byName[ns]
	return u, ok && !u.IsZero()
}

// do carries out one line; it returns false if the line is not applicable now.
func (m *model) do(line string) bool {
	words := strings.Fields(line)
	ns, to := oplog.Namespace(""), oplog.Namespace("")
	if len(words) > 1 {
		ns = oplog.Namespace(words[1])
	}
	if len(words) > 2 {
		to = oplog.Namespace(words[2])
	}
	switch words[0] {
	case "create":
		if !m.free(ns) {
			return false
		}
		u := m.newUUID()
		m.command(ns, u, bson.D{{Key: "create", Value: ns.Collection()}})
		m.appear(ns, u)
	case "drop":
		u, ok := m.collection(ns)
		if !ok {
			return false
		}
		m.command(ns, u, bson.D{{Key: "drop", Value: ns.Collection()}})
		delete(m.byName, ns)
	case "rename": // over an existing collection
		u, ok := m.collection(ns)
		over, there := m.byName[to]
		if !ok || ns == to || ns.DB() != to.DB() || there && over.IsZero() || !there && !m.free(to) {
			return false
		}
		o := bson.D{{Key: "renameCollection", Value: string(ns)}, {Key: "to", Value: string(to)}, {Key: "stayTemp", Value: false}}
		if there {
			o = append(o, bson.E{Key: "dropTarget", Value: over.Binary()})
		}
		m.command(ns, u, o)
		delete(m.byName, ns)
		m.appear(to, u)
	case "view":
		if !m.free(ns) {
			return false
		}
		m.log("i", ns.DB()+".system.views", m.viewsUUID(ns.DB()), bson.D{{Key: "_id", Value: string(ns)}, {Key: "viewOn", Value: "x"}})
		m.byName[ns] = oplog.UUID{}
		m.inserted[ns] = true
	case "unview":
		if u, ok := m.byName[ns]; !ok || !u.IsZero() {
			return false
		}
		m.log("d", ns.DB()+".system.views", m.viewsUUID(ns.DB()), bson.D{{Key: "_id", Value: string(ns)}})
		delete(m.byName, ns)
	default:
		return m.doCopy(words[0], ns) || m.doTxn(words[0], ns)
	}
	return true
}

// doCopy carries out an act of the copy, and reports whether it is one.
func (m *model) doCopy(act string, ns oplog.Namespace) bool {
	switch act {
	case "begin":
		m.begin, m.atBegin = m.now(), map[oplog.UUID]oplog.Namespace{}
		clear(m.used)
		clear(m.inserted)
		for ns, u := range m.byName {
			if !u.IsZero() {
				m.atBegin[u] = ns
				m.used[ns] = true
			}
		}
	case "list": // a database, or all that were not
		dbs := []string{string(ns)}
		if ns == "" {
			dbs = m.databases()
		}
		for _, db := range dbs {
			if _, done := m.listedAt[db]; !done {
				m.lists[db], m.listedAt[db] = m.listing(db), uint32(len(m.entries))
			}
		}
	case "note":
		m.note()
	default:
		return false
	}
	return true
}

// doTxn carries out an act of transactions, and reports whether it is one.
func (m *model) doTxn(act string, ns oplog.Namespace) bool {
	switch act {
	case "txn": // the first part of a transaction that creates ns
		if !m.free(ns) {
			return false
		}
		m.txns++
		x := &openTxn{ns: ns, uuid: m.newUUID()}
		x.prev = m.part(m.createOf(x), oplog.OpTime{Term: -1}, bson.E{Key: "partialTxn", Value: true})
		m.open[m.txns] = x
	case "more", "prepare", "commit", "abort": // of the transaction that began first
		if len(m.open) == 0 {
			return false
		}
		n := slices.Min(slices.Collect(maps.Keys(m.open)))
		m.next(act, m.open[n])
		if act == "commit" || act == "abort" {
			delete(m.open, n)
		}
	case "whole": // a transaction of one entry
		if !m.free(ns) {
			return false
		}
		x := &openTxn{ns: ns, uuid: m.newUUID()}
		m.part(m.createOf(x), oplog.OpTime{Term: -1})
		m.appear(ns, x.uuid)
	default:
		m.t.Fatalf("no such act: %q", act)
	}
	return true
}

func (m *model) createOf(x *openTxn) bson.D {
	return bson.D{
		{Key: "op", Value: "c"},
		{Key: "ns", Value: x.ns.DB() + ".$cmd"},
		{Key: "ui", Value: x.uuid.Binary()},
		{Key: "o", Value: bson.D{{Key: "create", Value: x.ns.Collection()}}},
	}
}

// part logs a part of a transaction.
func (m *model) part(inner bson.D, prev oplog.OpTime, more ...bson.E) oplog.OpTime {
	ops := bson.A{}
	if inner != nil {
		ops = append(ops, inner)
	}
	o := append(bson.D{{Key: "applyOps", Value: ops}}, more...)
	return m.log("c", "admin.$cmd", oplog.UUID{}, o, bson.E{Key: "prevOpTime", Value: prev})
}

func (m *model) next(what string, x *openTxn) {
	end := func(name string) {
		m.log("c", "admin.$cmd", oplog.UUID{}, bson.D{{Key: name, Value: 1}, {Key: "commitTimestamp", Value: x.prev.TS}}, bson.E{Key: "prevOpTime", Value: x.prev})
	}
	switch what {
	case "more":
		x.prev = m.part(nil, x.prev, bson.E{Key: "partialTxn", Value: true})
	case "prepare":
		x.prev = m.part(nil, x.prev, bson.E{Key: "prepare", Value: true})
	case "abort":
		end("abortTransaction")
	default:
		if x.prev.TS.I%2 == 0 { // by itself, or as it was prepared
			end("commitTransaction")
		} else {
			m.part(nil, x.prev)
		}
		m.appear(x.ns, x.uuid)
	}
}

func (m *model) viewsUUID(db string) oplog.UUID { return oplog.UUID{0: 0xfe, 1: db[0]} }

func (m *model) databases() []string {
	dbs := map[string]bool{"local": true, "config": true, "admin": true}
	for ns := range m.byName {
		dbs[ns.DB()] = true
	}
	for db := range m.lists {
		dbs[db] = true
	}
	return slices.Sorted(maps.Keys(dbs))
}

func (m *model) listing(db string) []bson.Raw {
	list := []bson.Raw{must.Marshal(m.t, bson.D{
		{Key: "name", Value: "system.views"},
		{Key: "type", Value: "collection"},
		{Key: "options", Value: bson.D{}},
		{Key: "info", Value: bson.D{{Key: "uuid", Value: m.viewsUUID(db).Binary()}}},
	})}
	for ns, u := range m.byName {
		if ns.DB() != db {
			continue
		}
		kind, info, options := "collection", bson.D{{Key: "uuid", Value: u.Binary()}}, bson.D{}
		if u.IsZero() {
			kind, info, options = "view", bson.D{{Key: "readOnly", Value: true}}, bson.D{{Key: "viewOn", Value: "x"}, {Key: "pipeline", Value: bson.A{}}}
		}
		list = append(list, must.Marshal(m.t, bson.D{
			{Key: "name", Value: ns.Collection()},
			{Key: "type", Value: kind},
			{Key: "options", Value: options},
			{Key: "info", Value: info},
		}))
	}
	return list
}

// Call implements mongo.Caller.
func (m *model) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := cmd.Body.Index(0)
	m.asked = append(m.asked, first.Key())
	if code := m.refuse[first.Key()]; code != 0 {
		return nil, servererr.New(code, "refused")
	}
	at := bson.Timestamp{T: 1, I: uint32(len(m.entries))}
	reply := bson.D{}
	cursor := func(docs ...bson.Raw) {
		reply = append(reply, bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.c"}, {Key: "firstBatch", Value: docs}}})
	}
	switch first.Key() {
	case "listDatabases":
		var list bson.A
		for _, db := range m.databases() {
			list = append(list, bson.D{{Key: "name", Value: db}})
		}
		reply = append(reply, bson.E{Key: "databases", Value: list})
	case "listCollections":
		m.do("list " + cmd.DB)
		at.I = m.listedAt[cmd.DB]
		cursor(m.lists[cmd.DB]...)
	case "listIndexes":
		_, id := first.Value().Binary()
		if !slices.Contains(slices.Collect(maps.Values(m.byName)), oplog.UUID(id)) {
			return nil, servererr.New(servererr.NamespaceNotFound, "ns does not exist")
		}
		cursor(bsongen.FromJSON(m.t, `{"v": 2, "key": {"_id": 1}, "name": "_id_"}`))
	case "collStats":
		size := m.byteSize[m.byName[oplog.NewNamespace(cmd.DB, first.Value().StringValue())]]
		reply = append(reply, bson.E{Key: "size", Value: size}, bson.E{Key: "count", Value: float64(size / 2)})
	case "find":
		_, after, ok := cmd.Body.Lookup("readConcern", "afterClusterTime").TimestampOK()
		for _, listed := range m.listedAt {
			if !ok || after < listed {
				m.t.Errorf("the newest entry is read without the time of the lists: %s", cmd.Body)
			}
		}
		cursor(must.Marshal(m.t, bson.D{{Key: "ts", Value: at}}))
	case "endSessions":
	default:
		return nil, servererr.New(servererr.CommandNotFound, "no such command: %s", first.Key())
	}
	return must.Marshal(m.t, append(reply, bson.E{Key: "ok", Value: 1}, bson.E{Key: "operationTime", Value: at})), nil
}

// WaitFor implements inventory.Log.
func (m *model) WaitFor(_ context.Context, ts bson.Timestamp) error {
	for db, at := range m.listedAt {
		if oplog.CompareTimestamps(ts, bson.Timestamp{T: 1, I: at}) < 0 {
			return fmt.Errorf("%s was listed at %d, and the log is awaited up to %d", db, at, ts.I)
		}
	}
	m.waited = ts
	return nil
}

// Commands implements inventory.Log.
func (m *model) Commands(_ context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error {
	if oplog.CompareTimestamps(m.waited, until) < 0 {
		return fmt.Errorf("commands up to %d are read, %d was awaited", until.I, m.waited.I)
	}
	for _, raw := range m.entries {
		var e oplog.Entry
		buffer := slices.Clone(raw)
		if err := e.Parse(buffer); err != nil {
			return err
		}
		if e.Kind != oplog.KindCommand || !e.OpTime.After(after) || oplog.CompareTimestamps(e.OpTime.TS, until) > 0 {
			continue
		}
		if err := yield(&e); err != nil {
			return err
		}
		clear(buffer) // it was a view
	}
	return nil
}
