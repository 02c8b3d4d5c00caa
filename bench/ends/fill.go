package ends

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// fillers is how many collections are filled at a time.
	fillers = 8
	// perInsert and insertBytes bound one insert.
	perInsert   = 1000
	insertBytes = 8 << 20
)

// Fill makes the collections, with indexes and documents, in databases that are
// dropped before.
func (e *End) Fill(ctx context.Context, collections []workload.Collection) error {
	for _, db := range Databases(collections) {
		if err := e.Drop(ctx, db); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	for i := range collections {
		g.Go(func() error {
			if err := e.fill(ctx, &collections[i]); err != nil {
				return fmt.Errorf("fill %s: %w", collections[i].NS, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Databases are the names of the collections' databases, sorted.
func Databases(collections []workload.Collection) []string {
	var dbs []string
	for i := range collections {
		dbs = append(dbs, collections[i].NS.DB())
	}
	slices.Sort(dbs)
	return slices.Compact(dbs)
}

// Drop drops a database.
func (e *End) Drop(ctx context.Context, db string) error {
	if _, err := e.run(ctx, db, bson.D{{Key: "dropDatabase", Value: 1}}); err != nil {
		return fmt.Errorf("drop the database %s: %w", db, err)
	}
	return nil
}

// Existing returns those of the databases that the set has.
func (e *End) Existing(ctx context.Context, dbs []string) ([]string, error) {
	reply, err := e.run(ctx, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	var listed struct {
		Databases []struct{ Name string }
	}
	if err := bson.Unmarshal(reply, &listed); err != nil {
		return nil, fmt.Errorf("list the databases: %w", err)
	}
	var found []string
	for _, db := range listed.Databases {
		if slices.Contains(dbs, db.Name) {
			found = append(found, db.Name)
		}
	}
	return found, nil
}

func (e *End) fill(ctx context.Context, c *workload.Collection) error {
	db, name := c.NS.DB(), c.NS.Collection()
	if _, err := e.run(ctx, db, bson.D{{Key: "create", Value: name}}); err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	var indexes bson.A
	for _, spec := range c.Indexes {
		if !isIDIndex(spec) {
			indexes = append(indexes, spec)
		}
	}
	if len(indexes) > 0 {
		if _, err := e.run(ctx, db, bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: indexes}}); err != nil {
			return fmt.Errorf("create its indexes: %w", err)
		}
	}
	for docs := c.Documents; len(docs) > 0; {
		n, bytes := 0, 0
		for n < len(docs) && n < perInsert && bytes < insertBytes {
			bytes += len(docs[n])
			n++
		}
		if err := e.insert(ctx, db, name, docs[:n]); err != nil {
			return fmt.Errorf("insert %d documents: %w", n, err)
		}
		docs = docs[n:]
	}
	return nil
}

func isIDIndex(spec bson.Raw) bool {
	e, _ := rawbson.Lookup(spec, "name")
	name, _ := e.Text()
	return name == "_id_"
}

func (e *End) insert(ctx context.Context, db, name string, docs []bson.Raw) error {
	body, err := bson.Marshal(bson.D{{Key: "insert", Value: name}, {Key: "ordered", Value: false}})
	if err != nil {
		return err
	}
	reply, err := e.Set.Call(ctx, mongo.Command{DB: db, Body: body, Sequence: "documents", Docs: docs})
	if err != nil {
		return err
	}
	refused, err := mongo.WriteErrors(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return fmt.Errorf("%d were refused, such as number %d: %w", len(refused), refused[0].Index, &refused[0].Error)
	}
	return nil
}
