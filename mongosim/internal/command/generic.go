package command

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// ignoredArguments are generic arguments that change nothing here: those of
// routers and shards, of audits, and apiDeprecationErrors, as nothing is deprecated.
var ignoredArguments = map[string]bool{
	"apiDeprecationErrors": true, "maxTimeMSOpOnly": true,
	"$audit": true, "$client": true, "$configServerState": true, "$configTime": true, "$topologyTime": true,
	"$queryOptions": true, "allowImplicitCollectionCreation": true, "coordinator": true, "databaseVersion": true,
	"shardVersion": true, "clientOperationKey": true, "mayBypassWriteBlocking": true,
	"txnRetryCounter": true, "$traceCtx": true, "rawData": true, "versionContext": true,
}

// parse reads the body of a command: its name, the generic arguments, and the
// documents of its sequence. Unknown arguments are refused if the command is
// strict; what the others mean is the command's own business.
func (r *request) parse(in input) error {
	r.cmd, r.exhaust = in.body, in.exhaust
	it := rawbson.NewIter(in.body)
	if !it.Next() {
		if it.Err() != nil {
			return servererr.New(servererr.InvalidBSON, "%s", it.Err())
		}
		return servererr.New(servererr.CommandNotFound, "no such command: ''")
	}
	r.name = it.Name()
	r.spec = r.srv.commands[r.name]
	if r.spec == nil {
		return servererr.New(servererr.CommandNotFound, "no such command: '%s'", r.name)
	}
	if in.legacy && r.srv.atLeast(5, 1) && !opQueryCommands[r.spec.name] {
		return servererr.New(servererr.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: %s. "+
			"The client driver may require an upgrade. For more details see "+
			"https://dochub.mongodb.org/core/legacy-opcode-removal", r.name)
	}
	r.writeConcern = r.srv.defaultWriteConcern()
	var seen uint64
	for it.Next() {
		generic, err := r.parseGeneric(&it.Elem)
		if err != nil {
			return err
		}
		if generic || r.spec.known == nil {
			continue
		}
		i, ok := r.spec.known[string(it.Key)]
		if !ok {
			return unknownField(r.spec.structName, it.Name())
		}
		if seen&(1<<i) != 0 {
			return duplicateField(r.spec.structName, it.Name())
		}
		seen |= 1 << i
	}
	if it.Err() != nil {
		return servererr.New(servererr.InvalidBSON, "%s", it.Err())
	}
	if r.db == "" {
		return servererr.New(40571, "OP_MSG requests require a $db argument")
	}
	if !validDatabase(r.db) {
		return servererr.New(servererr.InvalidNamespace, "Invalid database name: '%s'", r.db)
	}
	return r.takeDocuments(in)
}

// handshakes are the commands that tell a client what it talks to.
var handshakes = map[string]bool{"hello": true, "isMaster": true}

// opQueryCommands are those that may still come as OP_QUERY from 5.1 on.
var opQueryCommands = map[string]bool{
	"hello": true, "isMaster": true, "_isSelf": true, "buildInfo": true, "saslStart": true, "saslContinue": true,
}

// takeDocuments collects the documents of the command's sequence, from beside
// the body or from an array in it.
func (r *request) takeDocuments(in input) error {
	for _, s := range in.sequences {
		if s.name != r.spec.sequence {
			if _, ok := r.spec.known[s.name]; !ok && r.spec.known != nil {
				return unknownField(r.spec.structName, s.name)
			}
			return servererr.New(servererr.NotImplemented, "%s as a document sequence of %s is not implemented here", s.name, r.name)
		}
		if r.docs == nil {
			r.docs = make(map[string][]bson.Raw, len(in.sequences))
		}
		r.docs[s.name] = s.docs
	}
	name := r.spec.sequence
	if name == "" {
		return nil
	}
	if _, ok := r.docs[name]; ok {
		return nil
	}
	e, ok := rawbson.Lookup(r.cmd, name)
	if !ok {
		return missingField(r.spec.structName, name)
	}
	docs, err := documentsOf(r.spec.structName, name, &e)
	if err != nil {
		return err
	}
	if r.docs == nil {
		r.docs = make(map[string][]bson.Raw, 1)
	}
	r.docs[name] = docs
	return nil
}

// documentsOf reads an argument that is an array of documents.
func documentsOf(structName, name string, e *rawbson.Elem) ([]bson.Raw, error) {
	array, ok := e.Array()
	if !ok {
		return nil, wrongType(structName, name, e.Type, "array")
	}
	var docs []bson.Raw
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, wrongType(structName, name+"."+it.Name(), it.Type, "object")
		}
		docs = append(docs, doc)
	}
	if it.Err() != nil {
		return nil, servererr.New(servererr.InvalidBSON, "%s", it.Err())
	}
	return docs, nil
}

// validDatabase tells whether a name may be that of a database.
func validDatabase(name string) bool {
	return name != "" && len(name) < 64 && !strings.ContainsAny(name, "/\\. \"\x00") && (name[0] != '$' || name == "$external")
}

