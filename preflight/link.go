package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// link looks for the link's checkpoint.
func (c *checker) link(ctx context.Context, s *server) error {
	const check = "link"
	store, err := checkpoint.New(checkpoint.Config{Target: s.caller, DB: c.cfg.MetaDB, Link: c.cfg.Link})
	if err != nil {
		c.fail(check, "Choose another --link or --metadata-db.", "%v", err)
		return nil //nolint:nilerr // The error is a finding.
	}
	err = again(ctx, func() error {
		if c.report.Vacancy == nil { // else the first one stays
			v, err := store.Vacancy(ctx)
			if err != nil {
				return err
			}
			c.report.Vacancy = &v
		}
		c.report.Link, c.report.Found, err = store.Find(ctx)
		return err
	})
	switch _, refused := refusal(err); {
	case isDenied(err):
		c.hidden = true
		c.denied(Fail, check, "Grant find on the database "+c.cfg.MetaDB+".", "%q cannot be looked up in %s", c.cfg.Link, c.cfg.MetaDB)
		return nil
	case refused && !failure.Transient(err), unreadable(err):
		c.fail(check, "Use the release that wrote the link; or a new --link, with a new copy.", "%v", err)
		return nil
	case err != nil:
		return err
	}
	if !c.report.Found {
		c.ok(check, "%q is new", c.cfg.Link)
		return nil
	}
	if err := c.sameSource(); err != nil {
		return err
	}
	if over := c.report.Link.Over; over != nil && c.cfg.Back != "" {
		c.report.Link, c.report.Found = checkpoint.State{}, false
		c.ok(check, "%q has ended, and begins again", c.cfg.Link)
		return nil
	} else if over != nil {
		return &checkpoint.OverError{Link: c.cfg.Link, Over: *over}
	}
	return c.there(ctx, store)
}

// there checks the link that exists, and goes on.
func (c *checker) there(ctx context.Context, store *checkpoint.Store) error {
	const check = "link"
	none := checkpoint.NoVacancy()
	c.report.Vacancy = &none
	if c.cfg.Fingerprint != "" && c.report.Link.Fingerprint != c.cfg.Fingerprint {
		c.otherSettings()
		return nil
	}
	switch c.phase() {
	case checkpoint.Copying:
		return c.goesOn(ctx, store)
	case checkpoint.Replaying:
		c.ok(check, "%q continues its initial sync: all documents are copied, the oplog is applied up to %s; it is at %s (%s)",
			c.cfg.Link, c.report.Link.Copy.Stop, c.report.Link.Applied, wallText(c.report.Link.AppliedWall))
	default:
		c.ok(check, "%q resumes after %s (%s)", c.cfg.Link, c.report.Link.Applied, wallText(c.report.Link.AppliedWall))
	}
	return nil
}

