package repl

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The server's limits and defaults.
const (
	maxMembers = 50
	maxVoters  = 7
	maxVersion = 1<<31 - 1

	defaultHeartbeatInterval = 2 * time.Second
	defaultHeartbeatTimeout  = 10 * time.Second
	defaultElectionTimeout   = 10 * time.Second
	defaultCatchupTimeout    = -time.Millisecond // no limit
	defaultTakeoverDelay     = 30 * time.Second
)

// config is a configuration of the set. It never changes.
type config struct {
	// doc is the whole of it, with all defaults, as replSetGetConfig shows it.
	doc           bson.Raw
	name          string
	version, term int64
	members       []Member
	setID         bson.ObjectID
	chaining      bool
	// modes are settings.getLastErrorModes: the required number of different
	// values of each tag.
	modes map[string]map[string]int
	// journalMajority is writeConcernMajorityJournalDefault.
	journalMajority bool

	heartbeatInterval, heartbeatTimeout, electionTimeout time.Duration
	// catchupTimeout below zero means no limit, takeoverDelay below zero never.
	catchupTimeout, takeoverDelay time.Duration
}

// parseConfig reads a configuration. It reports malformed fields, not
// inconsistent ones: see config.validate.
func parseConfig(doc bson.Raw) (*config, error) {
	if err := rawbson.Validate(doc); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := unique("ReplSetConfig", doc); err != nil {
		return nil, err
	}
	c := &config{}
	it := rawbson.NewIter(doc)
	f := fields{doc: doc}
	for it.Next() {
		switch name := it.Name(); name {
		case "_id":
			c.name = f.text(name)
		case "version":
			c.version = f.int64(name)
		case "term":
			c.term = f.int64(name)
		case "members":
			if err := c.parseMembers(f.array(name)); err != nil {
				return nil, err
			}
		case "protocolVersion":
			if v := f.int64(name); f.err == nil && v != 1 {
				return nil, fmt.Errorf("protocolVersion of %d is not supported by this version", v)
			}
		case "configsvr":
			if f.bool(name, false) {
				return nil, errors.New("configsvr: config servers are not implemented here")
			}
		case "settings", "writeConcernMajorityJournalDefault":
		default:
			return nil, fmt.Errorf("BSON field 'ReplSetConfig.%s' is an unknown field.", name) //nolint:revive,staticcheck // the server's words
		}
	}
	c.journalMajority = f.bool("writeConcernMajorityJournalDefault", true)
	if f.err == nil && c.name == "" {
		f.err = errors.New("BSON field 'ReplSetConfig._id' is missing but a required field")
	}
	if !f.has("version") {
		f.err = cmp.Or(f.err, errors.New("BSON field 'ReplSetConfig.version' is missing but a required field"))
	}
	if !f.has("members") {
		f.err = cmp.Or(f.err, errors.New("BSON field 'ReplSetConfig.members' is missing but a required field"))
	}
	if !f.has("term") {
		c.term = oplog.UninitializedTerm
	}
	settings := fields{doc: document(func(dst []byte) []byte { return dst })}
	if f.has("settings") {
		settings.doc = f.document("settings")
	}
	if f.err != nil {
		return nil, f.err
	}
	return c, c.parseSettings(&settings)
}

// unique refuses a document that has a field twice.
func unique(kind string, doc bson.Raw) error {
	seen := map[string]bool{}
	it := rawbson.NewIter(doc)
	for it.Next() {
		if seen[it.Name()] {
			return fmt.Errorf("BSON field '%s.%s' is a duplicate field", kind, it.Name())
		}
		seen[it.Name()] = true
	}
	return it.Err()
}

func (c *config) parseMembers(array bson.Raw) error {
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return fmt.Errorf("members.%s: want a document", it.Name())
		}
		m, err := parseMember(doc)
		if err != nil {
			return fmt.Errorf("member: %s: %w", it.Name(), err)
		}
		c.members = append(c.members, m)
	}
	return it.Err()
}

func (c *config) parseSettings(f *fields) error {
	if err := checkSettings(f.doc); err != nil {
		return err
	}
	c.chaining = f.bool("chainingAllowed", true)
	c.heartbeatInterval = f.positive("heartbeatIntervalMillis", time.Millisecond, defaultHeartbeatInterval)
	c.heartbeatTimeout = f.positive("heartbeatTimeoutSecs", time.Second, defaultHeartbeatTimeout)
	c.electionTimeout = f.positive("electionTimeoutMillis", time.Millisecond, defaultElectionTimeout)
	c.catchupTimeout = f.millis("catchUpTimeoutMillis", defaultCatchupTimeout)
	c.takeoverDelay = f.millis("catchUpTakeoverDelayMillis", defaultTakeoverDelay)
	c.modes = map[string]map[string]int{}
	if f.has("getLastErrorModes") {
		f.modes(c.modes)
	}
	if e, ok := rawbson.Lookup(f.doc, "replicaSetId"); ok {
		if e.Type != bson.TypeObjectID {
			f.fault("replicaSetId", "an ObjectId")
		} else {
			c.setID = bson.ObjectID(e.Value)
		}
	}
	return f.err
}

