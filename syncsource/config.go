package syncsource

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// setConfig has the parts of a set's configuration that this package uses.
type setConfig struct {
	name          string
	term, version int64
	noChaining    bool
	replicaSetID  bson.RawValue
	members       []configMember
}

// configMember is a member in the configuration. Its horizons are its names in
// other networks.
type configMember struct {
	Member
	horizons map[string]string
}

func configCommand() bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "replSetGetConfig", 1)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// newer reports whether the configuration of one term and version is newer than
// another. Without terms, the versions decide.
func newer(term, version, thanTerm, thanVersion int64) bool {
	if term != thanTerm && term != oplog.UninitializedTerm && thanTerm != oplog.UninitializedTerm {
		return term > thanTerm
	}
	return version > thanVersion
}

// parseConfig reads a reply to replSetGetConfig.
func parseConfig(reply bson.Raw) (*setConfig, error) {
	c := &setConfig{term: oplog.UninitializedTerm}
	var r reader
	e, ok := rawbson.Lookup(reply, "config")
	if !ok {
		return nil, errors.New("read the configuration: the reply does not contain it")
	}
	r.each(r.document(&e), func(e *rawbson.Elem) {
		switch e.Name() {
		case "_id":
			c.name = r.text(e)
		case "version":
			c.version = r.number(e)
		case "term":
			c.term = r.number(e)
		case "members":
			list, ok := e.Array()
			if !ok {
				r.wrong(e, "an array")
				return
			}
			r.each(list, func(e *rawbson.Elem) { c.members = append(c.members, r.member(r.document(e))) })
		case "settings":
			r.each(r.document(e), func(e *rawbson.Elem) {
				switch e.Name() {
				case "chainingAllowed":
					c.noChaining = !e.Truth()
				case "replicaSetId":
					c.replicaSetID = bson.RawValue{Type: e.Type, Value: append([]byte(nil), e.Value...)}
				}
			})
		}
	})
	if r.err == nil && len(c.members) == 0 {
		r.err = errors.New("it has no members")
	}
	if r.err != nil {
		return nil, fmt.Errorf("read the configuration: %w", r.err)
	}
	return c, nil
}

func (r *reader) member(doc bson.Raw) configMember {
	m := configMember{Member: Member{ID: -1, Priority: 1, State: oplog.MemberUnknown, Term: oplog.UninitializedTerm, RBID: -1}}
	r.each(doc, func(e *rawbson.Elem) {
		switch e.Name() {
		case "_id":
			m.ID = int(r.number(e))
		case "host":
			m.Host = r.text(e)
		case "arbiterOnly":
			m.Arbiter = e.Truth()
		case "buildIndexes":
			m.NoIndexes = !e.Truth()
		case "hidden":
			m.Hidden = e.Truth()
		case "priority":
			if f, ok := e.Raw().AsFloat64OK(); ok {
				m.Priority = f
			} else {
				r.wrong(e, "a number")
			}
		case "votes":
			m.NonVoting = r.number(e) == 0
		case "secondaryDelaySecs", "slaveDelay":
			m.Delay = r.seconds(e)
		case "tags":
			m.Tags = r.tags(e)
		case "horizons":
			m.horizons = r.tags(e)
		}
	})
	if m.Host == "" && r.err == nil {
		r.err = errors.New("a member has no host")
	}
	return m
}

// horizon returns the horizon that a member's name belongs to. It is empty for the
// name that the members use among themselves, and for an unknown name.
func (c *setConfig) horizon(me string) string {
	for i := range c.members {
		for name, host := range c.members[i].horizons {
			if strings.EqualFold(host, me) && !strings.EqualFold(c.members[i].Host, me) {
				return name
			}
		}
	}
	return ""
}

// in returns the configuration's members under their names in a horizon.
func (c *setConfig) in(horizon string) []Member {
	members := make([]Member, 0, len(c.members))
	for i := range c.members {
		m := c.members[i].Member
		if host, ok := c.members[i].horizons[horizon]; ok && horizon != "" {
			m.Host = host
		}
		members = append(members, m)
	}
	return members
}
