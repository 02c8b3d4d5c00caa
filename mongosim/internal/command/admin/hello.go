package admin

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/repl"
	"github.com/oplogrep/replicator/oplog"
)

// maxMessage is the limit of a message in bytes that hello states.
const maxMessage = 48_000_000

// topologyVersion names a state of a member that hello reports.
type topologyVersion struct {
	process bson.ObjectID
	counter int64
}

// runHello answers hello and isMaster.
func runHello(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	seen, wait, err := parseTopology(r)
	if err != nil {
		return err
	}
	if err := takeMetadata(r); err != nil {
		return err
	}
	if seen != nil {
		if err := awaitTopology(ctx, r, *seen, wait); err != nil {
			return err
		}
	}
	v := r.Server.Config.Node.View()
	if _, ok := rawbson.Lookup(r.Cmd, "helloOk"); ok && r.Server.Commands["hello"] != nil {
		out.Buf = bsoncore.AppendBooleanElement(out.Buf, "helloOk", true)
	}
	out.Buf = appendHello(out.Buf, &v, r.Spec.Name == "hello")
	out.Buf = appendLimits(r, out.Buf)
	if err := appendLogin(r, out); err != nil {
		return err
	}
	if seen != nil && r.Exhaust {
		out.More = true
		if now := (topologyVersion{v.ProcessID, v.TopologyCounter}); now != *seen {
			out.Next = withTopology(r.Cmd, now)
		}
	}
	return nil
}

// parseTopology reads topologyVersion and maxAwaitTimeMS, which need each other.
func parseTopology(r *dispatch.Request) (seen *topologyVersion, wait time.Duration, err error) {
	version, hasVersion := rawbson.Lookup(r.Cmd, "topologyVersion")
	limit, hasLimit := rawbson.Lookup(r.Cmd, "maxAwaitTimeMS")
	switch {
	case !hasVersion && !hasLimit:
		return nil, 0, nil
	case !hasLimit:
		return nil, 0, servererr.New(31368, "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'")
	case !hasVersion:
		return nil, 0, servererr.New(31368, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'")
	}
	doc, ok := version.Document()
	if !ok {
		return nil, 0, dispatch.WrongType(r.Spec.StructName, "topologyVersion", version.Type, "object")
	}
	process, _ := rawbson.Lookup(doc, "processId")
	counter, _ := rawbson.Lookup(doc, "counter")
	n, isNumber := counter.Int64()
	ms, hasMS := limit.Int64()
	switch {
	case process.Type != bson.TypeObjectID:
		return nil, 0, dispatch.MissingField("TopologyVersion", "processId")
	case !isNumber:
		return nil, 0, dispatch.MissingField("TopologyVersion", "counter")
	case !hasMS:
		return nil, 0, dispatch.WrongType(r.Spec.StructName, "maxAwaitTimeMS", limit.Type, "long", "int", "decimal", "double")
	case n < 0:
		return nil, 0, servererr.New(31372, "topologyVersion must have a non-negative counter")
	case ms < 0:
		return nil, 0, servererr.New(31373, "maxAwaitTimeMS must be a non-negative integer")
	}
	// No wait is longer than a day, which also keeps the product from overflowing.
	ms = min(ms, (24 * time.Hour).Milliseconds())
	return &topologyVersion{bson.ObjectID(process.Value), n}, time.Duration(ms) * time.Millisecond, nil
}

// awaitTopology waits until the member's state differs from the one that the
// client has seen, or the time has passed.
func awaitTopology(ctx context.Context, r *dispatch.Request, seen topologyVersion, wait time.Duration) error {
	srv := r.Server
	srv.Stats.Awaiting.Add(1)
	defer srv.Stats.Awaiting.Add(-1)
	limit := time.NewTimer(wait)
	defer limit.Stop()
	for {
		changed := srv.Config.Node.Changed()
		v := srv.Config.Node.View()
		switch {
		case v.ProcessID != seen.process || v.TopologyCounter > seen.counter:
			return nil
		case v.TopologyCounter < seen.counter:
			return servererr.New(31382, "Received a topology version with counter: %d which is greater than the server topology version counter: %d",
				seen.counter, v.TopologyCounter)
		}
		select {
		case <-changed:
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return dispatch.Interrupted(ctx)
		}
	}
}

// withTopology replaces the topologyVersion of a command.
func withTopology(cmd bson.Raw, now topologyVersion) bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(make([]byte, 0, len(cmd)))
	it := rawbson.NewIter(cmd)
	for it.Next() {
		if it.Is("topologyVersion") {
			doc = appendTopology(doc, now)
			continue
		}
		doc = arg.Append(doc, it.Name(), &it.Elem)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, i)
	return doc
}

