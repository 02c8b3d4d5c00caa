package dispatch

import (
	"math"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// IgnoredArguments are generic arguments that change nothing here: those of
// routers and shards, of audits, and apiDeprecationErrors, as nothing is deprecated.
var IgnoredArguments = map[string]bool{
	"apiDeprecationErrors": true, "maxTimeMSOpOnly": true,
	"$audit": true, "$client": true, "$configServerState": true, "$configTime": true, "$topologyTime": true,
	"$queryOptions": true, "allowImplicitCollectionCreation": true, "coordinator": true, "databaseVersion": true,
	"shardVersion": true, "clientOperationKey": true, "mayBypassWriteBlocking": true,
	"txnRetryCounter": true, "$traceCtx": true, "rawData": true, "versionContext": true,
}

// parse reads the body of a command: its name, the generic arguments, and the
// documents of its sequence. Unknown arguments are refused if the command is
// strict; the others are interpreted by the command.
func (r *Request) parse(in Input) error {
	r.Cmd, r.Exhaust = in.Body, in.Exhaust
	it := rawbson.NewIter(in.Body)
	if !it.Next() {
		if it.Err() != nil {
			return servererr.New(servererr.InvalidBSON, "%s", it.Err())
		}
		return servererr.New(servererr.CommandNotFound, "no such command: ''")
	}
	r.Name = it.Name()
	r.Spec = r.Server.Commands[r.Name]
	if r.Spec == nil {
		return servererr.New(servererr.CommandNotFound, "no such command: '%s'", r.Name)
	}
	if in.Legacy && r.Server.AtLeast(5, 1) && !opQueryCommands[r.Spec.Name] {
		return servererr.New(servererr.UnsupportedOpQueryCommand, "Unsupported OP_QUERY command: %s. "+
			"The client driver may require an upgrade. For more details see "+
			"https://dochub.mongodb.org/core/legacy-opcode-removal", r.Name)
	}
	r.writeConcern = r.Server.defaultWriteConcern()
	var seen uint64
	for it.Next() {
		generic, err := r.parseGeneric(&it.Elem)
		if err != nil {
			return err
		}
		if generic || r.Spec.known == nil {
			continue
		}
		i, ok := r.Spec.known[string(it.Key)]
		if !ok {
			return UnknownField(r.Spec.StructName, it.Name())
		}
		if seen&(1<<i) != 0 {
			return duplicateField(r.Spec.StructName, it.Name())
		}
		seen |= 1 << i
	}
	if it.Err() != nil {
		return servererr.New(servererr.InvalidBSON, "%s", it.Err())
	}
	if r.DB == "" {
		return servererr.New(40571, "OP_MSG requests require a $db argument")
	}
	if !validDatabase(r.DB) {
		return servererr.New(servererr.InvalidNamespace, "Invalid database name: '%s'", r.DB)
	}
	return r.takeDocuments(in)
}

// handshakes are the commands of a client's handshake.
var handshakes = map[string]bool{"hello": true, "isMaster": true}

// opQueryCommands are those permitted as OP_QUERY from 5.1 on.
var opQueryCommands = map[string]bool{
	"hello": true, "isMaster": true, "buildInfo": true, "saslStart": true, "saslContinue": true,
}

// takeDocuments collects the documents of the command's sequence, from outside of
// the body or from an array in it.
func (r *Request) takeDocuments(in Input) error {
	for _, s := range in.Sequences {
		if s.Name != r.Spec.Sequence {
			if _, ok := r.Spec.known[s.Name]; !ok && r.Spec.known != nil {
				return UnknownField(r.Spec.StructName, s.Name)
			}
			return servererr.New(servererr.NotImplemented, "%s as a document sequence of %s is not implemented here", s.Name, r.Name)
		}
		if r.Docs == nil {
			r.Docs = make(map[string][]bson.Raw, len(in.Sequences))
		}
		r.Docs[s.Name] = s.Docs
	}
	name := r.Spec.Sequence
	if name == "" {
		return nil
	}
	if _, ok := r.Docs[name]; ok {
		return nil
	}
	e, ok := rawbson.Lookup(r.Cmd, name)
	if !ok {
		return MissingField(r.Spec.StructName, name)
	}
	docs, err := documentsOf(r.Spec.StructName, name, &e)
	if err != nil {
		return err
	}
	if r.Docs == nil {
		r.Docs = make(map[string][]bson.Raw, 1)
	}
	r.Docs[name] = docs
	return nil
}

// documentsOf reads an argument that is an array of documents.
func documentsOf(structName, name string, e *rawbson.Elem) ([]bson.Raw, error) {
	array, ok := e.Array()
	if !ok {
		return nil, WrongType(structName, name, e.Type, "array")
	}
	var docs []bson.Raw
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, WrongType(structName, name+"."+it.Name(), it.Type, "object")
		}
		docs = append(docs, doc)
	}
	if it.Err() != nil {
		return nil, servererr.New(servererr.InvalidBSON, "%s", it.Err())
	}
	return docs, nil
}

