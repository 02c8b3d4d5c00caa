package preflight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// begins reports whether the link is a new one that begins with a copy, copying whether
// documents are still to be copied, spooling whether the oplog is kept on disk
// meanwhile.
func (c *checker) begins() bool { return !c.report.Found && c.cfg.Copy }

func (c *checker) copying() bool {
	return c.begins() || c.phase() == checkpoint.Copying
}

func (c *checker) spooling() bool {
	return c.copying() || c.phase() == checkpoint.Replaying
}

// phase returns the phase of an existing link's copy, empty if it has none.
func (c *checker) phase() checkpoint.CopyPhase {
	if !c.report.Found || c.report.Link.Copy == nil {
		return ""
	}
	return c.report.Link.Copy.Phase
}

// spool checks that the oplog can be kept on disk until it can be applied. It leaves
// nothing behind.
func (c *checker) spool(context.Context, *server) error {
	const check = "spool"
	if !c.spooling() {
		return nil
	}
	if c.cfg.SpoolDir == "" {
		c.fail(check, "Give --spool-dir.", "no directory is given for the oplog that cannot be applied yet")
		return nil
	}
	dir, err := existing(c.cfg.SpoolDir)
	if err == nil {
		err = tryWrite(dir)
	}
	if err != nil {
		c.fail(check, "Give another --spool-dir, or the right to make that one and write to it.", "%s cannot be used: %v", c.cfg.SpoolDir, err)
		return nil
	}
	free, known := freeBytes(dir)
	switch room := free - c.cfg.SpoolFree; {
	case !known:
		c.ok(check, "%s; %s of the oplog at most", c.cfg.SpoolDir, bytesText(c.cfg.SpoolBytes))
	case room <= 0 && c.begins():
		c.fail(check, "Make room, or give a --spool-dir on another disk, or less to --spool-free.",
			"%s has %s free, and %s have to stay free", c.cfg.SpoolDir, bytesText(free), bytesText(c.cfg.SpoolFree))
	case room <= 0:
		// The part already on disk may be sufficient.
		c.warn(check, "Make room: reading waits until there is some.",
			"%s has %s free, and %s have to stay free", c.cfg.SpoolDir, bytesText(free), bytesText(c.cfg.SpoolFree))
	default:
		c.ok(check, "%s has room for %s of the oplog", c.cfg.SpoolDir, bytesText(min(room, c.cfg.SpoolBytes)))
	}
	return nil
}

// existing returns the folder, or its nearest parent that exists.
func existing(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		switch above := filepath.Dir(dir); {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", fmt.Errorf("%s is not a directory", dir)
		case !os.IsNotExist(err) || above == dir:
			return "", err
		default:
			dir = above
		}
	}
}

func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".replicator-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("can it be written to?")
	if e := f.Close(); err == nil {
		err = e
	}
	if e := os.Remove(f.Name()); err == nil {
		err = e
	}
	return err
}

