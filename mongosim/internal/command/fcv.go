package command

import (
	"context"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// The feature compatibility version is a document, which is logged like any other:
//
//	{_id: "featureCompatibilityVersion", version: "5.0"}
//
// On the way to another version it has a targetVersion as well, and, downwards, a
// previousVersion; version is the lower of the two then.

const (
	versionNS = oplog.Namespace("admin.system.version")
	versionID = "featureCompatibilityVersion"
)

// versions are those that can be played, in their order.
var versions = []string{"4.4", "5.0", "6.0", "7.0", "8.0"}

// fcvText is the feature compatibility version that the server was made with.
func (s *Server) fcvText() string { return strconv.Itoa(s.fcv[0]) + "." + strconv.Itoa(s.fcv[1]) }

// fcvRecord finds the document in a view.
func fcvRecord(v storage.View) (*storage.Collection, storage.Record, bool) {
	coll, ok := v.Collection(versionNS)
	if !ok {
		return nil, storage.Record{}, false
	}
	rec, ok := coll.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, versionID)})
	return coll, rec, ok
}

// fcvDocument is the present document, without its _id. A server whose set did
// not save one has the version that it was made with.
func (s *Server) fcvDocument() bson.Raw {
	var doc bson.Raw
	_ = s.cfg.Store.Read(func(r *storage.Reader) error { // looking does not fail
		_, rec, ok := fcvRecord(r.View(bson.Timestamp{}))
		if ok {
			doc = slices.Clone(rec.Doc)
		}
		return nil
	})
	if doc == nil {
		return bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "version", s.fcvText()))
	}
	it := rawbson.NewIter(doc)
	var rest []byte
	for it.Next() {
		if !it.Is("_id") {
			rest = arg.Append(rest, it.Name(), &it.Elem)
		}
	}
	return bsoncore.BuildDocument(nil, rest)
}

// offers returns the versions that the server can be set to: its own and the one
// before.
func (s *Server) offers() []string {
	own := strconv.Itoa(s.version[0]) + "." + strconv.Itoa(s.version[1])
	i := slices.Index(versions, own)
	return versions[max(i-1, 0) : i+1]
}

// runSetFCV changes the version, in two writes. What the log looks like does not
// follow: that is decided when the member is made.
func runSetFCV(ctx context.Context, r *request, out *reply) error {
	first := firstElem(r.cmd)
	version, ok := first.Text()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "Command argument must be of type String, but was of type %s in: %s",
			bsontext.TypeName(first.Type), bsontext.Document(r.cmd))
	}
	offers := r.srv.offers()
	if !slices.Contains(offers, version) {
		return servererr.New(servererr.BadValue, "Invalid feature compatibility version '%s'; expected '%s' or '%s'",
			version, offers[len(offers)-1], offers[0])
	}
	confirm, _ := rawbson.Lookup(r.cmd, "confirm")
	if sure, _ := confirm.Bool(); !sure && r.srv.atLeast(7, 0) {
		return servererr.New(7369100, "Once you have upgraded to %s, you will not be able to downgrade FCV and binary version without support assistance. "+
			"Please re-run this command with 'confirm: true' to acknowledge this and continue with the FCV upgrade.", version)
	}
	now := r.srv.fcvDocument()
	from, _ := arg.Text(now, "version")
	if _, underway := arg.Text(now, "targetVersion"); from == version && !underway {
		return nil
	}
	up := slices.Index(versions, version) > slices.Index(versions, from)
	between := [][2]string{{"version", version}, {"targetVersion", version}, {"previousVersion", offers[len(offers)-1]}}
	point, failure := failDowngrading, servererr.New(549181, "Failing downgrade due to 'failDowngrading' failpoint set")
	if up {
		between = [][2]string{{"version", offers[0]}, {"targetVersion", version}}
		point, failure = failUpgrading, servererr.New(549180, "Failing upgrade due to 'failUpgrading' failpoint set")
	}
	if err := r.writeFCV(ctx, out, between); err != nil {
		return err
	}
	if r.srv.fails.isOn(point) {
		return failure
	}
	return r.writeFCV(ctx, out, [][2]string{{"version", version}})
}

// writeFCV replaces the document.
func (r *request) writeFCV(ctx context.Context, out *reply, fields [][2]string) error {
	doc := bsoncore.AppendStringElement(nil, "_id", versionID)
	for _, f := range fields {
		doc = bsoncore.AppendStringElement(doc, f[0], f[1])
	}
	return r.writeBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, rec, ok := fcvRecord(b.View())
		if !ok {
			return servererr.New(servererr.NoSuchKey, "%s has no document %s", versionNS, versionID)
		}
		return b.Update(coll, rec, opwrite.Update{Post: bsoncore.BuildDocument(nil, doc)}, opwrite.Stmt{})
	})
}
