package dispatch

import (
	"strings"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// FirstName returns the command's first argument as the name of a collection of
// the request's database.
func (r *Request) FirstName() (oplog.Namespace, error) {
	it := rawbson.NewIter(r.Cmd)
	if !it.Next() {
		return "", servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s.'", r.DB)
	}
	name, ok := it.Text()
	if !ok {
		return "", servererr.New(servererr.BadValue, "collection name has invalid type %s", bsontext.TypeName(it.Type))
	}
	ns := oplog.NewNamespace(r.DB, name)
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsRune(name, 0) {
		return "", servererr.New(servererr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return ns.Clone(), nil
}
