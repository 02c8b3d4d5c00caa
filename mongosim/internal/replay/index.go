package replay

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// maybeIndex finds an index by its name.
func maybeIndex(c *storage.Collection, name string) (storage.Index, bool) {
	for _, i := range c.Indexes {
		if i.Name == name {
			return i, true
		}
	}
	return storage.Index{}, false
}

// indexSpec returns an index of the log as it is stored, and its name.
func indexSpec(spec bson.Raw) (stored bson.Raw, name string, err error) {
	e, _ := rawbson.Lookup(spec, "name")
	if name, _ = e.Text(); name == "" {
		return nil, "", fmt.Errorf("the index %s has no name", spec)
	}
	if _, old := rawbson.Lookup(spec, "ns"); old {
		spec = newFields(spec).unset("ns").document()
	}
	return spec, name, nil
}

func alreadyThere(c *storage.Collection, name string) error {
	return servererr.New(servererr.IndexAlreadyExists, "%s has an index %s", c.NS, name)
}

// createIndex makes an index at once.
func createIndex(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.CreateIndexes()
	if err != nil {
		return err
	}
	spec, name, err := indexSpec(entry.Spec)
	if err != nil {
		return err
	}
	c, err := resolve(u.View(), op, entry.NS)
	if err != nil {
		return err
	}
	if _, ok := maybeIndex(c, name); ok {
		return alreadyThere(c, name)
	}
	return u.AddIndex(c.UUID, spec, oplog.UUID{})
}

// build carries out the start, the commit or the abort of a build.
func (a *Applier) build(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.IndexBuild()
	if err != nil {
		return err
	}
	c, err := resolve(u.View(), op, entry.NS)
	if err != nil {
		return err
	}
	started, left := false, false
	for _, given := range entry.Specs {
		spec, name, err := indexSpec(given)
		if err != nil {
			return err
		}
		there, ok := maybeIndex(c, name)
		switch {
		case op.Command == oplog.CommandStartIndexBuild && !ok:
			started = true
			err = u.AddIndex(c.UUID, spec, entry.Build)
		case op.Command == oplog.CommandCommitIndexBuild && !ok:
			// It has everything needed, should the start have been missed.
			err = u.AddIndex(c.UUID, spec, oplog.UUID{})
		case op.Command == oplog.CommandCommitIndexBuild && there.Building:
			if there.BuildUUID != entry.Build {
				return fmt.Errorf("the index %s is of the build %s", name, there.BuildUUID)
			}
			left = true
		case op.Command == oplog.CommandAbortIndexBuild && ok && (there.BuildUUID == entry.Build || a.opts.Tolerant):
			err = u.DropIndex(c.UUID, name)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case left:
		return u.CommitIndexes(c.UUID, entry.Build)
	case op.Command == oplog.CommandStartIndexBuild && !started:
		return alreadyThere(c, "of each name")
	}
	return nil
}

func dropIndex(u *storage.Unit, op *oplog.Op) error {
	entry, err := op.DropIndexes()
	if err != nil {
		return err
	}
	c, err := resolve(u.View(), op, entry.NS)
	if err != nil {
		return err
	}
	if _, ok := maybeIndex(c, entry.Name); !ok {
		return servererr.New(servererr.IndexNotFound, "index not found with name [%s]", entry.Name)
	}
	return u.DropIndex(c.UUID, entry.Name)
}
