package preflight

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
)

// CutoverConfig has the settings of the checks before a cutover.
type CutoverConfig struct {
	// Source and Target run commands on the primary of each.
	Source, Target mongo.Caller
	// Link is the link's name, and MetaDB the metadata database.
	Link, MetaDB string
	// Convert are the databases of the target that have deferred options.
	Convert []string
	// WritesStopped is the operator's word that applications do not write to the source.
	WritesStopped bool
}

// Cutover makes the checks of both servers that precede a cutover, as Run does those that
// precede a start: whether writes to the source can be blocked, whether they are, and whether
// the users may do what a cutover does. Nothing is written.
func Cutover(ctx context.Context, cfg CutoverConfig, observe func(Finding)) (Report, error) {
	c := &checker{cfg: Config{Source: cfg.Source, Target: cfg.Target, Link: cfg.Link, MetaDB: cfg.MetaDB}, observe: observe}
	c.cfg.setDefaults()
	err := c.cutover(ctx, &cfg)
	return c.report, err
}

func (c *checker) cutover(ctx context.Context, cfg *CutoverConfig) error {
	source := &server{side: "source", caller: cfg.Source}
	target := &server{side: "target", caller: cfg.Target}
	c.source = source
	for _, step := range []struct {
		what string
		run  func(context.Context, *server) error
		on   *server
	}{
		{"source", c.server, source},
		{"target", c.server, target},
		{"link", c.link, target},
		{"source", func(context.Context, *server) error { return c.knownSource() }, target},
		{"source's write block", func(ctx context.Context, s *server) error {
			c.mayFreeze(s, cfg.WritesStopped)
			return c.blocked(ctx, s, cfg.WritesStopped)
		}, source},
		{"target's write block", c.mayUnblock, target},
		{"target's privileges", func(_ context.Context, s *server) error { c.mayConvert(s, cfg.Convert); return nil }, target},
		{"target's disk", c.room, target},
	} {
		if !step.on.usable() {
			continue
		}
		if err := step.run(ctx, step.on); err != nil {
			return fmt.Errorf("check the %s: %w", step.what, err)
		}
	}
	return nil
}

// knownSource returns an error if the source does not say which set it is: a proof about another
// set has no meaning for the link.
func (c *checker) knownSource() error {
	was := c.report.Link.Source
	if !c.report.Found || was.ReplicaSetID.IsZero() || !c.source.setID.IsZero() {
		return nil
	}
	return fmt.Errorf("link %q follows set %s (%s), the source is no set that says its id: %w", c.cfg.Link, was.SetName, idText(was.ReplicaSetID), checkpoint.ErrOtherSource)
}

// blocking is the first version with setUserWriteBlockMode. The feature compatibility version
// counts.
var blocking = version{6, 0}

// mayFreeze checks whether writes to the source can be blocked, and whether the drain can be
// proved by an entry of the source's oplog.
func (c *checker) mayFreeze(s *server, stopped bool) {
	const check = "source freeze"
	level := s.version
	if (s.fcv != version{}) {
		level = s.fcv
	}
	switch {
	case stopped:
		c.ok(check, "not needed: --writes-stopped says that applications do not write to the source")
	case level.before(blocking):
		c.fail(check, "Stop the applications' writes yourself, then give --writes-stopped.",
			"%s has no setUserWriteBlockMode, which %s has", level, blocking)
	case s.grants == nil:
		c.warn(check, seePrivileges, "whether the user may run setUserWriteBlockMode is not known")
	case !s.grants.mayCluster("setUserWriteBlockMode"):
		c.denied(Fail, check, "Grant the role backup, or setUserWriteBlockMode on the cluster.", "user %s may not run setUserWriteBlockMode", s.grants.user)
	default:
		c.ok(check, "setUserWriteBlockMode can block writes")
	}
	if s.grants == nil {
		return
	}
	if !s.grants.mayCluster("appendOplogNote") {
		c.denied(Fail, "source privilege appendOplogNote", "Grant the role backup, or appendOplogNote on the cluster.",
			"user %s may not append the entry that proves that everything is applied", s.grants.user)
		return
	}
	c.ok("source privilege appendOplogNote", "granted")
}

// blocksIn is the collection of config in which a server keeps its write block.
const blocksIn = "user_writes_critical_sections"

