package memstore

import (
	"bytes"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// index is an index in the catalog, ready or being built.
type index struct {
	name string
	spec bson.Raw // in the form of listIndexes
	// build is what builds the index, zero once it is ready.
	build oplog.UUID
}

func newIndex(spec bson.Raw) index {
	i := index{spec: listedIndex(spec)}
	if name, ok := rawbson.Lookup(spec, "name"); ok {
		text, _ := name.Text()
		i.name = string([]byte(text))
	}
	return i
}

// checked returns the index of a spec from the log.
func checked(spec bson.Raw) (index, error) {
	i := newIndex(spec)
	it := rawbson.NewIter(spec)
	for it.Next() {
		if !isIndexField(it.Name()) {
			return i, InvalidOptions.because("the index %s has an unknown field %q", spec, it.Name())
		}
	}
	if err := it.Err(); err != nil {
		return i, err
	}
	if i.name == "" {
		return i, InvalidOptions.because("the index %s has no name", spec)
	}
	return i, nil
}

// Indexes returns the indexes that are ready as listIndexes shows them, oldest
// first. The server shows the index of a clustered collection since it can be
// given a name (5.3).
func (c *Collection) Indexes() []bson.Raw {
	var specs []bson.Raw
	if clustered, ok := rawbson.Lookup(c.options, "clusteredIndex"); ok {
		if spec, isSpec := clustered.Document(); isSpec {
			fields := append(split(spec), field{"clustered", boolValue(true)})
			specs = append(specs, listedIndex(document(fields...)))
		}
	}
	for _, i := range c.indexes {
		if i.build.IsZero() {
			specs = append(specs, i.spec)
		}
	}
	return specs
}

// find returns where the index of that name is, or -1.
func (c *Collection) find(name string) int {
	return slices.IndexFunc(c.indexes, func(i index) bool { return i.name == name })
}

// createIndexes makes an index at once. In a copy that is newer than the log the
// name may be that of a later index, which stays.
func (s *Store) createIndexes(op *oplog.Op, mode Mode) error {
	entry, err := op.CreateIndexes()
	if err != nil {
		return err
	}
	made, err := checked(entry.Spec)
	if err != nil {
		return err
	}
	c, err := s.resolve(op, entry.NS)
	if err != nil {
		return err
	}
	if at := c.find(made.name); at >= 0 {
		if mode == Steady && !bytes.Equal(c.indexes[at].spec, made.spec) {
			return IndexOptionsConflict.because("%s has an index %s, not %s", c.ns, c.indexes[at].spec, made.spec)
		}
		return IndexAlreadyExists.because("%s has an index %s", c.ns, made.name)
	}
	c.indexes = append(c.indexes, made)
	return nil
}

func (s *Store) build(op *oplog.Op) (*Collection, oplog.IndexBuild, []index, error) {
	entry, err := op.IndexBuild()
	if err != nil {
		return nil, entry, nil, err
	}
	made := make([]index, len(entry.Specs))
	for n, spec := range entry.Specs {
		if made[n], err = checked(spec); err != nil {
			return nil, entry, nil, err
		}
	}
	c, err := s.resolve(op, entry.NS)
	return c, entry, made, err
}

// startIndexBuild gives the indexes their places: listIndexes shows them in the
// order in which their builds started.
func (s *Store) startIndexBuild(op *oplog.Op) error {
	c, entry, started, err := s.build(op)
	if err != nil {
		return err
	}
	added := false
	for _, i := range started {
		if c.find(i.name) < 0 {
			i.build = entry.Build
			c.indexes = append(c.indexes, i)
			added = true
		}
	}
	if !added {
		return IndexAlreadyExists.because("%s has all indexes of the build %s", c.ns, entry.Build)
	}
	return nil
}

// commitIndexBuild makes the indexes ready. It has all that is needed to build
// them, should the start have been missed.
func (s *Store) commitIndexBuild(op *oplog.Op) error {
	c, _, done, err := s.build(op)
	if err != nil {
		return err
	}
	for _, i := range done {
		switch at := c.find(i.name); {
		case at < 0:
			c.indexes = append(c.indexes, i)
		case !c.indexes[at].build.IsZero():
			c.indexes[at] = i
		}
	}
	return nil
}

// abortIndexBuild removes the indexes of a build. Those that have its names but
// not its UUID go too: listIndexes shows an index that is still being built like
// any other, and that is where a copy has it from. In data that is exact a build
// does not start where one of its names is taken; in data that is newer than the
// log, the log makes the index again.
func (s *Store) abortIndexBuild(op *oplog.Op) error {
	c, entry, aborted, err := s.build(op)
	if err != nil {
		return err
	}
	c.indexes = slices.DeleteFunc(c.indexes, func(i index) bool {
		return i.build == entry.Build || i.build.IsZero() && slices.ContainsFunc(aborted, func(a index) bool { return a.name == i.name })
	})
	return nil
}

func (s *Store) dropIndexes(op *oplog.Op) error {
	entry, err := op.DropIndexes()
	if err != nil {
		return err
	}
	c, err := s.resolve(op, entry.NS)
	if err != nil {
		return err
	}
	at := c.find(entry.Name)
	switch {
	case at < 0:
		return IndexNotFound.because("%s has no index %s", c.ns, entry.Name)
	case entry.Name == "_id_":
		return InvalidOptions.because("the index on _id cannot be dropped")
	}
	c.indexes = slices.Delete(c.indexes, at, at+1)
	return nil
}
