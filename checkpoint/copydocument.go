package checkpoint

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
)

// appendCopy appends the link's copy and, for operators, the field consistent, which
// is false while collections are left out.
func appendCopy(dst []byte, c *Copy, out []LeftOut) []byte {
	dst = metadata.AppendDoc(dst, "copy", func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "number", c.Number)
		dst = bsoncore.AppendStringElement(dst, "phase", string(c.Phase))
		dst = bsoncore.AppendStringElement(dst, "host", c.Host)
		dst = bsoncore.AppendInt64Element(dst, "rbid", c.RBID)
		if !c.SyncID.IsZero() {
			dst = bsoncore.AppendValueElement(dst, "syncId",
				bsoncore.Value{Type: bsoncore.Type(c.SyncID.Type), Data: c.SyncID.Value})
		}
		if c.SyncIDUnread {
			dst = bsoncore.AppendBooleanElement(dst, "syncIdUnread", true)
		}
		if c.SyncMark != "" {
			dst = bsoncore.AppendStringElement(dst, "syncMark", c.SyncMark)
		}
		if c.Moves > 0 {
			dst = bsoncore.AppendInt64Element(dst, "moves", c.Moves)
		}
		dst = metadata.AppendOpTime(dst, "fetchFrom", c.FetchFrom)
		dst = metadata.AppendOpTime(dst, "begin", c.Begin)
		if !c.Stop.IsNull() {
			dst = metadata.AppendOpTime(dst, "stop", c.Stop)
		}
		dst = bsoncore.AppendBooleanElement(dst, "cleared", c.Cleared)
		dst = bsoncore.AppendBooleanElement(dst, "listed", c.Listed)
		dst = bsoncore.AppendDateTimeElement(dst, "started", c.Started.UnixMilli())
		return bsoncore.AppendStringElement(dst, "why", c.Why)
	})
	return bsoncore.AppendBooleanElement(dst, "consistent", c.Phase == Copied && len(out) == 0)
}

// readCopy reads the copy of a link; it returns nil if there is none.
func readCopy(r *metadata.Reader) *Copy {
	sub, ok := r.Doc("copy", true)
	if !ok {
		return nil
	}
	c := &Copy{
		Number: sub.Int64("number"), Phase: CopyPhase(sub.Text("phase")), Host: sub.Text("host"), RBID: sub.Int64("rbid"),
		FetchFrom: sub.OpTime("fetchFrom", false), Begin: sub.OpTime("begin", false), Stop: sub.OpTime("stop", true),
		Cleared: sub.Bool("cleared"), Listed: sub.Bool("listed"),
		Started: time.UnixMilli(sub.Date("started")).UTC(), Why: sub.Text("why"),
	}
	if sub.Has("syncIdUnread") {
		c.SyncIDUnread = sub.Bool("syncIdUnread")
	}
	if sub.Has("syncMark") {
		c.SyncMark = sub.Text("syncMark")
	}
	if sub.Has("moves") {
		c.Moves = sub.Int64("moves")
	}
	c.SyncID = sub.Value("syncId")
	r.Take(sub)
	if err := c.validate(); err != nil {
		r.Fail("copy", err)
	}
	return c
}
