package dispatch

import (
	"encoding/binary"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The labels that a member gives to errors.
const (
	labelTransient = "TransientTransactionError"
	labelRetryable = "RetryableWriteError"
)

// answered completes the reply of a command that did not fail.
func (r *Request) answered(out *Reply) bson.Raw {
	buf := out.Buf
	if out.unmet != nil {
		buf = bsoncore.AppendDocumentElement(buf, "writeConcernError", out.unmet)
	}
	if !out.HasOK {
		buf = bsoncore.AppendDoubleElement(buf, "ok", 1)
	}
	if out.unmet != nil || r.Failing != nil && r.Failing.labels != nil {
		buf = r.appendLabels(buf, nil, out.unmetCode)
		if StateChange(out.unmetCode) {
			buf = r.appendTopologyVersion(buf)
		}
	}
	return r.close(buf, out.Wrote)
}

// refused makes the reply of a command that failed.
func (r *Request) refused(out *Reply, e *servererr.Error) bson.Raw {
	buf := out.Buf[:4]
	if out.unmet != nil {
		buf = bsoncore.AppendDocumentElement(buf, "writeConcernError", out.unmet)
	}
	buf = r.appendLabels(buf, e, out.unmetCode)
	if StateChange(e.Code) || StateChange(out.unmetCode) {
		buf = r.appendTopologyVersion(buf)
	}
	buf = bsoncore.AppendDoubleElement(buf, "ok", 0)
	text := e.Message
	if text == notMaster { // from which the client is not visible
		text = r.wording("not primary", notMaster)
	}
	buf = bsoncore.AppendStringElement(buf, "errmsg", text)
	buf = bsoncore.AppendInt32Element(buf, "code", int32(e.Code))
	buf = bsoncore.AppendStringElement(buf, "codeName", e.Code.String())
	buf = AppendFields(buf, e.Info)
	return r.close(buf, out.Wrote)
}

// AppendFields appends the fields of a document.
func AppendFields(buf []byte, doc bson.Raw) []byte {
	if len(doc) < rawbson.MinSize {
		return buf
	}
	return append(buf, doc[4:len(doc)-1]...)
}

// close appends the last fields of every reply.
func (r *Request) close(buf []byte, wrote oplog.OpTime) bson.Raw {
	// The present one: data that the command has read must not be newer than
	// its operationTime.
	v := r.Server.Config.Node.View()
	if v.ConfigDoc != nil {
		if r.replData {
			buf = v.AppendReplData(buf)
		}
		if r.oplogQuery {
			buf = v.AppendOplogQueryData(buf)
		}
	}
	operation := v.Applied.TS
	if r.ReadConcern.Level == Majority && !r.InTxn() {
		operation = v.Committed.TS
		if oplog.CompareTimestamps(r.saw, operation) > 0 {
			operation = r.saw
		}
	}
	newest := operation
	if !wrote.IsNull() {
		// That of a write is its own entry, although others may follow it by now.
		operation = wrote.TS
		if oplog.CompareTimestamps(operation, newest) > 0 {
			newest = operation
		}
	}
	if cluster := r.Server.clock.advance(newest); !cluster.IsZero() {
		buf = appendClusterTime(buf, cluster)
	}
	if !operation.IsZero() {
		buf = bsoncore.AppendTimestampElement(buf, "operationTime", operation.T, operation.I)
	}
	buf = append(buf, 0)
	binary.LittleEndian.PutUint32(buf, uint32(len(buf)))
	return buf
}

// appendClusterTime appends $clusterTime with the signature of a set without
// keys.
func appendClusterTime(buf []byte, ts bson.Timestamp) []byte {
	outer, buf := bsoncore.AppendDocumentElementStart(buf, "$clusterTime")
	buf = bsoncore.AppendTimestampElement(buf, "clusterTime", ts.T, ts.I)
	inner, buf := bsoncore.AppendDocumentElementStart(buf, "signature")
	buf = bsoncore.AppendBinaryElement(buf, "hash", 0, make([]byte, 20))
	buf = bsoncore.AppendInt64Element(buf, "keyId", 0)
	buf, _ = bsoncore.AppendDocumentEnd(buf, inner)
	buf, _ = bsoncore.AppendDocumentEnd(buf, outer)
	return buf
}

// AppendOpTime appends an optime as the server writes one.
func AppendOpTime(buf []byte, name string, at oplog.OpTime) []byte {
	i, buf := bsoncore.AppendDocumentElementStart(buf, name)
	buf = bsoncore.AppendTimestampElement(buf, "ts", at.TS.T, at.TS.I)
	buf = bsoncore.AppendInt64Element(buf, "t", at.Term)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

func (r *Request) appendTopologyVersion(buf []byte) []byte {
	v := r.Server.Config.Node.View()
	i, buf := bsoncore.AppendDocumentElementStart(buf, "topologyVersion")
	buf = bsoncore.AppendObjectIDElement(buf, "processId", v.ProcessID)
	buf = bsoncore.AppendInt64Element(buf, "counter", v.TopologyCounter)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// StateChange reports whether a code means that the member's role has changed.
func StateChange(code servererr.Code) bool {
	return slices.Contains([]servererr.Code{
		servererr.NotWritablePrimary, servererr.NotPrimaryNoSecondaryOk, servererr.NotPrimaryOrSecondary,
		servererr.InterruptedDueToReplStateChange, servererr.PrimarySteppedDown,
	}, code)
}

// Shutdown reports whether a code means that the server is shutting down.
func Shutdown(code servererr.Code) bool {
	return code == servererr.ShutdownInProgress || code == servererr.InterruptedAtShutdown
}

// retriable reports whether the server calls a code retriable.
func retriable(code servererr.Code) bool {
	const hostNotFound, socketException = 7, 9001
	return StateChange(code) || Shutdown(code) || slices.Contains([]servererr.Code{
		servererr.HostUnreachable, hostNotFound, servererr.NetworkTimeout, servererr.ExceededTimeLimit, socketException,
		servererr.ReadConcernMajorityNotAvailableYet,
	}, code)
}

// appendLabels appends errorLabels; e is nil if the command did not fail.
func (r *Request) appendLabels(buf []byte, e *servererr.Error, unmet servererr.Code) []byte {
	var labels []string
	switch {
	case r.Failing != nil && r.Failing.labels != nil:
		labels = r.Failing.labels
	default:
		labels = r.labels(e, unmet)
	}
	if len(labels) == 0 {
		return buf
	}
	i, buf := bsoncore.AppendArrayElementStart(buf, "errorLabels")
	for n, label := range labels {
		buf = bsoncore.AppendStringElement(buf, ArrayKey(n), label)
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	return buf
}

// labels decides on the labels of an error, as the server does.
func (r *Request) labels(e *servererr.Error, unmet servererr.Code) []string {
	if e != nil && len(e.Labels) > 0 {
		return e.Labels
	}
	if r.Spec == nil || r.TxnNumber == nil {
		return nil
	}
	ending := r.Spec.Name == "commitTransaction" || r.Spec.Name == "abortTransaction"
	if r.autocommit != nil && e != nil && Transient(e.Code, unmet != 0, ending) {
		return []string{labelTransient}
	}
	if r.Conn.Internal || r.autocommit != nil && !ending {
		return nil
	}
	if e != nil && retriable(e.Code) || retriable(unmet) {
		return []string{labelRetryable}
	}
	return nil
}

// Transient reports whether a whole transaction may be retried after an error.
func Transient(code servererr.Code, unmet, ending bool) bool {
	if code == servererr.NoSuchTransaction {
		return !ending || !unmet
	}
	return !ending && retriable(code) || slices.Contains([]servererr.Code{
		servererr.WriteConflict, servererr.LockTimeout, servererr.PreparedTransactionInProgress,
		servererr.SnapshotTooOld, servererr.SnapshotUnavailable,
	}, code)
}

// EmptyDocument is {}.
var EmptyDocument = bson.Raw{5, 0, 0, 0, 0}

// EmptyArray is [].
var EmptyArray = []byte{5, 0, 0, 0, 0}

// AppendNumber appends n as the server stores a size: as int where it fits.
func AppendNumber(dst []byte, name string, n int64) []byte {
	if n == int64(int32(n)) {
		return bsoncore.AppendInt32Element(dst, name, int32(n))
	}
	return bsoncore.AppendInt64Element(dst, name, n)
}

// AppendTexts appends an array of strings.
func AppendTexts(buf []byte, name string, list []string) []byte {
	i, buf := bsoncore.AppendArrayElementStart(buf, name)
	for n, text := range list {
		buf = bsoncore.AppendStringElement(buf, ArrayKey(n), text)
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	return buf
}