// blocked tells whether writes of users are blocked on a side now.
func (c *checker) blocked(ctx context.Context, s *server, stopped bool) error {
	check := s.side + " write block"
	switch on, known, err := c.block(ctx, s, check); {
	case err != nil:
		return err
	case !known:
	case !on:
		c.ok(check, "none")
	case stopped:
		c.ok(check, "writes of users are blocked, as --writes-stopped says")
	default:
		c.warn(check, fmt.Sprintf("If it is not needed any more, lift it on the %s: %s.", s.side, unblock),
			"writes of users are blocked, by another program or an operator")
	}
	return nil
}

// unblock is the command that lifts a write block.
const unblock = "db.adminCommand({setUserWriteBlockMode: 1, global: false})"

// mayWrite checks whether a write block of the target concerns the link, too. Without access
// control it concerns everybody.
func (c *checker) mayWrite(ctx context.Context, s *server) error {
	_, err := c.targetBlock(ctx, s)
	return err
}

// mayUnblock is mayWrite for a cutover, which lifts a write block of the target.
func (c *checker) mayUnblock(ctx context.Context, s *server) error {
	on, err := c.targetBlock(ctx, s)
	if on && s.grants != nil && !s.grants.open && !s.grants.mayCluster("setUserWriteBlockMode") {
		c.denied(Fail, "target unblock", "Grant the role backup, or setUserWriteBlockMode on the cluster; or lift the block: "+unblock+".",
			"writes of users are blocked, and user %s may not lift that once the link is cut over", s.grants.user)
	}
	return err
}

// targetBlock returns whether writes of users to the target are blocked, as far as that is known.
func (c *checker) targetBlock(ctx context.Context, s *server) (bool, error) {
	const check = "target write block"
	on, known, err := c.block(ctx, s, check)
	switch {
	case err != nil:
		return false, err
	case !known:
	case !on:
		c.ok(check, "none")
	case s.grants == nil:
		c.warn(check, seePrivileges, "writes of users are blocked; whether the link may write nevertheless is not known")
	case s.grants.open:
		c.fail(check, "Lift it: "+unblock+".", "writes of users are blocked, those of the link too, as the target has no access control")
	case !s.grants.mayCluster("bypassWriteBlockingMode"):
		c.denied(Fail, check, "Grant the role restore, or bypassWriteBlockingMode on the cluster.", "writes of users are blocked, and user %s may not bypass that", s.grants.user)
	default:
		c.ok(check, "writes of other users are blocked")
	}
	return on, nil
}

// block returns whether writes of users are blocked; it reports why, if that is not known. Servers
// before 6.0 have no such block, and nothing is reported.
func (c *checker) block(ctx context.Context, s *server, check string) (on, known bool, err error) {
	if s.version.before(blocking) {
		return false, false, nil
	}
	reply, err := ask(ctx, s.caller, "config", bson.D{
		{Key: "find", Value: blocksIn}, {Key: "filter", Value: bson.D{{Key: "blockUserWrites", Value: true}}}, {Key: "limit", Value: 1},
	})
	if e, ok := refusal(err); ok {
		c.warn(check, "Grant the role clusterMonitor, or find on config."+blocksIn+".", "not known: %s", told(e))
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	cursor, _ := reply.Lookup("cursor").DocumentOK()
	return len(documents(cursor, "firstBatch")) > 0, true, nil
}

// converts are the actions that restore deferred options.
var converts = []string{"collMod", "createIndex", "dropIndex", "listCollections", "listIndexes"}

// mayConvert checks whether deferred options of the target's databases can be restored.
func (c *checker) mayConvert(s *server, dbs []string) {
	const check = "target privileges"
	g := s.grants
	if g == nil {
		return // its login has said so
	}
	good := true
	for _, db := range dbs {
		var none []string
		for _, a := range converts {
			if !g.may(db, a) {
				none = append(none, a)
			}
		}
		if len(none) > 0 {
			good = false
			c.denied(Fail, check, "Grant dbAdminAnyDatabase, or dbAdmin on that database. "+seePrivileges,
				"user %s may not %s on %s", g.user, strings.Join(none, ", "), db)
		}
	}
	switch {
	case !good:
	case len(dbs) == 1:
		c.ok(check, "deferred options can be restored in 1 database")
	default:
		c.ok(check, "deferred options can be restored in %d databases", len(dbs))
	}
}
