package ddl

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/indexspec"
	"github.com/oplogrep/replicator/oplog"
)

// createFields are the arguments of create.
var createFields = []string{
	"capped", "autoIndexId", "idIndex", "size", "max", "storageEngine", "validator", "validationLevel",
	"validationAction", "indexOptionDefaults", "viewOn", "pipeline", "collation", "recordPreImages",
	"changeStreamPreAndPostImages", "temp", "timeseries", "clusteredIndex", "expireAfterSeconds", "flags",
	"encryptedFields", "recordIdsReplicated",
}

// createSince are the versions that brought arguments which 4.4 does not have.
var createSince = map[string][2]int{
	"timeseries": {5, 0}, "clusteredIndex": {5, 0}, "expireAfterSeconds": {5, 0},
	"changeStreamPreAndPostImages": {6, 0}, "encryptedFields": {6, 0}, "recordIdsReplicated": {8, 0},
}

// optionTypes are the types of the arguments that are neither flags nor numbers.
var optionTypes = map[string]bson.Type{
	"validator": bson.TypeEmbeddedDocument, "collation": bson.TypeEmbeddedDocument,
	"timeseries": bson.TypeEmbeddedDocument, "idIndex": bson.TypeEmbeddedDocument, "pipeline": bson.TypeArray,
	"viewOn": bson.TypeString, "validationLevel": bson.TypeString, "validationAction": bson.TypeString,
	"storageEngine": bson.TypeEmbeddedDocument, "indexOptionDefaults": bson.TypeEmbeddedDocument,
	"changeStreamPreAndPostImages": bson.TypeEmbeddedDocument, "encryptedFields": bson.TypeEmbeddedDocument,
}

// optionOrder is the order in which the server stores the options.
var optionOrder = []string{
	"capped", "size", "max", "autoIndexId", "temp", "recordPreImages", "changeStreamPreAndPostImages",
	"storageEngine", "indexOptionDefaults", "validator", "validationLevel", "validationAction", "collation",
	"clusteredIndex", "expireAfterSeconds",
}

// createOptions are the arguments of create, checked.
type createOptions struct {
	ns oplog.Namespace
	// given are the arguments by name, and names their names as they came.
	given map[string]bson.RawValue
	names []string
	// collation is the completed one, nil for simple; idIndex the index on _id, nil
	// where there is none; clustered the index of a clustered collection.
	collation, idIndex, clustered bson.Raw
}

