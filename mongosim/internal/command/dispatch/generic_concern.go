package dispatch

import (
	"context"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Majority is the read concern level and the write concern of that name.
const Majority = "majority"

// defaultWriteConcern is what holds where a command has none: majority since 5.0.
func (s *Server) defaultWriteConcern() repl.WriteConcern {
	if s.AtLeast(5, 0) {
		return repl.WriteConcern{Mode: Majority}
	}
	return repl.WriteConcern{W: 1}
}

func (r *Request) parseReadConcern(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return servererr.New(servererr.FailedToParse, "readConcern field should be an object")
	}
	rc := readConcern{given: true}
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "level":
			text, ok := it.Text()
			if !ok {
				return servererr.New(servererr.TypeMismatch, `"level" had the wrong type. Expected string, found %s`, bsontext.TypeName(it.Type))
			}
			switch text {
			case "local", Majority, "linearizable", "available", "snapshot":
			default:
				return servererr.New(servererr.FailedToParse,
					"readConcern.level must be either 'local', 'majority', 'linearizable', 'available', or 'snapshot'")
			}
			rc.Level = strings.Clone(text)
		case "afterClusterTime", "atClusterTime":
			ts, ok := it.Timestamp()
			if !ok {
				return servererr.New(servererr.TypeMismatch, `"%s" had the wrong type. Expected timestamp, found %s`, it.Name(), bsontext.TypeName(it.Type))
			}
			if ts.IsZero() {
				return servererr.New(servererr.InvalidOptions, "%s cannot be a null timestamp", it.Name())
			}
			if it.Is("afterClusterTime") {
				rc.afterClusterTime = &ts
			} else {
				rc.atClusterTime = &ts
			}
		case "afterOpTime":
			inner, _ := it.Document()
			field, _ := rawbson.Lookup(inner, "ts")
			if ts, ok := field.Timestamp(); ok {
				rc.afterClusterTime = &ts
			}
		case "provenance", "allowTransactionTableSnapshot", "waitLastStableRecoveryTimestamp":
		default:
			return servererr.New(servererr.InvalidOptions, "Unrecognized option in readConcern: %s", it.Name())
		}
	}
	switch {
	case rc.afterClusterTime != nil && rc.atClusterTime != nil:
		return servererr.New(servererr.InvalidOptions, "Can not specify both 'afterClusterTime' and 'atClusterTime'")
	case rc.atClusterTime != nil && rc.Level != "snapshot":
		return servererr.New(servererr.InvalidOptions, "atClusterTime field can be set only if level is equal to snapshot")
	case rc.afterClusterTime != nil && (rc.Level == "available" || rc.Level == "linearizable"):
		return servererr.New(servererr.InvalidOptions,
			"afterClusterTime field can be set only if level is equal to majority, local, or snapshot")
	}
	r.ReadConcern = rc
	return nil
}

func (r *Request) parseWriteConcern(e *rawbson.Elem) error {
	doc, ok := e.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, `"writeConcern" had the wrong type. Expected object, found %s`, bsontext.TypeName(e.Type))
	}
	wc := r.writeConcern
	it := rawbson.NewIter(doc)
	for it.Next() {
		n, number := it.Int64()
		switch it.Name() {
		case "w":
			text, isText := it.Text()
			switch {
			case isText:
				wc.W, wc.Mode = 0, strings.Clone(text)
			case !number:
				return servererr.New(servererr.FailedToParse, "w has to be a number or string")
			case n < 0 || n > 50:
				return servererr.New(servererr.FailedToParse,
					"w has to be a non-negative number and not greater than 50; found: %d", n)
			default:
				wc.W, wc.Mode = int(n), ""
			}
		case "j":
			b, isBool := it.Bool()
			if !isBool && !number {
				return servererr.New(servererr.FailedToParse, "j must be numeric or boolean value")
			}
			wc.Journal = b || number && n != 0
		case "wtimeout":
			if !number {
				return servererr.New(servererr.FailedToParse, "wtimeout must be a number")
			}
			wc.Timeout = max(0, time.Duration(n)*time.Millisecond)
		case "fsync", "provenance", "getLastError", "wElectionId", "wOpTime":
		default:
			return servererr.New(servererr.FailedToParse, "unrecognized write concern field: %s", it.Name())
		}
	}
	r.writeConcern, r.wcGiven = wc, doc != nil && len(doc) > rawbson.MinSize
	return nil
}

