package initialsync

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// worldCommands carries out commands on the world's target.
type worldCommands struct {
	*world
	used sync.Mutex
}

func (c *worldCommands) Apply(ctx context.Context, op *oplog.Op) error {
	if !c.used.TryLock() {
		c.t.Error("two at once use one's commands")
	} else {
		defer c.used.Unlock()
	}
	if op.OpTime != c.link.Begin {
		c.t.Errorf("an operation of %s", op.OpTime)
	}
	took := commandTime
	if op.Kind == oplog.KindCommand && op.Command == oplog.CommandCommitIndexBuild {
		took = indexTime
	}
	what := ""
	return c.change(ctx, took, what, func() error { return c.apply(op) })
}

func (w *world) apply(op *oplog.Op) error {
	if op.Kind == oplog.KindInsert {
		ns := oplog.Namespace(op.ID.StringValue())
		if err := w.refused[string(ns)]; err != nil {
			return err
		}
		w.target[ns] = &targetCollection{kind: "view"}
		w.note("view " + string(ns))
		return nil
	}
	switch op.Command {
	case oplog.CommandDropDatabase:
		w.note("drop what is left of " + op.NS.DB())
		maps.DeleteFunc(w.target, func(ns oplog.Namespace, _ *targetCollection) bool { return ns.DB() == op.NS.DB() })
		maps.DeleteFunc(w.held, func(s string, _ bool) bool { return strings.HasPrefix(s, op.NS.DB()+".") })
		return nil
	case oplog.CommandCreate:
		entry, err := op.Create()
		if err != nil {
			return err
		}
		if w.target[entry.NS] == nil {
			w.target[entry.NS] = &targetCollection{kind: "collection", docs: map[string]int{}}
		}
		w.note("create " + string(entry.NS))
		return nil
	case oplog.CommandDrop:
		entry, err := op.Drop()
		if err != nil {
			return err
		}
		delete(w.target, entry.NS)
		w.note("drop " + string(entry.NS))
		return nil
	case oplog.CommandCommitIndexBuild:
		return w.build(op)
	default:
		return fmt.Errorf("an operation %s", op.Command)
	}
}

func (w *world) build(op *oplog.Op) error {
	entry, err := op.IndexBuild()
	if err != nil {
		return err
	}
	var names []string
	for _, spec := range entry.Specs {
		name := spec.Lookup("name").StringValue()
		if err := w.passing[name]; err != nil {
			delete(w.passing, name)
			return err
		}
		if w.held[string(entry.NS)+"/"+name] {
			continue // as ddl does
		}
		if err := w.refused[name]; err != nil {
			w.note(fmt.Sprintf("refuse %s of %s", name, entry.NS))
			return err
		}
		names = append(names, name)
	}
	coll := w.target[entry.NS]
	for _, name := range names {
		if !slices.Contains(coll.indexes, name) {
			coll.indexes = append(coll.indexes, name)
		}
	}
	slices.Sort(coll.indexes)
	w.note(fmt.Sprintf("build %s of %s", strings.Join(names, " "), entry.NS))
	return nil
}

func (c *worldCommands) LeaveView(context.Context, string, bson.Raw, string) error { return nil }

func (c *worldCommands) DeferBuild(ctx context.Context, op *oplog.Op, index string) error {
	entry, err := op.IndexBuild()
	if err != nil {
		return err
	}
	return c.change(ctx, commandTime, fmt.Sprintf("hold %s of %s", index, entry.NS), func() error {
		c.held[string(entry.NS)+"/"+index] = true
		return nil
	})
}

// Call answers what clearing asks the target for.
func (w *world) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	docs := bson.A{}
	name := cmd.Body.Index(0).Key()
	switch name {
	case "listDatabases":
		dbs := map[string]bool{"admin": true, "local": true, "config": true, "replicator": true}
		for ns := range w.target {
			dbs[ns.DB()] = true
		}
		for _, db := range slices.Sorted(maps.Keys(dbs)) {
			docs = append(docs, bson.D{{Key: "name", Value: db}})
		}
		return raw(bson.D{{Key: "databases", Value: docs}}), nil
	case "listCollections":
		if cmd.DB == "admin" || cmd.DB == "local" || cmd.DB == "config" || cmd.DB == "replicator" {
			w.t.Errorf("the collections of %s are listed", cmd.DB)
		}
		for _, ns := range slices.Sorted(maps.Keys(w.target)) {
			if ns.DB() == cmd.DB {
				docs = append(docs, bson.D{{Key: "name", Value: ns.Collection()}, {Key: "type", Value: w.target[ns].kind}})
			}
		}
	case "find":
		for id := range w.held {
			ns, _, _ := strings.Cut(id, "/")
			docs = append(docs, bson.D{{Key: "_id", Value: bson.D{{Key: "ns", Value: ns}}}})
		}
	default:
		return nil, servererr.New(servererr.CommandNotFound, "no such command: %s", name)
	}
	return raw(bson.D{{Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: cmd.DB + ".$cmd"}, {Key: "firstBatch", Value: docs},
	}}}), nil
}
