package admin

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/oplog"
)

// runAppendOplogNote logs a no-op entry with the given document, unless the log
// is beyond maxClusterTime already.
func runAppendOplogNote(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	e, ok := rawbson.Lookup(r.Cmd, "data")
	if !ok {
		return servererr.New(servererr.NoSuchKey, "Missing expected field \"data\"")
	}
	data, ok := e.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "\"data\" had the wrong type. Expected object, found %s", bsontext.TypeName(e.Type))
	}
	var limit *bson.Timestamp
	if e, ok := rawbson.Lookup(r.Cmd, "maxClusterTime"); ok {
		ts, ok := e.Timestamp()
		if !ok {
			return servererr.New(servererr.TypeMismatch, "\"maxClusterTime\" had the wrong type. Expected timestamp, found %s", bsontext.TypeName(e.Type))
		}
		limit = &ts
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		if last := b.LastOpTime().TS; limit != nil && oplog.CompareTimestamps(last, *limit) >= 0 {
			return servererr.New(servererr.StaleClusterTime,
				"Requested maxClusterTime Timestamp(%d, %d) is less or equal to the last primary OpTime: Timestamp(%d, %d)",
				limit.T, limit.I, last.T, last.I)
		}
		return b.Note(data)
	})
}

// runApplyOps applies entries on behalf of a client.
func runApplyOps(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	var answer bson.Raw
	err := r.WriteBatch(ctx, out, func(b *opwrite.Batch) (err error) {
		answer, err = replay.ApplyOps(b, r.Cmd)
		return err
	})
	if err == nil {
		out.Buf = dispatch.AppendFields(out.Buf, answer)
		return nil
	}
	e := dispatch.Refusal(err)
	if answer == nil || len(e.Info) > rawbson.MinSize {
		return e
	}
	// A command that failed midway reports how far it got.
	i, info := bsoncore.AppendDocumentStart(nil)
	it := rawbson.NewIter(answer)
	for it.Next() {
		if it.Is("applied") || it.Is("results") {
			info = arg.Append(info, it.Name(), &it.Elem)
		}
	}
	info, _ = bsoncore.AppendDocumentEnd(info, i)
	return e.WithInfo(bytes.Clone(info))
}

// runShutdown stops the member, if the configuration has a Shutdown function. A
// primary with other members steps down first, as it does without force, or by
// force.
func runShutdown(ctx context.Context, r *dispatch.Request, _ *dispatch.Reply) error {
	stop := r.Server.Config.Shutdown
	if stop == nil {
		return servererr.New(servererr.NotImplemented, "shutdown is not implemented here")
	}
	force := dispatch.FlagOf(r.Cmd, "force")
	wait, err := secondsOf(r.Cmd, "timeoutSecs", defaultCatchUpSecs)
	if err != nil {
		return err
	}
	if r.Self.Writable && len(r.Self.Members) > 1 {
		if err := r.Server.Config.Node.StepDown(ctx, seconds(120), seconds(max(wait, 0)), force); err != nil && !force {
			return err
		}
	}
	stop()
	// The server closes the connection instead of answering.
	r.Failing = &dispatch.Failure{HangUp: true}
	return nil
}
