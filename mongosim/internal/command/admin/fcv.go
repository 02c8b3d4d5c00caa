package admin

import (
	"context"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
)

// versions are the supported ones, in order.
var versions = []string{"4.4", "5.0", "6.0", "7.0", "8.0"}

// offers returns the versions that the server can be set to: its own and the one
// before.
func offers(s *dispatch.Server) []string {
	own := strconv.Itoa(s.Version[0]) + "." + strconv.Itoa(s.Version[1])
	i := slices.Index(versions, own)
	return versions[max(i-1, 0) : i+1]
}

// runSetFCV changes the version, in two writes. The log's format does not
// follow: it is fixed when the member is made.
func runSetFCV(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	first := dispatch.FirstElem(r.Cmd)
	version, ok := first.Text()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "Command argument must be of type String, but was of type %s in: %s",
			bsontext.TypeName(first.Type), bsontext.Document(r.Cmd))
	}
	offers := offers(r.Server)
	if !slices.Contains(offers, version) {
		return servererr.New(servererr.BadValue, "Invalid feature compatibility version '%s'; expected '%s' or '%s'",
			version, offers[len(offers)-1], offers[0])
	}
	confirm, _ := rawbson.Lookup(r.Cmd, "confirm")
	if sure, _ := confirm.Bool(); !sure && r.Server.AtLeast(7, 0) {
		return servererr.New(7369100, "Once you have upgraded to %s, you will not be able to downgrade FCV and binary version without support assistance. "+
			"Please re-run this command with 'confirm: true' to acknowledge this and continue with the FCV upgrade.", version)
	}
	now := r.Server.FCVDocument()
	from, _ := arg.Text(now, "version")
	if _, underway := arg.Text(now, "targetVersion"); from == version && !underway {
		return nil
	}
	up := slices.Index(versions, version) > slices.Index(versions, from)
	between := [][2]string{{"version", version}, {"targetVersion", version}, {"previousVersion", offers[len(offers)-1]}}
	point, failure := dispatch.FailDowngrading, servererr.New(549181, "Failing downgrade due to 'failDowngrading' failpoint set")
	if up {
		between = [][2]string{{"version", offers[0]}, {"targetVersion", version}}
		point, failure = dispatch.FailUpgrading, servererr.New(549180, "Failing upgrade due to 'failUpgrading' failpoint set")
	}
	if err := writeFCV(ctx, r, out, between); err != nil {
		return err
	}
	if r.Server.Fails.IsOn(point) {
		return failure
	}
	return writeFCV(ctx, r, out, [][2]string{{"version", version}})
}

// writeFCV replaces the document.
func writeFCV(ctx context.Context, r *dispatch.Request, out *dispatch.Reply, fields [][2]string) error {
	doc := bsoncore.AppendStringElement(nil, "_id", dispatch.VersionID)
	for _, f := range fields {
		doc = bsoncore.AppendStringElement(doc, f[0], f[1])
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, rec, ok := dispatch.FCVRecord(b.View())
		if !ok {
			return servererr.New(servererr.NoSuchKey, "%s has no document %s", dispatch.VersionNS, dispatch.VersionID)
		}
		return b.Update(coll, rec, opwrite.Update{Post: bsoncore.BuildDocument(nil, doc)}, opwrite.Stmt{})
	})
}