// parseCreate reads and checks the arguments of create.
func parseCreate(r *dispatch.Request, ns oplog.Namespace) (*createOptions, error) {
	a := &createOptions{ns: ns, given: map[string]bson.RawValue{}}
	known := map[string]bool{}
	for _, f := range createFields {
		known[f] = true
	}
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	for it.Next() {
		name := it.Name()
		if !known[name] || it.Type == bson.TypeNull || it.Type == bson.TypeUndefined {
			continue
		}
		if since := createSince[name]; !r.Server.AtLeast(since[0], since[1]) || name == "recordPreImages" && r.Server.AtLeast(6, 2) {
			return nil, dispatch.UnknownField("create", name)
		}
		a.given[name] = it.Raw()
		a.names = append(a.names, name)
	}
	if err := it.Err(); err != nil {
		return nil, servererr.New(servererr.InvalidBSON, "create: %s", err)
	}
	for _, check := range []func(*dispatch.Request) error{
		a.checkTypes, a.checkCapped, a.checkView, a.checkTimeseries, a.checkExpiry, a.checkClustered, a.checkValidation,
		a.checkImages, a.checkRest, a.checkIDIndex,
	} {
		if err := check(r); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (a *createOptions) has(name string) bool {
	_, ok := a.given[name]
	return ok
}

// flag returns the value of a flag, false if it was not given.
func (a *createOptions) flag(name string) bool {
	on, _ := arg.Flag(a.given[name])
	return on
}

func (a *createOptions) number(name string) int64 { return arg.Int64(a.given[name]) }

func (a *createOptions) doc(name string) bson.Raw {
	doc, _ := a.given[name].DocumentOK()
	return doc
}

func (a *createOptions) text(name string) string {
	s, _ := a.given[name].StringValueOK()
	return s
}

func (a *createOptions) checkTypes(*dispatch.Request) error {
	for _, name := range a.names {
		v := a.given[name]
		if want, ok := optionTypes[name]; ok {
			if v.Type != want {
				return dispatch.WrongType("create", name, v.Type, bsontext.TypeName(want))
			}
			continue
		}
		switch name {
		case "size", "max", "expireAfterSeconds":
			if !v.IsNumber() {
				return dispatch.WrongType("create", name, v.Type, "long", "int", "decimal", "double")
			}
		case "capped", "autoIndexId", "recordPreImages", "recordIdsReplicated", "temp":
			if _, ok := arg.Flag(v); !ok {
				return dispatch.WrongType("create", name, v.Type, "bool", "long", "int", "decimal", "double")
			}
		}
	}
	return nil
}

// maxCapped is one petabyte: what the size of a capped collection may be.
const maxCapped = 1 << 50

func (a *createOptions) checkCapped(*dispatch.Request) error {
	if n := a.number("size"); a.has("size") && n < 1 {
		return servererr.New(51024, "BSON field 'size' value must be >= 1, actual value '%d'", n)
	}
	if a.has("clusteredIndex") {
		return nil
	}
	switch {
	case a.flag("capped") && !a.has("size"):
		return servererr.New(servererr.InvalidOptions, "the 'size' field is required when 'capped' is true")
	case !a.flag("capped") && (a.has("size") || a.has("max")):
		return servererr.New(servererr.InvalidOptions,
			"the 'capped' field needs to be true when either the 'size' or 'max' fields are present")
	case roundedSize(a.number("size")) > maxCapped:
		return servererr.New(servererr.BadValue, "size cannot exceed 1 PB")
	case a.cappedMax() > math.MaxInt32:
		return servererr.New(servererr.BadValue, "max in a capped collection has to be < 2^31 or not set")
	}
	return nil
}

// roundedSize is the size of a capped collection as stored, in bytes.
func roundedSize(n int64) int64 {
	if n > maxCapped {
		return maxCapped + 1
	}
	return (n + 0xff) &^ 0xff
}

// cappedMax is the limit of documents as stored: no limit becomes the largest
// one.
func (a *createOptions) cappedMax() int64 {
	n := a.number("max")
	if n <= 0 || n == math.MaxInt64 {
		return math.MaxInt32
	}
	return n
}

// checkRest checks the remaining options, each by itself.
func (a *createOptions) checkRest(r *dispatch.Request) error {
	if doc := a.doc("collation"); doc != nil {
		full, err := indexspec.Collation(doc)
		if err != nil {
			return err
		}
		a.collation = full
	}
	if doc := a.doc("indexOptionDefaults"); doc != nil {
		it := rawbson.NewIter(doc)
		for it.Next() {
			if !it.Is("storageEngine") {
				return dispatch.UnknownField("create.indexOptionDefaults", it.Name())
			}
			engines, ok := it.Document()
			if !ok {
				return dispatch.WrongType("create.indexOptionDefaults", "storageEngine", it.Type, "object")
			}
			if err := checkEngines(engines); err != nil {
				return err
			}
		}
	}
	if err := checkEngines(a.doc("storageEngine")); err != nil {
		return err
	}
	switch {
	case a.has("encryptedFields"):
		return servererr.New(servererr.NotImplemented, "create with the option encryptedFields is not implemented here")
	case a.flag("recordIdsReplicated"): // no version here has the feature on
		return servererr.New(servererr.CommandNotSupported,
			"'recordIdsReplicated' option may not be run without featureFlagRecordIdsReplicated enabled")
	case a.flag("temp") && !r.Conn.Internal:
		return servererr.New(servererr.InvalidOptions, "the 'temp' field is an invalid option")
	case a.has("autoIndexId") && !a.flag("autoIndexId") && a.ns.DB() != "local":
		return servererr.New(50001, "autoIndexId:false is not allowed for collection %s because it can be replicated", a.ns)
	}
	return nil
}

// checkEngines checks the options for storage engines. The configuration for WiredTiger is stored, whatever it says.
func checkEngines(doc bson.Raw) error {
	it := rawbson.NewIter(doc)
	for it.Next() {
		engine, ok := it.Document()
		switch {
		case !ok:
			return servererr.New(servererr.BadValue, "'storageEngine.%s' must be an embedded document", it.Name())
		case !it.Is("wiredTiger"):
			return servererr.New(servererr.InvalidOptions, "%s is not a registered storage engine for this server", it.Name())
		}
		options := rawbson.NewIter(engine)
		for options.Next() {
			if !options.Is("configString") {
				return servererr.New(servererr.InvalidOptions, "'%s' is not a supported option.", options.Name())
			}
			if _, ok := options.Text(); !ok {
				return servererr.New(servererr.TypeMismatch, "'configString' must be a string.")
			}
		}
	}
	return nil
}

// stored returns the options that the catalog keeps, in the server's order.
func (a *createOptions) stored(r *dispatch.Request) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	for _, name := range optionOrder {
		if a.has(name) {
			doc = a.appendStored(r, doc, name)
		}
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

func (a *createOptions) appendStored(r *dispatch.Request, doc []byte, name string) []byte {
	v := a.given[name]
	switch name {
	case "recordPreImages":
		if r.Server.AtLeast(6, 0) {
			return doc // accepted for old programs only
		}
		fallthrough
	case "capped", "temp":
		if !a.flag(name) {
			return doc
		}
		return bsoncore.AppendBooleanElement(doc, name, true)
	case "autoIndexId":
		return bsoncore.AppendBooleanElement(doc, name, a.flag(name))
	case "size":
		return dispatch.AppendNumber(doc, name, roundedSize(a.number(name)))
	case "max":
		return dispatch.AppendNumber(doc, name, a.cappedMax())
	case "expireAfterSeconds":
		return bsoncore.AppendInt64Element(doc, name, a.number(name))
	case "changeStreamPreAndPostImages":
		if on, err := imagesEnabled("create", a.doc(name)); err != nil || !on {
			return doc
		}
		i, doc := bsoncore.AppendDocumentElementStart(doc, name)
		doc = bsoncore.AppendBooleanElement(doc, "enabled", true)
		doc, _ = bsoncore.AppendDocumentEnd(doc, i)
		return doc
	case "collation":
		if a.collation == nil {
			return doc
		}
		return bsoncore.AppendDocumentElement(doc, name, a.collation)
	case "clusteredIndex":
		return bsoncore.AppendDocumentElement(doc, name, a.clustered)
	case "validator", "indexOptionDefaults", "storageEngine":
		if len(v.Value) == rawbson.MinSize {
			return doc
		}
	}
	return bsoncore.AppendValueElement(doc, name, bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value})
}
