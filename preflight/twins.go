package preflight

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/scope"
)

// twins looks for other links that write to the same collections as a new link: to those of names, which the target
// has, or to all, as the lists are the same. Such a link is an abandoned one, or one that still runs: the new
// link must not drop the collections of the latter.
func (c *checker) twins(ctx context.Context, s *server, names []string) error {
	links, err := c.others(ctx, s)
	if _, ok := refusal(err); ok {
		return nil // informational only
	}
	if err != nil {
		return err
	}
	for i := range links {
		c.twin(&links[i], c.common(&links[i].State, names))
	}
	return nil
}

// others returns the other links of the metadata that have not ended.
func (c *checker) others(ctx context.Context, s *server) (links []checkpoint.Listed, err error) {
	err = again(ctx, func() error {
		links, err = checkpoint.Survey(ctx, s.caller, c.cfg.MetaDB)
		return err
	})
	return slices.DeleteFunc(links, func(l checkpoint.Listed) bool { return l.Link == c.cfg.Link || l.State.Over != nil }), err
}

// rivals warns of other links that processes run, and that write to the same collections as this one, which exists: they may have begun after
// it. Neither that, nor that they cannot be read, ends a link that ran before.
func (c *checker) rivals(ctx context.Context, s *server) error {
	links, err := c.others(ctx, s)
	links = slices.DeleteFunc(links, func(l checkpoint.Listed) bool { return resync.IsPart(l.Link) || !runs(&l) })
	if err != nil || len(links) == 0 {
		return context.Cause(ctx)
	}
	names, err := c.mirrored(ctx, s, func(db string) bool {
		return len(c.cfg.Scope.SourceDBs(db)) > 0 && slices.ContainsFunc(links, func(l checkpoint.Listed) bool { return mayWriteTo(&l.State, c.cfg.MetaDB, db) })
	})
	if err != nil {
		return context.Cause(ctx)
	}
	for i := range links {
		if common := c.common(&links[i].State, names); len(common) > 0 {
			c.warn(otherLinks, "L"+corrupt+": stop one of them, and do not start it again.", "%s, which a process runs, mirrors to %s", strconv.Quote(links[i].Link), some(common))
		}
	}
	return nil
}

// mayWriteTo reports whether a link mirrors to a database of the target.
func mayWriteTo(was *checkpoint.State, metaDB, db string) bool {
	if was.Filters == nil {
		return false
	}
	other, err := scope.New(listsOf(was.Filters, metaDB))
	return err == nil && len(other.SourceDBs(db)) > 0
}

// runs reports whether a process runs a link.
func runs(l *checkpoint.Listed) bool { return !l.Lease.Free && l.Lease.Record.Holder != "" }

const otherLinks, corrupt = "other links", "inks that write to the same collections corrupt each other's data"

// twin reports another link and the collections that both write to.
func (c *checker) twin(l *checkpoint.Listed, common []string) {
	which, what := strconv.Quote(l.Link), "mirrors to "+some(common)
	switch same := c.sameLists(&l.State); {
	case len(common) == 0 && !same:
		return
	case len(common) == 0:
		what = "mirrors the same namespaces from the same source"
	}
	switch running := runs(l); {
	case running && c.cfg.Copy && c.cfg.DropExisting && len(common) > 0:
		c.fail(otherLinks, "Stop that link first, and do not start it again; or choose other collections with --include and --exclude, or other names with --map.",
			"%s, which a process runs, %s, which would be dropped", which, what)
	case running:
		c.warn(otherLinks, "L"+corrupt+": stop that link first, and do not start it again.", "%s, which a process runs, %s", which, what)
	default:
		c.warn(otherLinks, "Make sure that no process runs it: l"+corrupt+".", "%s %s", which, what)
	}
}

// sameLists reports whether another link has the same source and the same lists.
func (c *checker) sameLists(was *checkpoint.State) bool {
	return c.cfg.Fingerprint != "" && was.Fingerprint == c.cfg.Fingerprint &&
		!was.Source.ReplicaSetID.IsZero() && was.Source.ReplicaSetID.Equal(c.source.setID)
}

// common returns the collections of the target that another link writes to, as far as its document says.
func (c *checker) common(was *checkpoint.State, names []string) []string {
	if was.Filters == nil {
		return nil
	}
	other, err := scope.New(listsOf(was.Filters, c.cfg.MetaDB))
	if err != nil {
		return nil
	}
	var both []string
	for _, name := range names {
		if _, ok := other.Source(oplog.Namespace(name)); ok {
			both = append(both, name)
		}
	}
	return both
}

func listsOf(f *checkpoint.Filters, metaDB string) scope.Config {
	return scope.Config{
		Include: f.Include, Exclude: f.Exclude, Map: f.Map, UsersAndRoles: f.UsersAndRoles, Reversed: f.Reversed, MetaDB: metaDB,
	}
}

// otherSettings reports that the link was created with other settings, and with which.
func (c *checker) otherSettings() {
	const check, general = "link", "Use the settings that the link was created with"
	was, state := "", &c.report.Link
	lists, unique, _ := strings.Cut(state.Fingerprint, uniqueIs)
	listsNow, uniqueNow, _ := strings.Cut(c.cfg.Fingerprint, uniqueIs)
	what := fmt.Sprintf("%q was created with other settings: ", c.cfg.Link)
	if lists == listsNow && unique != uniqueNow {
		c.fail(check, general+", or a new --link with a new copy.", "%s--unique-indexes=%s", what, unique)
		return
	}
	if f := state.Filters; f != nil {
		was = ": " + Flags(f)
	}
	if unique != uniqueNow {
		was += ", and --unique-indexes=" + unique
	}
	c.fail(check, general+was+"; or a new --link with a new copy.", "%sother filters or renames", what)
}

// uniqueIs begins the policy for unique indexes in a fingerprint.
const uniqueIs = ";unique="

// Flags returns the lists of a link as flags of replicator run.
func Flags(f *checkpoint.Filters) string {
	const none = "none of --include, --exclude, --map and --users-and-roles"
	if f.Reversed {
		return none + ", as it is a way back"
	}
	var flags []string
	for _, list := range []struct {
		flag  string
		texts []string
	}{{"--include=", f.Include}, {"--exclude=", f.Exclude}, {"--map=", f.Map}} {
		for _, text := range list.texts {
			flags = append(flags, list.flag+printable.ShellWord(text))
		}
	}
	if f.UsersAndRoles {
		flags = append(flags, "--users-and-roles")
	}
	if len(flags) == 0 {
		return none
	}
	return strings.Join(flags, " ")
}