// checkConcerns refuses concerns that the command does not support.
func (r *Request) checkConcerns() error {
	ending := transactionCommands[r.Spec.Name]
	if r.wcGiven {
		if r.InTxn() && !ending {
			return servererr.New(servererr.InvalidOptions, "writeConcern is not allowed within a multi-statement transaction")
		}
		if !r.Spec.Writes {
			return servererr.New(servererr.InvalidOptions, "Command does not support writeConcern")
		}
	}
	rc := &r.ReadConcern
	if !rc.given && r.Spec.Concern && (!r.InTxn() || r.startTxn) {
		rc.Level = r.Server.Config.DefaultReadConcern
	}
	if r.InTxn() {
		if !r.startTxn {
			if rc.given {
				return servererr.New(servererr.InvalidOptions, "Only the first command in a transaction may specify a readConcern")
			}
			return nil
		}
		switch rc.Level {
		case "", "local", Majority, "snapshot":
			return nil
		}
		return servererr.New(servererr.InvalidOptions,
			"The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction")
	}
	fits := true
	switch rc.Level {
	case Majority, "linearizable":
		fits = r.Spec.Concern
	case "snapshot":
		fits = r.Spec.Snapshot && r.Server.AtLeast(5, 0)
	}
	if !fits {
		return servererr.New(servererr.InvalidOptions,
			"Command %s does not support { readConcern: { level: \"%s\", provenance: \"clientSupplied\" } } :: caused by :: read concern not supported",
			r.Spec.Name, rc.Level)
	}
	return nil
}

// awaitReadConcern waits until this member satisfies the read concern.
func (r *Request) awaitReadConcern(ctx context.Context) error {
	rc := &r.ReadConcern
	node := r.Server.Config.Node
	if at := rc.afterClusterTime; at != nil {
		if err := r.reachClusterTime(ctx, "afterClusterTime", *at); err != nil {
			return err
		}
		if rc.Level == Majority || rc.Level == "snapshot" {
			if err := node.AwaitCommitted(ctx, *at); err != nil {
				return endedWait(ctx, err)
			}
		}
	}
	if at := rc.atClusterTime; at != nil {
		if err := r.reachClusterTime(ctx, "atClusterTime", *at); err != nil {
			return err
		}
		if err := node.AwaitCommitted(ctx, *at); err != nil {
			return endedWait(ctx, err)
		}
	}
	if rc.Level == Majority && !r.InTxn() {
		return r.awaitSnapshot(ctx)
	}
	return nil
}

// awaitSnapshot waits until this member knows of a commit point, as the server's
// reads at the level majority wait for its first committed snapshot. Data that
// was stable before a restart, or copied by an initial sync, counts only once
// the commit point has been learned again.
func (r *Request) awaitSnapshot(ctx context.Context) error {
	first := bson.Timestamp{I: 1}
	err := r.Server.Config.Store.Read(func(rd *storage.Reader) error {
		if stable := rd.Stable(); oplog.CompareTimestamps(stable, first) > 0 {
			first = stable
		}
		return nil
	})
	if err != nil {
		return err
	}
	return endedWait(ctx, r.Server.Config.Node.AwaitCommitted(ctx, first))
}

