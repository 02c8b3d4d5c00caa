package preflight

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// included warns of the values of --include that match nothing the source has: names with a mistake, or of collections that a client creates later. It concerns new links
// only.
func (c *checker) included(ctx context.Context, s *server) error {
	if c.report.Found || c.hidden || c.cfg.Back != "" || len(c.cfg.Include) == 0 {
		return nil
	}
	reply, err := ask(ctx, s.caller, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if _, ok := refusal(err); ok {
		return nil // needs no privilege, or is reported by the check of privileges
	}
	if err != nil {
		return err
	}
	var dbs []string
	for _, doc := range documents(reply, "databases") {
		if db, _ := doc.Lookup("name").StringValueOK(); !oplog.IsServerDB(db) && db != c.cfg.MetaDB {
			dbs = append(dbs, db)
		}
	}
	if len(dbs) == 0 { // correct names would match nothing either
		return nil
	}
	var nothing []string
	for _, value := range c.cfg.Include {
		sc, err := scope.New(scope.Config{Include: []string{value}, MetaDB: c.cfg.MetaDB})
		if err != nil {
			return err
		}
		found, err := c.finds(ctx, s, sc, dbs)
		if err != nil {
			return err
		}
		if !found {
			nothing = append(nothing, value)
		}
	}
	if len(nothing) > 0 {
		c.warn("filters", "Correct --include if there is a mistake in it. What is created later is mirrored from then on.",
			"nothing that the source has matches --include %s", strings.Join(nothing, ", --include "))
	}
	return nil
}

// finds reports whether the databases have a collection or view of a scope, true also if that cannot be read.
func (c *checker) finds(ctx context.Context, s *server, sc *scope.Scope, dbs []string) (bool, error) {
	for _, db := range dbs {
		if len(sc.TargetDBs(db)) == 0 {
			continue
		}
		var list []bson.Raw
		err := again(ctx, func() (err error) {
			list, err = catalog.List(ctx, s.caller, db, "")
			return err
		})
		if _, ok := refusal(err); ok {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for _, coll := range list {
			name, _ := coll.Lookup("name").StringValueOK()
			if _, is := sc.Target(oplog.NewNamespace(db, name)); is {
				return true, nil
			}
		}
	}
	return false, nil
}
