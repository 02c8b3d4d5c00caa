package syncsource

import (
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// hello is a member's report of itself and of its set.
type hello struct {
	setName, me string
	// hosts are the members in hosts, passives and arbiters, in the reply's order.
	hosts []string
	// passives are those of them whose effective priority is 0.
	passives      []string
	configTerm    int64
	configVersion int64
	replicaSetID  bson.RawValue
	// member is the reporting member.
	member Member
	// localTime is what the member's clock showed, zero if it did not say.
	localTime time.Time
	// fault says why the host is not a member of a replica set, empty if it is.
	fault string
}

// reader reads optional fields and checks their types. It keeps the first fault.
type reader struct{ err error }

func (r *reader) wrong(e *rawbson.Elem, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("the field %q is not %s but %s", e.Name(), want, e.Type)
	}
}

func (r *reader) text(e *rawbson.Elem) string {
	s, ok := e.Text()
	if !ok {
		r.wrong(e, "a string")
	}
	return strings.Clone(s)
}

func (r *reader) number(e *rawbson.Elem) int64 {
	n, ok := e.Int64()
	if !ok {
		r.wrong(e, "a whole number")
	}
	return n
}

// seconds returns a number of seconds, limited to the maximum that a set accepts.
func (r *reader) seconds(e *rawbson.Elem) time.Duration {
	const most = 1 << 31
	return time.Duration(min(max(0, r.number(e)), most)) * time.Second
}

func (r *reader) document(e *rawbson.Elem) bson.Raw {
	doc, ok := e.Document()
	if !ok {
		r.wrong(e, "a document")
		return nil
	}
	return doc
}

// each calls f for each field of a document.
func (r *reader) each(doc bson.Raw, f func(e *rawbson.Elem)) {
	if doc == nil {
		return
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		f(&it.Elem)
	}
	if err := it.Err(); err != nil && r.err == nil {
		r.err = err
	}
}

func (r *reader) optime(e *rawbson.Elem) oplog.OpTime {
	o := oplog.OpTime{Term: oplog.UninitializedTerm}
	// Protocol version 0 has a timestamp in place of a document.
	if ts, ok := e.Timestamp(); ok {
		o.TS = ts
		return o
	}
	r.each(r.document(e), func(e *rawbson.Elem) {
		switch e.Name() {
		case "ts":
			ts, ok := e.Timestamp()
			if !ok {
				r.wrong(e, "a timestamp")
			}
			o.TS = ts
		case "t":
			o.Term = r.number(e)
		}
	})
	return o
}

func (r *reader) texts(e *rawbson.Elem) (list []string) {
	array, ok := e.Array()
	if !ok {
		r.wrong(e, "an array")
		return nil
	}
	r.each(array, func(e *rawbson.Elem) { list = append(list, r.text(e)) })
	return list
}

func (r *reader) tags(e *rawbson.Elem) map[string]string {
	tags := map[string]string{}
	r.each(r.document(e), func(e *rawbson.Elem) { tags[strings.Clone(e.Name())] = r.text(e) })
	return tags
}

// parseHello parses a reply to hello or isMaster. Unknown fields are ignored: new
// versions add some.
func parseHello(reply bson.Raw) (*hello, error) {
	h := &hello{configTerm: oplog.UninitializedTerm}
	h.member = Member{ID: -1, Term: oplog.UninitializedTerm, RBID: -1, Priority: 1, State: oplog.MemberUnknown}
	var r reader
	var primary, secondary, router bool
	r.each(reply, func(e *rawbson.Elem) {
		m := &h.member
		switch e.Name() {
		case "setName":
			h.setName = r.text(e)
		case "me":
			h.me = r.text(e)
		case "hosts", "passives", "arbiters":
			h.list(e.Name(), r.texts(e))
		case "setVersion":
			h.configVersion = r.number(e)
		case "msg":
			router = r.text(e) == "isdbgrid"
		case "isWritablePrimary", "ismaster":
			primary = e.Truth()
		case "secondary":
			secondary = e.Truth()
		case "arbiterOnly":
			m.Arbiter = e.Truth()
		case "passive":
			if e.Truth() {
				m.Priority = 0
			}
		case "hidden":
			m.Hidden = e.Truth()
		case "buildIndexes":
			m.NoIndexes = !e.Truth()
		case "secondaryDelaySecs", "slaveDelay":
			m.Delay = r.seconds(e)
		case "tags":
			m.Tags = r.tags(e)
		case "localTime":
			if ms, ok := e.DateTime(); ok {
				h.localTime = time.UnixMilli(ms)
			}
		case "lastWrite":
			r.lastWrite(r.document(e), m)
		case "$replData":
			primary = r.replData(r.document(e), h) || primary
		case "$oplogQueryData":
			r.queryData(r.document(e), m)
		}
	})
	if r.err != nil {
		return nil, fmt.Errorf("read the reply to hello: %w", r.err)
	}
	switch {
	case router:
		h.fault = "is a mongos, not a member of a replica set"
	case h.setName == "":
		h.fault = "is not a member of a replica set, or has no valid configuration of one"
	}
	h.member.State = stateOf(h.member.Arbiter, primary, secondary)
	return h, nil
}

// list adds one of the lists of members.
func (h *hello) list(name string, hosts []string) {
	h.hosts = append(h.hosts, hosts...)
	if name == "passives" {
		h.passives = hosts
	}
}

// stateOf returns the state that the flags of a reply to hello mean.
func stateOf(arbiter, primary, secondary bool) oplog.MemberState {
	switch {
	case arbiter:
		return oplog.MemberArbiter
	case primary:
		return oplog.MemberPrimary
	case secondary:
		return oplog.MemberSecondary
	}
	return oplog.MemberUnknown
}

func (r *reader) lastWrite(doc bson.Raw, m *Member) {
	r.each(doc, func(e *rawbson.Elem) {
		switch e.Name() {
		case "opTime":
			// lastOpApplied may have been read already; it is the same or newer.
			if o := r.optime(e); m.Applied.IsNull() || o.After(m.Applied) {
				m.Applied = o
			}
		case "majorityOpTime":
			m.Committed = r.optime(e)
		}
	})
}

// replData reads $replData and reports whether the member is primary, even if it
// does not accept writes yet.
func (r *reader) replData(doc bson.Raw, h *hello) (primary bool) {
	r.each(doc, func(e *rawbson.Elem) {
		switch e.Name() {
		case "term":
			h.member.Term = r.number(e)
		case "configVersion":
			h.configVersion = r.number(e)
		case "configTerm":
			h.configTerm = r.number(e)
		case "replicaSetId":
			h.replicaSetID = bson.RawValue{Type: e.Type, Value: append([]byte(nil), e.Value...)}
		case "isPrimary":
			primary = e.Truth()
		}
	})
	return primary
}

func (r *reader) queryData(doc bson.Raw, m *Member) {
	syncs := false
	r.each(doc, func(e *rawbson.Elem) {
		switch e.Name() {
		case "lastOpApplied":
			if o := r.optime(e); m.Applied.IsNull() || o.After(m.Applied) {
				m.Applied = o
			}
		case "rbid":
			m.RBID = r.number(e)
		case "syncSourceIndex":
			syncs = r.number(e) >= 0
		case "syncSourceHost":
			m.Source = r.text(e)
		}
	})
	// A member without a sync source reports the host ":27017".
	if !syncs {
		m.Source = ""
	}
}
