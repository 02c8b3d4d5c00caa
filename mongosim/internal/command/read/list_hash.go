package read

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// runDBHash hashes the collections of a database: the documents' bytes in the
// order of _id, and in natural order where there is no index on it. The whole is
// the hash of the hashes as they are printed, by name.
func runDBHash(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	for _, option := range []string{"skipTempCollections", "$_internalReadAtClusterTime"} {
		if dispatch.FlagOf(r.Cmd, option) {
			return servererr.New(servererr.NotImplemented, "dbHash option %s is not implemented here", option)
		}
	}
	wanted := map[string]bool{}
	if e, ok := rawbson.Lookup(r.Cmd, "collections"); ok {
		if array, ok := e.Array(); ok {
			it := rawbson.NewIter(array)
			for it.Next() {
				name, ok := it.Text()
				if !ok {
					return servererr.New(servererr.UnknownError, "collections entries have to be strings")
				}
				wanted[strings.Clone(name)] = true
			}
		}
	}
	start := time.Now()
	return r.Look("", bson.Timestamp{})(func(s dispatch.Sight) error {
		var colls []*storage.Collection
		for _, coll := range s.Collections(r.DB) {
			name := coll.NS.Collection()
			if r.DB == "local" || name == "system.profile" || strings.HasPrefix(name, "tmp.mr.") ||
				len(wanted) > 0 && !wanted[name] {
				continue
			}
			colls = append(colls, coll)
		}
		slices.SortFunc(colls, func(a, b *storage.Collection) int { return strings.Compare(string(a.NS), string(b.NS)) })
		buf := bsoncore.AppendStringElement(out.Buf, "host", r.Server.Config.Host)
		whole := md5.New() //nolint:gosec // see above
		i, buf := bsoncore.AppendDocumentElementStart(buf, "collections")
		for _, coll := range colls {
			hash := hashCollection(coll)
			whole.Write([]byte(hash))
			buf = bsoncore.AppendStringElement(buf, coll.NS.Collection(), hash)
		}
		buf, _ = bsoncore.AppendDocumentEnd(buf, i)
		i, buf = bsoncore.AppendArrayElementStart(buf, "capped")
		n := 0
		for _, coll := range colls {
			if coll.CappedBytes > 0 {
				buf = bsoncore.AppendStringElement(buf, dispatch.ArrayKey(n), coll.NS.Collection())
				n++
			}
		}
		buf, _ = bsoncore.AppendArrayEnd(buf, i)
		i, buf = bsoncore.AppendDocumentElementStart(buf, "uuids")
		for _, coll := range colls {
			buf = bsoncore.AppendBinaryElement(buf, coll.NS.Collection(), bson.TypeBinaryUUID, coll.UUID[:])
		}
		buf, _ = bsoncore.AppendDocumentEnd(buf, i)
		buf = bsoncore.AppendStringElement(buf, "md5", hex.EncodeToString(whole.Sum(nil)))
		out.Buf = dispatch.AppendNumber(buf, "timeMillis", time.Since(start).Milliseconds())
		return nil
	})
}

func hashCollection(coll *storage.Collection) string {
	records := coll.Natural(0)
	if coll.IDIndex != nil {
		records = coll.ByID(storage.Bound{}, storage.Bound{}, false)
	}
	hash := md5.New() //nolint:gosec // see above
	for rec := range records {
		hash.Write(rec.Doc)
	}
	return hex.EncodeToString(hash.Sum(nil))
}