// validDatabase reports whether a name may be that of a database.
func validDatabase(name string) bool {
	return name != "" && len(name) < 64 && !strings.ContainsAny(name, "/\\. \"\x00") && (name[0] != '$' || name == "$external")
}

// parseGeneric reads one argument if it is a generic one.
func (r *Request) parseGeneric(e *rawbson.Elem) (generic bool, err error) {
	switch string(e.Key) {
	case "$db":
		text, ok := e.Text()
		if !ok {
			return true, WrongType(r.Spec.StructName, "$db", e.Type, "string")
		}
		if r.DB != "" {
			return true, duplicateField(r.Spec.StructName, "$db")
		}
		r.DB = strings.Clone(text)
	case "lsid", "txnNumber", "autocommit", "startTransaction":
		err = r.parseSessionInfo(e)
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
	case "comment": // It is for logs and currentOp.
	case "apiVersion":
		err = r.parseAPIVersion(e)
	case "apiStrict":
		err = r.parseAPIStrict(e)
	case "help":
		// The server answers with a text instead of running the command.
		if ask, _ := e.Bool(); ask {
			err = servererr.New(servererr.NotImplemented, "the argument help of %s is not implemented here", r.Name)
		}
	case "$maxTimeMS":
		err = servererr.New(servererr.InvalidOptions, "no such command option $maxTimeMs; use maxTimeMS instead")
	case "helloOk":
		if ok, _ := e.Bool(); ok && handshakes[r.Spec.Name] {
			r.Conn.SupportsHello = true
		}
		return false, nil
	default:
		return IgnoredArguments[string(e.Key)], nil
	}
	return true, err
}

// parseSessionInfo reads one of the arguments of sessions and transactions.
func (r *Request) parseSessionInfo(e *rawbson.Elem) (err error) {
	switch string(e.Key) {
	case "lsid":
		r.LSID, err = r.parseLSID(e)
	case "txnNumber":
		n, ok := e.Int64()
		if !ok || e.Type != bson.TypeInt64 {
			return WrongType("OperationSessionInfo", "txnNumber", e.Type, "long")
		}
		r.TxnNumber = &n
	default:
		b, ok := e.Bool()
		switch {
		case !ok:
			return WrongType("OperationSessionInfo", e.Name(), e.Type, "bool")
		case e.Is("autocommit"):
			r.autocommit = &b
		case !b:
			return servererr.New(servererr.InvalidOptions, "Specifying startTransaction=false is not allowed.")
		default:
			r.startTxn = true
		}
	}
	return err
}

func (r *Request) parseMaxTime(e *rawbson.Elem) error {
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

func (r *Request) parseReadPreference(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return WrongType(r.Spec.StructName, "$readPreference", e.Type, "object")
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

// clusterClock is the highest cluster time seen.
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

// gossip learns the cluster time that a client sent.
func (r *Request) gossip(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return nil
	}
	field, _ := rawbson.Lookup(doc, "clusterTime")
	ts, ok := field.Timestamp()
	if !ok {
		return nil
	}
	now := r.Server.Config.Now().Unix()
	if int64(ts.T) > now+maxClusterTimeJump {
		return servererr.New(servererr.ClusterTimeFailsRateLimiter,
			"New cluster time, %d, is too far from this node's wall clock time, %d.", ts.T, now)
	}
	r.Server.clock.advance(ts)
	return nil
}
