package preflight

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
)

// The range of versions that are known to work on either side.
var oldest, newest = version{4, 4}, version{8, 0}

// version is the first two numbers of a server's version.
type version [2]int64

func (v version) before(w version) bool { return v[0] < w[0] || v[0] == w[0] && v[1] < w[1] }

func (v version) String() string { return fmt.Sprintf("%d.%d", v[0], v[1]) }

// maxSkew is the maximum difference of a server's clock from ours.
const maxSkew = 5 * time.Second

// server is the known state of one side.
type server struct {
	side   string
	caller mongo.Caller
	// looked: hello was answered; set: it is a replica set.
	looked, set bool

	name, me string
	setID    bson.RawValue
	version  version
	fcv      version // zero if not known
	grants   *grants // nil if not known
}

// usable reports whether there is anything to check: not if the deployment turned out
// not to be a replica set.
func (s *server) usable() bool { return !s.looked || s.set }

// server checks one side by itself.
func (c *checker) server(ctx context.Context, s *server) error {
	sent := c.cfg.Now()
	var hello bson.Raw
	if err := again(ctx, func() (err error) {
		hello, err = replset.Hello(ctx, s.caller)
		return err
	}); err != nil {
		return err
	}
	came := c.cfg.Now()
	s.looked = true
	if c.topology(s, hello); !s.set {
		return nil
	}
	if at, ok := hello.Lookup("localTime").DateTimeOK(); ok {
		c.clock(s, time.UnixMilli(at), sent, came)
	}
	if err := c.versions(ctx, s); err != nil {
		return err
	}
	if err := c.login(ctx, s); err != nil || !s.set {
		return err
	}
	return c.compatibility(ctx, s)
}

