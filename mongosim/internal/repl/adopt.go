package repl

import (
	"context"
)

// askFor plans to fetch a newer configuration. Callers hold mu.
func (n *Node) askFor(from string, version, term int64) {
	if from == "" || version < 0 {
		return
	}
	if n.conf == nil || newerThan(version, term, n.conf.version, n.conf.term) {
		n.askHost = from
		n.changed.fire()
	}
}

// fetchConfig asks a member that has a newer configuration for it.
func (n *Node) fetchConfig(ctx context.Context, host string) {
	n.mu.Lock()
	cmd := n.heartbeatCommand(nil)
	timeout := n.heartbeatTimeout()
	n.mu.Unlock()
	ctx, done := context.WithTimeout(ctx, timeout)
	defer done()
	reply, err := n.cfg.Transport.Call(ctx, host, cmd)
	if err != nil {
		return // the next heartbeat from there asks again
	}
	b, err := parseBeat(reply)
	if err != nil || b.config == nil || b.set != n.cfg.SetName {
		return
	}
	c, err := parseConfig(b.config)
	if err != nil {
		n.log.Warn("configuration of another member", keySource, host, keyError, err.Error())
		return
	}
	n.adopt(c)
}

// adopt installs a configuration that another member sent, if it is newer.
func (n *Node) adopt(c *config) {
	if err := c.validate(); err != nil {
		n.log.Warn("configuration of another member", keyError, err.Error())
		return
	}
	if c.name != n.cfg.SetName {
		n.log.Warn("configuration of another set", keyConfig, c.name)
		return
	}
	c = c.with(c.version, c.term, n.cfg.Dialect.Version)
	n.mu.Lock()
	if n.conf != nil && (!newerThan(c.version, c.term, n.conf.version, n.conf.term) || c.setID != n.conf.setID) {
		n.mu.Unlock()
		return
	}
	n.install(c)
	n.mu.Unlock()
	if err := n.saveConfig(); err != nil {
		n.log.Error("configuration not stored", keyError, err.Error())
	}
	n.settle()
}