func appendTopology(buf []byte, now topologyVersion) []byte {
	i, buf := bsoncore.AppendDocumentElementStart(buf, "topologyVersion")
	buf = bsoncore.AppendObjectIDElement(buf, "processId", now.process)
	buf = bsoncore.AppendInt64Element(buf, "counter", now.counter)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// takeMetadata keeps the client metadata of the first hello.
func takeMetadata(r *dispatch.Request) error {
	e, ok := rawbson.Lookup(r.Cmd, "client")
	if !ok {
		return nil
	}
	doc, ok := e.Document()
	if !ok {
		return servererr.New(servererr.TypeMismatch, "The client metadata document must be a document")
	}
	if r.Conn.Metadata != nil {
		return servererr.New(servererr.ClientMetadataCannotBeMutated, "The client metadata document may only be sent in the first hello")
	}
	r.Conn.Metadata = bytes.Clone(doc)
	return nil
}

// appendHello appends hello's fields about the set and this member's role, in the
// server's order. modern is true for hello, false for isMaster.
func appendHello(buf []byte, v *repl.View, modern bool) []byte {
	writable := "isWritablePrimary"
	if !modern {
		writable = "ismaster"
	}
	buf = appendTopology(buf, topologyVersion{v.ProcessID, v.TopologyCounter})
	if v.ConfigDoc == nil || v.Self < 0 {
		buf = bsoncore.AppendBooleanElement(buf, writable, false)
		buf = bsoncore.AppendBooleanElement(buf, "secondary", false)
		buf = bsoncore.AppendStringElement(buf, "info", "Does not have a valid replica set config")
		return bsoncore.AppendBooleanElement(buf, "isreplicaset", true)
	}
	buf = appendHosts(buf, v)
	buf = bsoncore.AppendStringElement(buf, "setName", v.SetName)
	buf = bsoncore.AppendInt32Element(buf, "setVersion", int32(v.ConfigVersion))
	buf = bsoncore.AppendBooleanElement(buf, writable, v.Writable)
	// A primary that does not accept writes yet reports itself as a secondary.
	buf = bsoncore.AppendBooleanElement(buf, "secondary", v.State == oplog.MemberSecondary || v.State == oplog.MemberPrimary && !v.Writable)
	if v.Primary >= 0 {
		buf = bsoncore.AppendStringElement(buf, "primary", v.Members[v.Primary].Host)
	}
	buf = appendSelf(buf, &v.Members[v.Self])
	if v.State == oplog.MemberPrimary {
		buf = bsoncore.AppendObjectIDElement(buf, "electionId", v.ElectionID)
	}
	i, buf := bsoncore.AppendDocumentElementStart(buf, "lastWrite")
	buf = dispatch.AppendOpTime(buf, "opTime", v.Applied)
	buf = bsoncore.AppendDateTimeElement(buf, "lastWriteDate", int64(v.Applied.TS.T)*1000)
	buf = dispatch.AppendOpTime(buf, "majorityOpTime", v.Committed)
	buf = bsoncore.AppendDateTimeElement(buf, "majorityWriteDate", int64(v.Committed.TS.T)*1000)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// appendHosts appends the members visible to clients, by role.
func appendHosts(buf []byte, v *repl.View) []byte {
	var lists [3][]string
	for i := range v.Members {
		m := &v.Members[i]
		switch {
		case m.Hidden || m.DelaySecs > 0:
		case m.Arbiter:
			lists[2] = append(lists[2], m.Host)
		case m.Priority > 0:
			lists[0] = append(lists[0], m.Host)
		default:
			lists[1] = append(lists[1], m.Host)
		}
	}
	for i, name := range []string{"hosts", "passives", "arbiters"} {
		if len(lists[i]) == 0 {
			continue
		}
		at, b := bsoncore.AppendArrayElementStart(buf, name)
		for n, host := range lists[i] {
			b = bsoncore.AppendStringElement(b, dispatch.ArrayKey(n), host)
		}
		buf, _ = bsoncore.AppendArrayEnd(b, at)
	}
	return buf
}

// appendSelf appends this member's non-default settings in the configuration,
// and its name.
func appendSelf(buf []byte, m *repl.Member) []byte {
	if m.Arbiter {
		buf = bsoncore.AppendBooleanElement(buf, "arbiterOnly", true)
	} else if m.Priority == 0 {
		buf = bsoncore.AppendBooleanElement(buf, "passive", true)
	}
	if m.Hidden {
		buf = bsoncore.AppendBooleanElement(buf, "hidden", true)
	}
	if !m.BuildIndexes {
		buf = bsoncore.AppendBooleanElement(buf, "buildIndexes", false)
	}
	if m.DelaySecs > 0 {
		buf = bsoncore.AppendInt64Element(buf, "secondaryDelaySecs", m.DelaySecs)
	}
	if len(m.Tags) > 0 {
		i, b := bsoncore.AppendDocumentElementStart(buf, "tags")
		for _, tag := range slices.Sorted(maps.Keys(m.Tags)) {
			b = bsoncore.AppendStringElement(b, tag, m.Tags[tag])
		}
		buf, _ = bsoncore.AppendDocumentEnd(b, i)
	}
	return bsoncore.AppendStringElement(buf, "me", m.Host)
}

// appendLimits appends hello's fields about the server's limits.
func appendLimits(r *dispatch.Request, buf []byte) []byte {
	buf = bsoncore.AppendInt32Element(buf, "maxBsonObjectSize", dispatch.MaxDocument)
	buf = bsoncore.AppendInt32Element(buf, "maxMessageSizeBytes", maxMessage)
	buf = bsoncore.AppendInt32Element(buf, "maxWriteBatchSize", dispatch.MaxBatch)
	buf = bsoncore.AppendDateTimeElement(buf, "localTime", r.Server.Config.Now().UnixMilli())
	buf = bsoncore.AppendInt32Element(buf, "logicalSessionTimeoutMinutes", dispatch.SessionTimeoutMinutes)
	buf = bsoncore.AppendInt32Element(buf, "connectionId", int32(r.Conn.ID))
	buf = bsoncore.AppendInt32Element(buf, "minWireVersion", 0)
	buf = bsoncore.AppendInt32Element(buf, "maxWireVersion", wireVersion(r.Server))
	return bsoncore.AppendBooleanElement(buf, "readOnly", false)
}

// wireVersion is the version of the wire protocol of the dialect's server: each
// quarterly release between two yearly ones has raised it too.
func wireVersion(s *dispatch.Server) int32 {
	switch {
	case s.AtLeast(8, 0):
		return 25
	case s.AtLeast(7, 0):
		return 21
	case s.AtLeast(6, 0):
		return 17
	case s.AtLeast(5, 0):
		return 13
	}
	return 9
}

// appendLogin appends saslSupportedMechs and speculativeAuthenticate, if they are
// asked for. A failed speculative login is left out.
func appendLogin(r *dispatch.Request, out *dispatch.Reply) error {
	auth := r.Server.Config.Auth
	if e, ok := rawbson.Lookup(r.Cmd, "saslSupportedMechs"); ok {
		text, isText := e.Text()
		db, name, both := strings.Cut(text, ".")
		if !isText || !both {
			return servererr.New(servererr.BadValue, "UserName must contain a '.' separated database.user pair")
		}
		if keeper, ok := auth.(userKeeper); ok {
			if mechanisms := keeper.Mechanisms(name, db); len(mechanisms) > 0 {
				i, b := bsoncore.AppendArrayElementStart(out.Buf, "saslSupportedMechs")
				for n, mechanism := range mechanisms {
					b = bsoncore.AppendStringElement(b, dispatch.ArrayKey(n), mechanism)
				}
				out.Buf, _ = bsoncore.AppendArrayEnd(b, i)
			}
		}
	}
	e, ok := rawbson.Lookup(r.Cmd, "speculativeAuthenticate")
	cmd, isDoc := e.Document()
	if !ok || !isDoc || auth == nil {
		return nil
	}
	field, _ := rawbson.Lookup(cmd, "db")
	db, hasDB := field.Text()
	if first := dispatch.FirstElem(cmd); !first.Is("saslStart") || !hasDB {
		return nil
	}
	if answer, err := auth.Start(r.Conn, strings.Clone(db), cmd); err == nil {
		out.Buf = bsoncore.AppendDocumentElement(out.Buf, "speculativeAuthenticate", answer)
	}
	return nil
}