// login determines the user. If authentication is required and there is none, all other
// checks would only be refused.
func (c *checker) login(ctx context.Context, s *server) error {
	check := s.side + " login"
	g, err := readGrants(ctx, s)
	if e, ok := refusal(err); ok {
		c.warn(check, "", "not known: %s", told(e))
		return nil
	}
	if err != nil {
		return err
	}
	s.grants = g
	if !g.open {
		c.ok(check, "as %s", g.user)
		return nil
	}
	_, err = ask(ctx, s.caller, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
	switch {
	case isDenied(err):
		c.denied(Fail, check, fmt.Sprintf("Give --%s-username and --%s-password-file, or a user in the connection string.", s.side, s.side),
			"no user is given, and the %s has access control", s.side)
		s.set = false
		return nil
	case err != nil:
		if _, ok := refusal(err); !ok {
			return err
		}
	}
	c.ok(check, "none is needed: the %s has no access control", s.side)
	return nil
}

func (c *checker) topology(s *server, hello bson.Raw) {
	check := s.side + " topology"
	s.name, s.set = hello.Lookup("setName").StringValueOK()
	if kind, _ := hello.Lookup("msg").StringValueOK(); kind == "isdbgrid" {
		s.set = false
		if s.side == "source" {
			c.fail(check, "Give the replica set of a shard, and make a link for each shard.", "a mongos, which has no oplog")
		} else {
			c.fail(check, "Give a replica set.", "a mongos: links write to replica sets only")
		}
		return
	}
	if !s.set {
		do := "Start it with --replSet and run rs.initiate(): a set of one member is enough."
		if s.side == "source" {
			c.fail(check, do, "a standalone server, which has no oplog")
		} else {
			c.fail(check, do, "a standalone server, which has no transactions: with them each writer keeps its position and its writes together")
		}
		return
	}
	s.me, _ = hello.Lookup("me").StringValueOK()
	if id, err := hello.LookupErr("$replData", "replicaSetId"); err == nil {
		s.setID = id
	}
	hosts := 0
	for _, list := range []string{"hosts", "passives"} {
		if a, ok := hello.Lookup(list).ArrayOK(); ok {
			values, _ := a.Values()
			hosts += len(values)
		}
	}
	switch primary := mongo.IsPrimary(hello); {
	case primary:
		c.ok(check, "replica set %s, %s, primary %s", s.name, members(hosts), s.me)
	case s.side == "target":
		c.fail(check, "Remove directConnection from --target, so that the primary is found.", "%s is not the primary of %s", s.me, s.name)
	default:
		c.warn(check, "Remove directConnection from --source, so that a failover can be followed.", "only %s of replica set %s", s.me, s.name)
	}
}

// members formats a number of members.
func members(n int) string {
	if n == 1 {
		return "one member"
	}
	return fmt.Sprintf("%d members", n)
}

// clock compares a server's clock with ours. The reply was created between sent and
// came.
func (c *checker) clock(s *server, at, sent, came time.Time) {
	skew := at.Sub(sent)
	switch {
	case at.After(came):
		skew = at.Sub(came)
	case !at.Before(sent.Truncate(time.Millisecond)):
		skew = 0
	}
	check := s.side + " clock"
	if skew.Abs() > maxSkew {
		c.warn(check, "Synchronise the clocks (NTP): the lags and ages shown are wrong by this much.",
			"differs by %s from this machine's", signed(skew.Round(100*time.Millisecond)))
		return
	}
	c.ok(check, "within %s of this machine's", max(skew.Abs(), came.Sub(sent)).Round(time.Millisecond))
}

func signed(d time.Duration) string {
	if d > 0 {
		return "+" + d.String()
	}
	return d.String()
}

func (c *checker) versions(ctx context.Context, s *server) error {
	info, err := ask(ctx, s.caller, "admin", bson.D{{Key: "buildInfo", Value: 1}})
	if err != nil {
		return err
	}
	text, _ := info.Lookup("version").StringValueOK()
	for i := range s.version {
		s.version[i], _ = info.Lookup("versionArray", []string{"0", "1"}[i]).AsInt64OK()
	}
	check := s.side + " version"
	switch {
	case s.version.before(oldest):
		c.fail(check, "Upgrade it to "+oldest.String()+" or newer.", "%s", text)
	case newest.before(s.version):
		do := "An entry of the oplog that is not understood will end the link, nothing is skipped."
		if s.side == "target" {
			do = "A write that it refuses will end the link, nothing is skipped."
		}
		c.warn(check, do, "%s is newer than %s, the newest known version", text, newest)
	default:
		c.ok(check, "%s", text)
	}
	return nil
}

// compatibility checks the parameters that decide what the server writes and shows.
func (c *checker) compatibility(ctx context.Context, s *server) error {
	check := s.side + " feature compatibility version"
	reply, err := ask(ctx, s.caller, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}})
	if e, ok := refusal(err); ok {
		c.warn(check, "The role clusterMonitor lets us read it.", "not known: %s", told(e))
		return nil
	}
	if err != nil {
		return err
	}
	doc, _ := reply.Lookup("featureCompatibilityVersion").DocumentOK()
	text, _ := doc.Lookup("version").StringValueOK()
	if _, err := fmt.Sscanf(text, "%d.%d", &s.fcv[0], &s.fcv[1]); err != nil {
		s.fcv = version{}
	}
	if to, ok := doc.Lookup("targetVersion").StringValueOK(); ok {
		c.fail(check, "Let setFeatureCompatibilityVersion finish first.", "%s, being changed to %s", text, to)
	} else {
		c.ok(check, "%s", text)
	}
	if s.side != "source" || !s.version.before(version{5, 0}) {
		return nil
	}
	check = "source read concern majority"
	reply, err = ask(ctx, s.caller, "admin", bson.D{{Key: "getParameter", Value: 1}, {Key: "enableMajorityReadConcern", Value: 1}})
	if e, ok := refusal(err); ok {
		c.warn(check, "", "not known: %s", told(e))
		return nil
	}
	if err != nil {
		return err
	}
	if on, ok := reply.Lookup("enableMajorityReadConcern").BooleanOK(); ok && !on {
		c.fail(check, "Start the members without enableMajorityReadConcern: false.",
			"disabled: entries that may still be rolled back cannot be told from committed ones")
		return nil
	}
	c.ok(check, "supported")
	return nil
}

// compare checks the two sides against each other.
func (c *checker) compare(source, target *server) {
	check := "target version against the source's"
	switch s, t := source.fcv, target.fcv; {
	case s == version{} || t == version{}:
	case t.before(s):
		c.warn(check, "An operation that the target's version does not support, such as one with a new collection option, will end the link.",
			"the target is at %s, the source at %s", t, s)
	default:
		c.ok(check, "the target is at %s, the source at %s", t, s)
	}
	check = "two clusters"
	same := source.name == target.name && source.me == target.me
	if !source.setID.IsZero() && !target.setID.IsZero() {
		same = source.setID.Equal(target.setID)
	}
	switch {
	case !same:
		c.ok(check, "source and target are different replica sets")
	case c.disjoint():
		c.warn(check, "The link's own writes are entries of the oplog that it reads: it is never quite idle.",
			"source and target are the same replica set; everything that is mirrored goes to other names")
	default:
		c.fail(check, "Check --source and --target. To mirror within one set, name each database with --include and send it to another one with --map DB=OTHER.",
			"source and target are the same replica set, and the link's writes would be mirrored again")
	}
}