// checkSettings refuses settings that are not known, and default write concerns of
// the old kind: the server has no others than {w: 1, wtimeout: 0}.
func checkSettings(doc bson.Raw) error {
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "chainingAllowed", "heartbeatIntervalMillis", "heartbeatTimeoutSecs", "electionTimeoutMillis",
			"catchUpTimeoutMillis", "catchUpTakeoverDelayMillis", "getLastErrorModes", "replicaSetId":
		case "getLastErrorDefaults":
			given, ok := it.Document()
			if !ok {
				return errors.New("settings.getLastErrorDefaults: want a document")
			}
			d := fields{doc: given}
			if d.maybeInt64("w", 1) != 1 || d.maybeInt64("wtimeout", 0) != 0 || d.bool("j", false) || d.bool("fsync", false) || d.err != nil {
				return fmt.Errorf("settings.getLastErrorDefaults is not supported: %s", given)
			}
		default:
			return fmt.Errorf("BSON field 'ReplSetConfigSettings.%s' is an unknown field.", it.Name()) //nolint:revive,staticcheck // the server's words
		}
	}
	return it.Err()
}

func (f *fields) millis(name string, def time.Duration) time.Duration {
	v := f.maybeInt64(name, def.Milliseconds())
	if v < -1 || v > maxVersion {
		f.fault(name, "-1 or more")
	}
	return time.Duration(v) * time.Millisecond
}

func (f *fields) positive(name string, unit, def time.Duration) time.Duration {
	v := f.maybeInt64(name, int64(def/unit))
	if v <= 0 || v > maxVersion {
		f.fault(name, "1 or more")
		return def
	}
	return time.Duration(v) * unit
}

func (f *fields) modes(into map[string]map[string]int) {
	it := rawbson.NewIter(f.document("getLastErrorModes"))
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			f.fault("getLastErrorModes."+it.Name(), "a document")
			return
		}
		mode := map[string]int{}
		tags := rawbson.NewIter(doc)
		for tags.Next() {
			count, ok := tags.Int64()
			if !ok || count <= 0 || count > maxMembers {
				f.err = cmp.Or(f.err, fmt.Errorf("value for getLastErrorModes.%s.%s must be a number above 0", it.Name(), tags.Name()))
				return
			}
			mode[strings.Clone(tags.Name())] = int(count)
		}
		into[strings.Clone(it.Name())] = mode
	}
}

// validate reports inconsistencies of a configuration; messages are the
// server's.
func (c *config) validate() error {
	if len(c.members) == 0 || len(c.members) > maxMembers {
		return fmt.Errorf("Replica set configuration contains %d members, but must have at least 1 and no more than  %d", len(c.members), maxMembers) //nolint:staticcheck // the server's words
	}
	if c.version < 1 || c.version > maxVersion {
		return fmt.Errorf("version field value of %d is out of range", c.version)
	}
	voters, electable := 0, 0
	for i := range c.members {
		m := &c.members[i]
		voters += m.Votes
		if m.Priority > 0 {
			electable++
		}
		for j := range c.members {
			if i == j {
				continue
			}
			o := &c.members[j]
			if m.ID == o.ID {
				return fmt.Errorf("Found two member configurations with same _id field, members.%d._id == members.%d._id == %d", i, j, m.ID) //nolint:staticcheck // the server's words
			}
			if m.Host == o.Host {
				return fmt.Errorf("Found two member configurations with same host field, members.%d.host == members.%d.host == %s", i, j, m.Host) //nolint:staticcheck // the server's words
			}
		}
	}
	if voters == 0 || voters > maxVoters {
		return fmt.Errorf("Replica set configuration contains %d voting members, but must be at least 1 and no more than %d", voters, maxVoters) //nolint:staticcheck // the server's words
	}
	if electable == 0 {
		return errors.New("Replica set configuration must contain at least one non-arbiter member with priority > 0") //nolint:staticcheck // the server's words
	}
	for _, mode := range slices.Sorted(maps.Keys(c.modes)) {
		for _, tag := range slices.Sorted(maps.Keys(c.modes[mode])) {
			if !slices.ContainsFunc(c.members, func(m Member) bool { _, ok := m.Tags[tag]; return ok }) {
				return fmt.Errorf("No replica set tag with key %s", tag) //nolint:staticcheck // the server's words
			}
		}
	}
	return nil
}

// find returns the index of the member with the host, -1 if there is none.
func (c *config) find(host string) int {
	return slices.IndexFunc(c.members, func(m Member) bool { return m.Host == host })
}

func (c *config) byID(id int) int {
	return slices.IndexFunc(c.members, func(m Member) bool { return m.ID == id })
}

func (c *config) voters() int {
	n := 0
	for i := range c.members {
		n += c.members[i].Votes
	}
	return n
}

// majority is how many votes an election takes.
func (c *config) majority() int { return c.voters()/2 + 1 }

// dataVoters is how many voters hold data.
func (c *config) dataVoters() int {
	n := 0
	for i := range c.members {
		if !c.members[i].Arbiter {
			n += c.members[i].Votes
		}
	}
	return n
}

// writeMajority is how many voters a committed entry is on.
func (c *config) writeMajority() int { return min(c.majority(), c.dataVoters()) }

// newerThan orders configurations by term, then by version; by version alone if
// either has no term, as after a forced reconfiguration.
func newerThan(version, term, thanVersion, thanTerm int64) bool {
	if term != thanTerm && term != oplog.UninitializedTerm && thanTerm != oplog.UninitializedTerm {
		return term > thanTerm
	}
	return version > thanVersion
}

// versionAndTerm is how the server names a configuration in messages.
func versionAndTerm(version, term int64) string {
	return "{version: " + strconv.FormatInt(version, 10) + ", term: " + strconv.FormatInt(term, 10) + "}"
}
