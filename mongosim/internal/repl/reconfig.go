package repl

import (
	"context"
	"errors"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// Initiate installs the first configuration (replSetInitiate); an empty document
// stands for this member alone. All members must answer and be without a
// configuration. It fails with AlreadyInitialized, InvalidReplicaSetConfig,
// NodeNotFound or NewReplicaSetConfigurationIncompatible.
func (n *Node) Initiate(ctx context.Context, doc bson.Raw) error {
	n.mu.Lock()
	taken := n.conf != nil || n.initiating
	n.initiating = n.initiating || !taken
	n.mu.Unlock()
	if taken {
		return alreadyInitialized()
	}
	defer func() {
		n.mu.Lock()
		n.initiating = false
		n.mu.Unlock()
	}()
	if len(doc) <= 5 {
		doc = defaultConfig(n.cfg.SetName, n.cfg.Host)
	}
	c, err := parseConfig(doc)
	if err != nil {
		return invalidConfig("%v", err)
	}
	if c.name != n.cfg.SetName {
		return invalidConfig("Attempting to initiate a replica set with name %s, but command line reports %s; rejecting", c.name, n.cfg.SetName)
	}
	if !c.setID.IsZero() {
		return invalidConfig("replica set configuration cannot contain 'replicaSetId' field when called from replSetInitiate: %s", doc)
	}
	if err := c.validate(); err != nil {
		return invalidConfig("%v", err)
	}
	if c.version != 1 {
		return invalidConfig("Configuration used to initiate a replica set must have version 1, but found %d", c.version)
	}
	if i := c.find(n.cfg.Host); i < 0 {
		return invalidConfig("No host described in new configuration with %s for replica set %s maps to this node", versionAndTerm(c.version, oplog.InitialTerm), c.name)
	} else if !electable(&c.members[i]) {
		return invalidConfig("This node, %s, with _id MemberId(%d) is not electable under the new configuration with %s for replica set %s",
			n.cfg.Host, c.members[i].ID, versionAndTerm(c.version, oplog.InitialTerm), c.name)
	}
	c.setID = n.newObjectID("set")
	c = c.with(1, oplog.InitialTerm, n.cfg.Dialect.Version)
	if err := n.quorum(ctx, c, "replSetInitiate", len(c.members)); err != nil {
		return err
	}
	first, err := n.firstEntry()
	if err != nil {
		return err
	}
	if err := n.saveVersion(first.at.TS); err != nil {
		return err
	}
	n.mu.Lock()
	if n.conf != nil {
		n.mu.Unlock()
		return alreadyInitialized()
	}
	n.applied, n.durable = first, first
	n.install(c)
	n.mu.Unlock()
	return errors.Join(n.saveConfig(), n.saveOrigin())
}

// firstEntry writes the first entry of a new set, which a log that is played has
// already.
func (n *Node) firstEntry() (moment, error) {
	if n.cfg.Played != nil {
		return n.newestEntry()
	}
	return n.writeNoop(noopInitiate, func() (int64, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.conf != nil { // another member's set has taken this one in meanwhile
			return 0, alreadyInitialized()
		}
		return oplog.UninitializedTerm, nil
	})
}

func alreadyInitialized() error {
	return servererr.New(servererr.AlreadyInitialized, "already initialized")
}

// quorum asks the members of a new configuration whether they can take it: need
// of them have to answer, and none may object.
func (n *Node) quorum(ctx context.Context, c *config, command string, need int) error {
	n.mu.Lock()
	cmd := n.heartbeatCommand(c)
	timeout := n.heartbeatTimeout()
	initiated := n.conf != nil
	n.mu.Unlock()
	ctx, done := context.WithTimeout(ctx, timeout)
	defer done()
	failures := make([]string, len(c.members))
	veto := make([]string, len(c.members))
	var calls sync.WaitGroup
	for i := range c.members {
		host := c.members[i].Host
		if host == n.cfg.Host {
			continue
		}
		calls.Go(func() {
			reply, err := n.cfg.Transport.Call(ctx, host, cmd)
			if err != nil {
				failures[i] = host + " failed with " + err.Error()
				return
			}
			b, err := parseBeat(reply)
			if err != nil {
				failures[i] = host + " failed with " + err.Error()
			} else if b.version >= c.version && !initiated {
				veto[i] = "Our config version of 1 is no larger than the version on " + host
			}
		})
	}
	calls.Wait()
	answered, missing := 0, ""
	for i := range c.members {
		if veto[i] != "" {
			return incompatibleConfig("%s", veto[i])
		}
		if failures[i] == "" {
			if initiated {
				answered += c.members[i].Votes
			} else {
				answered++
			}
			continue
		}
		if missing != "" {
			missing += ", "
		}
		missing += failures[i]
	}
	if answered >= need {
		return nil
	}
	kind := "not all proposed set members"
	if initiated {
		kind = "not enough voting nodes"
	}
	return servererr.New(servererr.NodeNotFound, "%s quorum check failed because %s responded affirmatively: %s", command, kind, missing)
}

// Reconfig installs another configuration (replSetReconfig), with the server's
// rules of what may change: without force only on a writable primary, once the
// present one is known to a majority, and with at most one voter more or less. It
// returns when a majority has the new one. It fails with NotWritablePrimary,
// InvalidReplicaSetConfig, NewReplicaSetConfigurationIncompatible,
// CurrentConfigNotCommittedYet or NodeNotFound.
func (n *Node) Reconfig(ctx context.Context, doc bson.Raw, force bool) error {
	n.mu.Lock()
	old, term, state := n.conf, n.term, n.memberState()
	writable := n.role == leader && n.writable && !n.attempting
	n.mu.Unlock()
	switch {
	case old == nil:
		return notYetInitialized()
	case !force && !writable:
		return servererr.New(servererr.NotWritablePrimary, "Safe reconfig is only allowed on a writable PRIMARY. Current state %s", state)
	}
	if !force {
		if err := n.awaitConfig(ctx, old); err != nil {
			if errors.Is(ctx.Err(), context.Canceled) { // the request has ended
				return err
			}
			return servererr.New(servererr.CurrentConfigNotCommittedYet,
				"Cannot run replSetReconfig because the current config: %s is not majority committed.", versionAndTerm(old.version, old.term))
		}
	}
	c, err := parseConfig(doc)
	if err != nil {
		return invalidConfig("%v", err)
	}
	if force {
		term = oplog.UninitializedTerm
		// So that no configuration made meanwhile can be newer.
		c.version = min(max(c.version, old.version+1)+10000+n.jump(), maxVersion)
	}
	if c.setID.IsZero() {
		c.setID = old.setID
	}
	c = c.with(c.version, term, n.cfg.Dialect.Version)
	if err := c.validate(); err != nil {
		return incompatibleConfig("%v", err)
	}
	if err := successor(old, c, force); err != nil {
		return err
	}
	i := c.find(n.cfg.Host)
	if i < 0 {
		return incompatibleConfig("No host described in new configuration with %s for replica set %s maps to this node", versionAndTerm(c.version, c.term), c.name)
	}
	if !force && !electable(&c.members[i]) {
		return incompatibleConfig("This node, %s, with _id MemberId(%d) is not electable under the new configuration with %s for replica set %s",
			n.cfg.Host, c.members[i].ID, versionAndTerm(c.version, c.term), c.name)
	}
	if !force {
		if err := n.quorum(ctx, c, "replSetReconfig", c.majority()); err != nil {
			return err
		}
	}
	return n.reconfigure(ctx, old, c, force)
}

// reconfigure replaces old with a checked configuration.
func (n *Node) reconfigure(ctx context.Context, old, c *config, force bool) error {
	if !force {
		m, err := n.writeNoopObject(document(func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "msg", noopReconfig)
			return bsoncore.AppendInt32Element(dst, "version", int32(c.version))
		}), n.WriteTerm)
		if err != nil {
			return err
		}
		n.Wrote(m.at, m.wall)
	}
	n.mu.Lock()
	if n.conf != old {
		n.mu.Unlock()
		return servererr.New(servererr.ConfigurationInProgress, "Cannot run replSetReconfig because the node is currently updating its configuration")
	}
	if !force && (n.role != leader || n.term != c.term) {
		n.mu.Unlock()
		return servererr.New(servererr.NotWritablePrimary, "Stepped down when persisting new config")
	}
	n.install(c)
	for _, m := range n.members {
		m.soon()
	}
	n.mu.Unlock()
	if err := n.saveConfig(); err != nil {
		return err
	}
	n.settle()
	if force {
		return nil
	}
	return n.awaitConfig(ctx, c)
}

