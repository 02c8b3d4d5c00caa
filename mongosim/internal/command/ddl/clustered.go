package ddl

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/indexspec"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// checkClustered reads clusteredIndex, which users may give since 5.3.
func (a *createOptions) checkClustered(r *dispatch.Request) error {
	v, ok := a.given["clusteredIndex"]
	if !ok {
		return nil
	}
	switch {
	case !r.Server.AtLeast(5, 3):
		return servererr.New(servererr.InvalidOptions, "The 'clusteredIndex' option is not supported")
	case a.has("viewOn"):
		return servererr.New(6026500, "The 'clusteredIndex' option is not supported with views")
	case a.has("size"):
		return servererr.New(6049200, "'size' field for capped collections is not allowed on clustered collections. "+
			"Did you mean 'capped: true' with 'expireAfterSeconds'?")
	case a.has("max"):
		return servererr.New(6049204, "'max' field for capped collections is not allowed on clustered collections. "+
			"Did you mean 'capped: true' with 'expireAfterSeconds'?")
	case a.flag("capped"):
		return servererr.New(servererr.NotImplemented, "capped clustered collections are not implemented here")
	case a.has("idIndex"):
		return servererr.New(servererr.InvalidOptions, "The 'clusteredIndex' option is not supported with the 'idIndex' option")
	case a.has("autoIndexId"):
		return servererr.New(servererr.InvalidOptions, "The 'clusteredIndex' option does not support {autoIndexId: %t}", a.flag("autoIndexId"))
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return dispatch.WrongType("create", "clusteredIndex", v.Type, "bool", "object")
	}
	var err error
	a.clustered, err = clusteredIndex(doc)
	return err
}

// clusteredIndex checks the specification of a clustered collection's index and
// completes it: {v, key, name, unique}.
func clusteredIndex(doc bson.Raw) (bson.Raw, error) {
	const structName = "create.clusteredIndex"
	version, name, unique, key := int64(2), "_id_", false, bson.Raw(nil)
	it := rawbson.NewIter(doc)
	for it.Next() {
		var ok bool
		switch it.Name() {
		case "v":
			version, ok = it.Int64()
		case "key":
			key, ok = it.Document()
		case "name":
			name, ok = it.Text()
		case "unique":
			unique, ok = arg.Flag(it.Raw())
		default:
			return nil, dispatch.UnknownField(structName, it.Name())
		}
		if !ok {
			return nil, servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s'",
				structName, it.Name(), bsontext.TypeName(it.Type))
		}
	}
	switch {
	case key == nil:
		return nil, dispatch.MissingField(structName, "key")
	case !unique:
		return nil, servererr.New(5979700, "The clusteredIndex option requires unique: true to be specified")
	case !indexspec.IsID(key):
		return nil, servererr.New(5979701, "The clusteredIndex option is only supported for key: {_id: 1}")
	case version != 2:
		return nil, servererr.New(5979704, "Invalid clusteredIndex specification %s; cannot create a clusteredIndex with v=%d",
			bsontext.Document(doc), version)
	}
	i, full := bsoncore.AppendDocumentStart(nil)
	full = bsoncore.AppendInt32Element(full, "v", 2)
	k, full := bsoncore.AppendDocumentElementStart(full, "key")
	full = bsoncore.AppendInt32Element(full, "_id", 1)
	full, _ = bsoncore.AppendDocumentEnd(full, k)
	full = bsoncore.AppendStringElement(full, "name", name)
	full = bsoncore.AppendBooleanElement(full, "unique", true)
	full, _ = bsoncore.AppendDocumentEnd(full, i)
	return full, nil
}

// checkExpiry checks expireAfterSeconds, which needs clustered documents.
func (a *createOptions) checkExpiry(r *dispatch.Request) error {
	if !a.has("expireAfterSeconds") {
		return nil
	}
	switch {
	case r.Server.AtLeast(5, 3) && !a.has("timeseries") && !a.has("clusteredIndex"):
		return servererr.New(servererr.InvalidOptions, "'expireAfterSeconds' is only supported on time-series collections or "+
			"when the 'clusteredIndex' option is specified")
	case !r.Server.AtLeast(5, 3) && !a.has("timeseries"):
		return servererr.New(servererr.InvalidOptions, "'expireAfterSeconds' is only supported on time-series collections")
	}
	return checkAge(a.number("expireAfterSeconds"), r.Server.Config.Now().Unix())
}

// checkAge checks after how many seconds documents of a clustered collection
// expire; the server takes nothing from before 1970.
func checkAge(n, most int64) error {
	switch {
	case n < 0:
		return servererr.New(servererr.InvalidOptions, "TTL index 'expireAfterSeconds' option cannot be less than 0")
	case n > most:
		return servererr.New(servererr.InvalidOptions,
			"TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number")
	}
	return nil
}

// checkIDIndex decides on the index on _id.
func (a *createOptions) checkIDIndex(*dispatch.Request) error {
	if a.clustered != nil || a.has("autoIndexId") && !a.flag("autoIndexId") {
		return nil
	}
	given := a.doc("idIndex")
	if given == nil {
		a.idIndex = storage.IDIndex(2, a.collation)
		return nil
	}
	for _, other := range []string{"viewOn", "autoIndexId"} {
		if a.has(other) {
			return servererr.New(servererr.InvalidOptions, "'idIndex' is not allowed with '%s': %s", other, bsontext.Document(given))
		}
	}
	var err error
	a.idIndex, err = indexspec.ID(given, a.collation)
	return err
}