// bytesText formats a size.
func bytesText(n int64) string {
	const unit = 1 << 10
	value, left := float64(n), "KMGTPE"
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	for value /= unit; value >= unit && len(left) > 1; value /= unit {
		left = left[1:]
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + left[:1] + "iB"
}

// copyReads are the collections that a copy reads of the source in addition to the
// data.
var copyReads = []struct{ db, collection, why string }{
	{"admin", "system.version", "the feature compatibility version"},
}

// The actions of a copy on each database of the source, and on its cluster.
var (
	copies     = []string{"find", "listCollections", "listIndexes"}
	copiesFrom = []string{"useUUID", "listDatabases"}
)

// seeBackup is the advice if a privilege for the copy is missing.
const seeBackup = "Grant the roles backup and clusterMonitor. " + seePrivileges

// copyPrivileges tries the reads of a copy, and looks up the other privileges.
func (c *checker) copyPrivileges(ctx context.Context, s *server) error {
	const check = "source privileges to copy"
	if !c.copying() {
		return nil
	}
	good := true
	for _, r := range copyReads {
		_, err := ask(ctx, s.caller, r.db, bson.D{
			{Key: "find", Value: r.collection}, {Key: "limit", Value: 1},
		})
		if err == nil {
			continue
		}
		e, ok := refusal(err)
		if !ok || failure.Transient(err) {
			return err
		}
		good = false
		if isDenied(err) {
			c.denied(Fail, check, seeBackup, "%s.%s, which contains %s: %s", r.db, r.collection, r.why, told(e))
		} else {
			c.fail(check, "", "%s.%s, which contains %s: %s", r.db, r.collection, r.why, told(e))
		}
	}
	if err := c.identity(ctx, s); err != nil {
		return err
	}
	g := s.grants
	if g == nil {
		return nil
	}
	good = c.copyGrants(check, g) && good
	if good {
		c.ok(check, "granted")
	}
	return nil
}

// identity tries to read the two ids that distinguish a member from a resynced one of
// the same name; either one is enough.
func (c *checker) identity(ctx context.Context, s *server) error {
	const ids = "replset.initialSyncId"
	for _, cmd := range []bson.D{
		{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name", Value: ids}}}},
		{{Key: "find", Value: ids}, {Key: "limit", Value: 1}},
	} {
		_, err := ask(ctx, s.caller, "local", cmd)
		if _, refused := refusal(err); err == nil || !refused {
			return err
		}
	}
	c.denied(Warn, "source privilege to tell members apart", "Grant clusterMonitor or backup, or a role created with "+origin.GrantSyncID+".",
		"local.%s can be neither listed nor read: if the copied member starts an initial sync meanwhile, this is not detected, and documents may be missing", ids)
	return nil
}

// copyGrants checks the privileges that the user was granted.
func (c *checker) copyGrants(check string, g *grants) bool {
	good := true
	lacks := func(what string, none []string) {
		if len(none) > 0 {
			good = false
			c.denied(Fail, check, seeBackup, "user %s may not %s on %s", g.user, strings.Join(none, ", "), what)
		}
	}
	var none []string
	for _, a := range copiesFrom {
		if !g.mayCluster(a) {
			none = append(none, a)
		}
	}
	lacks("the cluster", none)
	dbs, _, named := c.literals()
	if !named {
		dbs = []string{anyDB}
	}
	c.copyWithout(check, g, dbs)
	for _, db := range dbs {
		none = nil
		for _, a := range copies {
			if !g.may(db, a) {
				none = append(none, a)
			}
		}
		if db == anyDB {
			db = "any database"
		}
		lacks(db, none)
	}
	if c.cfg.UsersAndRoles {
		for _, collection := range []string{"system.users", "system.roles"} {
			if !g.mayOn("admin", collection, "find") {
				lacks("admin."+collection+", as --users-and-roles needs", []string{"find"})
			}
		}
	}
	if !g.mayBuckets("find") {
		c.denied(Warn, check+" time series", "Grant the role backup if the source has time-series collections: without it the copy of the first one ends the link.",
			"user %s may not read system.buckets", g.user)
	}
	return good
}

// copyWithout reports what a copy does without.
func (c *checker) copyWithout(check string, g *grants, dbs []string) {
	if !g.mayCluster("serverStatus") {
		c.denied(Warn, check+" with care", seeBackup, "user %s may not run serverStatus: the copy is throttled by latencies only", g.user)
	}
	if slices.ContainsFunc(dbs, func(db string) bool { return !g.may(db, "collStats") }) {
		c.denied(Warn, check+" by size", seeBackup, "user %s may not run collStats: the amount of data to copy is unknown", g.user)
	}
}

// goesOn reports the progress of a link's copy.
func (c *checker) goesOn(ctx context.Context, store *checkpoint.Store) error {
	var done, total int64
	err := again(ctx, func() error {
		var err error
		done, total, err = progress.Counts(ctx, store)
		return err
	})
	if _, ok := refusal(err); !ok && err != nil {
		return err
	}
	st := c.report.Link.Copy
	how := fmt.Sprintf("%d of %d collections are done", done, total)
	if !st.Listed || err != nil {
		how = "its collections are not listed yet"
	}
	c.ok("link", "%q resumes its copy of %s, started %s: phase %s, %s", c.cfg.Link, st.Host, wallText(st.Started.UnixMilli()), st.Phase, how)
	return nil
}