// parseGeneric reads one argument if it is a generic one.
func (r *request) parseGeneric(e *rawbson.Elem) (generic bool, err error) {
	switch string(e.Key) {
	case "$db":
		text, ok := e.Text()
		if !ok {
			return true, wrongType(r.spec.structName, "$db", e.Type, "string")
		}
		if r.db != "" {
			return true, duplicateField(r.spec.structName, "$db")
		}
		r.db = strings.Clone(text)
	case "lsid":
		r.lsid, err = r.parseLSID(e)
	case "txnNumber":
		n, ok := e.Int64()
		if !ok || e.Type != bson.TypeInt64 {
			return true, wrongType("OperationSessionInfo", "txnNumber", e.Type, "long")
		}
		r.txnNumber = &n
	case "autocommit":
		b, ok := e.Bool()
		if !ok {
			return true, wrongType("OperationSessionInfo", "autocommit", e.Type, "bool")
		}
		r.autocommit = &b
	case "startTransaction":
		b, ok := e.Bool()
		if !ok {
			return true, wrongType("OperationSessionInfo", "startTransaction", e.Type, "bool")
		}
		if !b {
			return true, servererr.New(servererr.InvalidOptions, "Specifying startTransaction=false is not allowed.")
		}
		r.startTxn = true
	case "maxTimeMS":
		err = r.parseMaxTime(e)
	case "readConcern":
		err = r.parseReadConcern(e)
	case "writeConcern":
		err = r.parseWriteConcern(e)
	case "$readPreference":
		err = r.parseReadPreference(e)
	case "$clusterTime":
		err = r.gossip(e)
	case "$replData":
		r.replData = e.Truth()
	case "$oplogQueryData":
		r.oplogQuery = e.Truth()
	case "comment":
		r.comment = e.Raw()
	case "apiVersion":
		err = r.parseAPIVersion(e)
	case "apiStrict":
		err = r.parseAPIStrict(e)
	case "help":
		// The server answers with a text instead of running the command.
		if ask, _ := e.Bool(); ask {
			err = servererr.New(servererr.NotImplemented, "the argument help of %s is not implemented here", r.name)
		}
	case "$maxTimeMS":
		err = servererr.New(servererr.InvalidOptions, "no such command option $maxTimeMs; use maxTimeMS instead")
	case "helloOk":
		if ok, _ := e.Bool(); ok && handshakes[r.spec.name] {
			r.conn.SupportsHello = true
		}
		return false, nil
	default:
		return ignoredArguments[string(e.Key)], nil
	}
	return true, err
}

func (r *request) parseMaxTime(e *rawbson.Elem) error {
	n, ok := e.Int64()
	if !ok {
		return servererr.New(servererr.BadValue, "maxTimeMS must be a number")
	}
	if n < 0 || n > math.MaxInt32 {
		return servererr.New(servererr.BadValue, "%d value for maxTimeMS is out of range", n)
	}
	r.maxTime = time.Duration(n) * time.Millisecond
	return nil
}

func (r *request) parseReadPreference(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return wrongType(r.spec.structName, "$readPreference", e.Type, "object")
	}
	mode, _ := rawbson.Lookup(doc, "mode")
	switch text, _ := mode.Text(); text {
	case "primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest":
		r.readPref = strings.Clone(text)
		return nil
	default:
		return servererr.New(servererr.FailedToParse, "Could not parse $readPreference mode '%s'. Only the modes 'primary', "+
			"'primaryPreferred', 'secondary', 'secondaryPreferred', and 'nearest' are supported.", text)
	}
}

// clusterClock is the highest cluster time that anybody has told of.
type clusterClock struct{ packed atomic.Uint64 }

func pack(ts bson.Timestamp) uint64 { return uint64(ts.T)<<32 | uint64(ts.I) }

// advance returns the later of the clock and ts, which the clock then shows.
func (c *clusterClock) advance(ts bson.Timestamp) bson.Timestamp {
	want := pack(ts)
	for {
		have := c.packed.Load()
		if have >= want {
			return bson.Timestamp{T: uint32(have >> 32), I: uint32(have)}
		}
		if c.packed.CompareAndSwap(have, want) {
			return ts
		}
	}
}

// maxClusterTimeJump is how far ahead of this member's clock a cluster time may
// be, in seconds: the server's maxAcceptableLogicalClockDriftSecs.
const maxClusterTimeJump = 365 * 24 * 60 * 60

// gossip takes note of the cluster time that a client knows of.
func (r *request) gossip(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return nil
	}
	field, _ := rawbson.Lookup(doc, "clusterTime")
	ts, ok := field.Timestamp()
	if !ok {
		return nil
	}
	now := r.srv.cfg.Now().Unix()
	if int64(ts.T) > now+maxClusterTimeJump {
		return servererr.New(servererr.ClusterTimeFailsRateLimiter,
			"New cluster time, %d, is too far from this node's wall clock time, %d.", ts.T, now)
	}
	r.srv.clock.advance(ts)
	return nil
}