func (n *Node) jump() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Int64N(100000)
}

// awaitConfig waits until a majority of voters has the configuration.
func (n *Node) awaitConfig(ctx context.Context, c *config) error {
	for {
		n.mu.Lock()
		if n.conf.version != c.version {
			n.mu.Unlock()
			return servererr.New(servererr.ConfigurationInProgress, "another configuration was installed meanwhile")
		}
		have := 0
		for i, m := range n.members {
			if i == n.self || m.up && m.configVersion == n.conf.version && m.configTerm == n.conf.term {
				have += n.conf.members[i].Votes
			}
		}
		done := have >= n.conf.majority()
		lost := n.role != leader
		changed := n.changed.wait()
		n.mu.Unlock()
		if done {
			return nil
		}
		if lost {
			return servererr.New(servererr.PrimarySteppedDown, "Primary stepped down while waiting for replication")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// successor checks that c may follow on old.
func successor(old, c *config, force bool) error {
	if !newerThan(c.version, c.term, old.version, old.term) {
		return incompatibleConfig("New replica set configuration version and term must be greater than old, but %s is not greater than %s for replica set %s",
			versionAndTerm(c.version, c.term), versionAndTerm(old.version, old.term), c.name)
	}
	if old.name != c.name {
		return incompatibleConfig("New and old configurations differ in replica set name; old was %s, and new is %s", old.name, c.name)
	}
	if old.setID != c.setID {
		return incompatibleConfig("New and old configurations differ in replica set ID; old was %s, and new is %s", old.setID.Hex(), c.setID.Hex())
	}
	for i := range c.members {
		if err := sameMember(old, c, &c.members[i]); err != nil {
			return err
		}
	}
	if force {
		return nil
	}
	changes := 0
	for i := range c.members {
		j := old.byID(c.members[i].ID)
		if c.members[i].Votes > 0 && (j < 0 || old.members[j].Votes == 0) {
			changes++
		}
	}
	for i := range old.members {
		j := c.byID(old.members[i].ID)
		if old.members[i].Votes > 0 && (j < 0 || c.members[j].Votes == 0) {
			changes++
		}
	}
	if changes > 1 {
		return incompatibleConfig("Non force replica set reconfig can only add or remove at most 1 voting member.")
	}
	return nil
}

// sameMember checks what a reconfiguration must not change of a member.
func sameMember(old, c *config, m *Member) error {
	for i := range old.members {
		o := &old.members[i]
		if o.Host == m.Host && o.ID != m.ID {
			return incompatibleConfig("New and old configurations both have members with host of %s but in the new configuration the _id field is %d and in the old configuration it is %d for replica set %s",
				o.Host, m.ID, o.ID, c.name)
		}
		if o.ID != m.ID {
			continue
		}
		if o.BuildIndexes != m.BuildIndexes {
			return incompatibleConfig("New and old configurations differ in the setting of the buildIndexes field for member %s; to make this change, remove then re-add the member", o.Host)
		}
		if o.Arbiter != m.Arbiter {
			return incompatibleConfig("New and old configurations differ in the setting of the arbiterOnly field for member %s; to make this change, remove then re-add the member", o.Host)
		}
	}
	return nil
}