// reachClusterTime waits until this member has applied a cluster time. A primary
// that has not reached it yet writes a no-op, or it could wait forever.
func (r *Request) reachClusterTime(ctx context.Context, option string, at bson.Timestamp) error {
	if oplog.CompareTimestamps(r.Self.Applied.TS, at) >= 0 {
		return nil
	}
	known := r.Server.clock.advance(r.Self.Applied.TS)
	if oplog.CompareTimestamps(known, at) < 0 {
		return servererr.New(servererr.InvalidOptions, "readConcern %s value must not be greater than the current "+
			"clusterTime. Requested clusterTime: %s; current clusterTime: %s", option, clusterTimeText(at), clusterTimeText(known))
	}
	if r.Self.Writable {
		note := bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "noop write for afterClusterTime read concern", 1)))
		err := r.Server.Config.Path.Write(func(b *opwrite.Batch) error {
			if oplog.CompareTimestamps(b.LastOpTime().TS, at) >= 0 {
				return nil
			}
			return b.Note(note)
		})
		if err != nil {
			return err
		}
	}
	return endedWait(ctx, r.Server.Config.Node.AwaitApplied(ctx, at))
}

func clusterTimeText(ts bson.Timestamp) string {
	return bsontext.Document(bsoncore.BuildDocument(nil, bsoncore.AppendTimestampElement(nil, "ts", ts.T, ts.I)))
}

// endedWait converts the error of a wait that ended with its context to the
// server's form.
func endedWait(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return Interrupted(ctx)
	}
	return err
}

// awaitWriteConcern waits for the write concern and returns the document that the
// reply has if it was not met.
func (r *Request) awaitWriteConcern(ctx context.Context, out *Reply) (bson.Raw, servererr.Code) {
	wc := r.writeConcern
	if r.DB == "local" { // of which nothing is replicated
		return nil, 0
	}
	if wc.Mode == "" && wc.W <= 1 && !wc.Journal {
		return nil, 0
	}
	if e := r.concernMood(ctx); e != nil {
		return r.concernError(e), e.Code
	}
	at := out.Wrote
	node := r.Server.Config.Node
	if at.IsNull() {
		at = node.View().Applied
	}
	err := node.AwaitWriteConcern(ctx, at, wc)
	if err == nil {
		return nil, 0
	}
	e := Refusal(endedWait(ctx, err))
	return r.concernError(e), e.Code
}

// concernError is the writeConcernError of a reply.
func (r *Request) concernError(e *servererr.Error) bson.Raw {
	used := r.concernDocument()
	i, info := bsoncore.AppendDocumentStart(nil)
	name := e.Code.String()
	if e.Code == servererr.WriteConcernTimeout {
		info = bsoncore.AppendBooleanElement(info, "wtimeout", true)
		if !r.Server.AtLeast(8, 1) {
			name = "WriteConcernFailed" // what the code was called before
		}
	}
	info = bsoncore.AppendDocumentElement(info, "writeConcern", used)
	info, _ = bsoncore.AppendDocumentEnd(info, i)

	i, doc := bsoncore.AppendDocumentStart(nil)
	doc = bsoncore.AppendInt32Element(doc, "code", int32(e.Code))
	doc = bsoncore.AppendStringElement(doc, "codeName", name)
	doc = bsoncore.AppendStringElement(doc, "errmsg", e.Message)
	doc = bsoncore.AppendDocumentElement(doc, "errInfo", info)
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

// concernDocument is the write concern as the server prints it.
func (r *Request) concernDocument() bson.Raw {
	wc := r.writeConcern
	i, used := bsoncore.AppendDocumentStart(nil)
	if wc.Mode != "" {
		used = bsoncore.AppendStringElement(used, "w", wc.Mode)
	} else {
		used = bsoncore.AppendInt32Element(used, "w", int32(wc.W))
	}
	if wc.Journal {
		used = bsoncore.AppendBooleanElement(used, "j", true)
	}
	used = bsoncore.AppendInt32Element(used, "wtimeout", int32(wc.Timeout/time.Millisecond))
	provenance := "implicitDefault"
	if r.wcGiven {
		provenance = "clientSupplied"
	}
	used = bsoncore.AppendStringElement(used, "provenance", provenance)
	used, _ = bsoncore.AppendDocumentEnd(used, i)
	return used
}
