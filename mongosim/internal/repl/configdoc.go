package repl

import (
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// with returns a copy of the configuration under another version and term, and
// with its document rebuilt. version names the server version whose field names
// are used.
func (c *config) with(version, term int64, server string) *config {
	d := *c
	d.version, d.term = version, term
	d.doc = d.document(server)
	return &d
}

// document writes the configuration as replSetGetConfig shows it: all fields,
// defaults included, in the server's order and types.
func (c *config) document(server string) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", c.name)
		dst = bsoncore.AppendInt32Element(dst, "version", int32(c.version))
		dst = bsoncore.AppendInt32Element(dst, "term", int32(c.term))
		i, dst := bsoncore.AppendArrayElementStart(dst, "members")
		for j := range c.members {
			k, sub := bsoncore.AppendDocumentElementStart(dst, index(j))
			dst = endDocument(c.members[j].append(sub, server), k)
		}
		dst = endDocument(dst, i)
		dst = bsoncore.AppendInt64Element(dst, "protocolVersion", 1)
		dst = bsoncore.AppendBooleanElement(dst, "writeConcernMajorityJournalDefault", c.journalMajority)
		i, dst = bsoncore.AppendDocumentElementStart(dst, "settings")
		return endDocument(c.appendSettings(dst), i)
	})
}

func (m *Member) append(dst []byte, server string) []byte {
	dst = bsoncore.AppendInt32Element(dst, "_id", int32(m.ID))
	dst = bsoncore.AppendStringElement(dst, "host", m.Host)
	dst = bsoncore.AppendBooleanElement(dst, "arbiterOnly", m.Arbiter)
	dst = bsoncore.AppendBooleanElement(dst, "buildIndexes", m.BuildIndexes)
	dst = bsoncore.AppendBooleanElement(dst, "hidden", m.Hidden)
	dst = bsoncore.AppendDoubleElement(dst, "priority", m.Priority)
	i, dst := bsoncore.AppendDocumentElementStart(dst, "tags")
	for _, tag := range slices.Sorted(maps.Keys(m.Tags)) {
		dst = bsoncore.AppendStringElement(dst, tag, m.Tags[tag])
	}
	dst = endDocument(dst, i)
	delay := "secondaryDelaySecs"
	if strings.HasPrefix(server, "4.") {
		delay = "slaveDelay"
	}
	dst = bsoncore.AppendInt64Element(dst, delay, m.DelaySecs)
	return bsoncore.AppendInt32Element(dst, "votes", int32(m.Votes))
}

func (c *config) appendSettings(dst []byte) []byte {
	millis := func(name string, d time.Duration) {
		dst = bsoncore.AppendInt32Element(dst, name, int32(d.Milliseconds()))
	}
	dst = bsoncore.AppendBooleanElement(dst, "chainingAllowed", c.chaining)
	millis("heartbeatIntervalMillis", c.heartbeatInterval)
	dst = bsoncore.AppendInt32Element(dst, "heartbeatTimeoutSecs", int32(c.heartbeatTimeout/time.Second))
	millis("electionTimeoutMillis", c.electionTimeout)
	millis("catchUpTimeoutMillis", c.catchupTimeout)
	millis("catchUpTakeoverDelayMillis", c.takeoverDelay)
	i, dst := bsoncore.AppendDocumentElementStart(dst, "getLastErrorModes")
	for _, mode := range slices.Sorted(maps.Keys(c.modes)) {
		j, sub := bsoncore.AppendDocumentElementStart(dst, mode)
		for _, tag := range slices.Sorted(maps.Keys(c.modes[mode])) {
			sub = bsoncore.AppendInt32Element(sub, tag, int32(c.modes[mode][tag]))
		}
		dst = endDocument(sub, j)
	}
	dst = endDocument(dst, i)
	i, dst = bsoncore.AppendDocumentElementStart(dst, "getLastErrorDefaults")
	dst = bsoncore.AppendInt32Element(dst, "w", 1)
	dst = bsoncore.AppendInt32Element(dst, "wtimeout", 0)
	dst = endDocument(dst, i)
	return bsoncore.AppendObjectIDElement(dst, "replicaSetId", c.setID)
}

// defaultConfig is what an empty replSetInitiate asks for: this member alone.
func defaultConfig(set, host string) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "_id", set)
		dst = bsoncore.AppendInt32Element(dst, "version", 1)
		i, dst := bsoncore.AppendArrayElementStart(dst, "members")
		j, dst := bsoncore.AppendDocumentElementStart(dst, "0")
		dst = bsoncore.AppendInt32Element(dst, "_id", 0)
		dst = bsoncore.AppendStringElement(dst, "host", host)
		return endDocument(endDocument(dst, j), i)
	})
}