func wallText(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// sameSource returns an error if the link follows another replica set.
func (c *checker) sameSource() error {
	was := c.report.Link.Source
	if was.ReplicaSetID.IsZero() || c.source.setID.IsZero() || was.ReplicaSetID.Equal(c.source.setID) {
		return nil
	}
	return fmt.Errorf("link %q follows set %s (%s), the source is %s (%s): %w",
		c.cfg.Link, was.SetName, idText(was.ReplicaSetID), c.source.name, idText(c.source.setID), checkpoint.ErrOtherSource)
}

// idText formats a set's id as the shell does.
func idText(id bson.RawValue) string {
	if oid, ok := id.ObjectIDOK(); ok {
		return oid.Hex()
	}
	return id.String()
}

// unreadable reports whether the link exists and cannot be used.
func unreadable(err error) bool {
	if _, ok := errors.AsType[*checkpoint.VersionError](err); ok {
		return true
	}
	_, ok := errors.AsType[*metadata.DamagedError](err)
	return ok
}

// shortWindow is the minimum time that an oplog should cover.
const shortWindow = time.Hour

// window checks how much time the source's oplog covers.
func (c *checker) window(ctx context.Context, s *server) error {
	const check = "source oplog window"
	var first, last replset.Entry
	err := again(ctx, func() (err error) {
		if first, err = replset.OldestEntry(ctx, s.caller); err == nil {
			last, err = replset.NewestEntry(ctx, s.caller, replset.Local)
		}
		return err
	})
	if err == nil || errors.Is(err, replset.ErrEmptyOplog) {
		c.judgeWindow(check, first.OpTime.TS, last.OpTime.TS)
		return nil
	}
	if _, ok := refusal(err); ok {
		return nil // reported by the check of privileges
	}
	return err
}

func (c *checker) judgeWindow(check string, first, last bson.Timestamp) {
	if first.T == 0 {
		c.fail(check, "", "the oplog is empty")
		return
	}
	long := between(first, last)
	text := fmt.Sprintf("%s, since %s", long, time.Unix(int64(first.T), 0).UTC().Format(time.RFC3339))
	switch from := c.report.Link.FetchFrom.TS; {
	case c.report.Found && c.spooling() && oplog.CompareTimestamps(from, first) < 0:
		c.warn(check, "If the spool is not on this machine, or lacks these entries, the copy starts again from the beginning.",
			"%s; it does not reach back to %s, where the link's copy started", text, c.report.Link.FetchFrom)
	case c.report.Found && oplog.CompareTimestamps(from, first) < 0:
		c.warn(check, "If no other member's oplog reaches back that far, the link ends, and the data have to be copied again.",
			"%s; it does not reach back to the link's position, %s", text, c.report.Link.FetchFrom)
	case c.spooling() && long >= shortWindow:
		c.ok(check, "%s; the copy may take longer, because the spool keeps the oplog meanwhile: only reading must not pause for that long", text)
	case c.spooling():
		c.warn(check, "The copy may take longer, because the spool keeps the oplog meanwhile. But if the link pauses longer than that, it starts again from the beginning. A new set has no older entries; otherwise give the source a larger oplog (replSetResizeOplog).",
			"%s", text)
	case c.report.Found && between(first, from) < shortWindow && between(from, last) > long/2:
		c.warn(check, "Start the link now, or give the source a larger oplog (replSetResizeOplog). A new set has no older entries, and deletes none yet.",
			"%s; if the oplog is full, the source deletes the entry from which the link resumes in about %s", text, between(first, from))
	case !c.report.Found && c.cfg.StartAt.T != 0 && oplog.CompareTimestamps(c.cfg.StartAt, first) < 0:
		c.fail(check, "Choose a later --start-at with a newer copy, or give the source a larger oplog.",
			"%s; it does not reach back to --start-at", text)
	case long < shortWindow:
		c.warn(check, "If the link pauses longer than that, everything has to be copied again. A new set has no older entries; otherwise give the source a larger oplog (replSetResizeOplog).",
			"%s", text)
	case c.report.Found:
		c.ok(check, "%s; the link's entry is in it for about %s more", text, between(first, from))
	default:
		c.ok(check, "%s", text)
	}
}

func between(a, b bson.Timestamp) time.Duration {
	return time.Duration(int64(b.T)-int64(a.T)) * time.Second
}

// uncopied checks whether the source has data already. A link copies it first, or does
// not mirror it if it starts at some time without a copy.
func (c *checker) uncopied(ctx context.Context, s *server) error {
	const check = "source data"
	if c.report.Found || c.cfg.Back != "" || !c.cfg.Copy && c.cfg.AllowExisting {
		return nil
	}
	reply, err := ask(ctx, s.caller, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if _, ok := refusal(err); ok {
		return nil // needs no privilege, or is reported by the check of privileges
	}
	if err != nil {
		return err
	}
	var names []string
	for _, doc := range documents(reply, "databases") {
		db, _ := doc.Lookup("name").StringValueOK()
		if !oplog.IsServerDB(db) && len(c.cfg.Scope.TargetDBs(db)) > 0 {
			names = append(names, db)
		}
	}
	switch {
	case len(names) == 0:
		c.ok(check, "there are no data to copy")
	case c.cfg.Copy && len(names) == 1:
		c.ok(check, "a database will be copied: %s", names[0])
	case c.cfg.Copy:
		c.ok(check, "%d databases will be copied: %s", len(names), some(names))
	default:
		what := "the existing data of " + some(names)
		if c.cfg.StartAt.T != 0 {
			what = "what " + some(names) + " had before --start-at"
		}
		c.warn(check, "The first change of a document that the target does not have ends the link. Let the link copy it (--start-at=copy, the default), or see --allow-existing.",
			"%s will not be copied", what)
	}
	return nil
}

// existing checks whether the target has data already.
func (c *checker) existing(ctx context.Context, s *server) error {
	const check = "target data"
	if c.report.Found {
		if c.phase() == checkpoint.Copying && !c.report.Link.Copy.Cleared {
			c.warn(check, "", "the link will drop the collections that its copy replaces")
		} else {
			c.ok(check, "as the link left them")
		}
		return c.rivals(ctx, s)
	}
	if c.cfg.Back != "" {
		c.ok(check, "%s: they are what the source was there; that nothing has written to them since is checked next", c.cfg.Back)
		return c.twins(ctx, s, nil)
	}
	names, err := c.mirrored(ctx, s, nil)
	if isDenied(err) {
		c.denied(Fail, check, "Grant listDatabases (role clusterMonitor) and listCollections. "+seePrivileges, "no privilege to list its collections")
		return nil
	}
	if err != nil || c.hidden { // existing data may be the link's own
		return err
	}
	if len(names) > 0 {
		if created, err := c.created(ctx, s); err != nil || created {
			return err
		}
	}
	if err := c.twins(ctx, s, names); err != nil {
		return err
	}
	switch {
	case len(names) == 0:
		c.ok(check, "there are no data where the link will write")
		return nil
	case c.cfg.Copy && c.cfg.DropExisting:
		c.warn(check, "Make sure that these data are not needed: --drop-existing is given.",
			"%s will be dropped before the copy: %s", collections(names), some(names))
		return nil
	case c.cfg.Copy:
		c.fail(check, "Drop the collections, or give --drop-existing to have them dropped; choose other names with --map; or give --allow-existing if they are a copy of the source.",
			"the target has %s where the link will write: %s", collections(names), some(names))
		return nil
	case !c.cfg.AllowExisting:
		c.fail(check, "Drop the collections, choose other names with --map, or give --allow-existing if they are a copy of the source.",
			"the target has %s where the link will write: %s", collections(names), some(names))
		return nil
	case !c.cfg.Copied && c.cfg.StartAt.T == 0:
		c.warn(check, "If the source was written to since it was copied, give --start-at, and --copied-until if it was written to meanwhile.",
			"the target has %s, treated as an exact copy of the source as it is now", collections(names))
	case !c.cfg.Copied:
		c.warn(check, "If the source was written to while it was copied, give --copied-until too.",
			"the target has %s, treated as an exact copy of the source at --start-at", collections(names))
	default:
		c.ok(check, "the target has %s, treated as a copy that was made while the source was written to", collections(names))
	}
	return c.constraints(ctx, s, names)
}

// created reports whether another process has created the link since it was looked for. The
// data in the target are then that link's, and this process will stand by.
func (c *checker) created(ctx context.Context, s *server) (bool, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: s.caller, DB: c.cfg.MetaDB, Link: c.cfg.Link})
	if err != nil {
		return false, nil //nolint:nilerr // It was found already.
	}
	found := false
	err = again(ctx, func() error {
		_, found, err = store.Find(ctx)
		return err
	})
	if err != nil || !found {
		return false, err
	}
	return true, c.link(ctx, s)
}

// collections formats a number of collections.
func collections(names []string) string {
	if len(names) == 1 {
		return "a collection"
	}
	return fmt.Sprintf("data in %d collections", len(names))
}

// mirrored returns the target's collections that the link mirrors to, in databases for which in returns true; nil is all.
func (c *checker) mirrored(ctx context.Context, s *server, in func(db string) bool) ([]string, error) {
	reply, err := ask(ctx, s.caller, "admin", bson.D{{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, doc := range documents(reply, "databases") {
		db, _ := doc.Lookup("name").StringValueOK()
		if oplog.IsServerDB(db) || db == c.cfg.MetaDB || in != nil && !in(db) {
			continue
		}
		var list []bson.Raw
		err := again(ctx, func() error {
			list, err = catalog.List(ctx, s.caller, db, "")
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, coll := range list {
			name, _ := coll.Lookup("name").StringValueOK()
			ns := oplog.NewNamespace(db, name)
			// Definitions of views and buckets belong to their views and time series.
			if ns.IsSystemViews() || ns.IsBuckets() {
				continue
			}
			if _, ok := c.cfg.Scope.Source(ns); ok {
				names = append(names, string(ns))
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// constraints reports the indexes that would interfere with the mirrored data.
func (c *checker) constraints(ctx context.Context, s *server, names []string) error {
	var unique, expiring []string
	for _, name := range names {
		var specs []bson.Raw
		var err error
		err = again(ctx, func() error {
			specs, err = catalog.Indexes(ctx, s.caller, oplog.Namespace(name))
			return err
		})
		if _, ok := refusal(err); ok {
			continue // a view, or a collection that was dropped
		}
		if err != nil {
			return err
		}
		for _, spec := range specs {
			index, _ := spec.Lookup("name").StringValueOK()
			if on, _ := spec.Lookup("unique").BooleanOK(); on {
				unique = append(unique, name+" "+index)
			}
			if _, err := spec.LookupErr("expireAfterSeconds"); err == nil {
				expiring = append(expiring, name+" "+index)
			}
		}
	}
	if len(unique) > 0 {
		c.warn("target unique indexes", "Drop them until cutover: writers run ahead of each other, and a value that moves between documents ends the link.",
			"%s", some(unique))
	}
	if len(expiring) > 0 {
		c.warn("target TTL indexes", "Drop them until cutover, or run collMod: the target would remove documents by its own clock.",
			"%s", some(expiring))
	}
	return nil
}
