package fetcher

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	replData  = "$replData"
	oplogData = "$oplogQueryData"
)

// Metadata is the state of a member and its set, as of a reply of that member.
type Metadata struct {
	// Host is the member.
	Host string
	// LastFetched is the last entry that was read, with this reply.
	LastFetched oplog.OpTime

	// ConfigVersion is the version of the set's configuration.
	ConfigVersion int64
	// ReplicaSetID is the set's, zero where the server does not send it.
	ReplicaSetID bson.ObjectID
	// IsPrimary reports whether the member is the primary.
	IsPrimary bool
	// Committed is the commit point as the member knows it, CommittedWall its
	// primary's clock, in milliseconds since the epoch.
	Committed     oplog.OpTime
	CommittedWall bson.DateTime
	// Applied is the member's lastApplied.
	Applied oplog.OpTime
	// RBID is the member's rollback id.
	RBID int64
	// HasSource reports whether the member has a sync source.
	HasSource bool
	// NoPrimary reports that the member knows no primary: what the set has committed since it knew one, it does not say.
	NoPrimary bool
	// Behind is by how much Committed lags what another member says is committed, 0 if by less
	// than leastBehind: it is delayed, lags, or is cut off from its set. A Reader does not know that.
	Behind time.Duration
}

func metadataFault(field, what string) error {
	return fmt.Errorf("%w: %s: %s", ErrMetadata, field, what)
}

// parseMetadata reads the metadata of a reply. Both parts have to be
// there.
func parseMetadata(raw bson.Raw) (Metadata, error) {
	var m Metadata
	var hasRepl, hasOplog bool
	it := rawbson.NewIter(raw)
	for it.Next() {
		var err error
		switch it.Name() {
		case replData:
			hasRepl = true
			err = m.parseRepl(&it.Elem)
		case oplogData:
			hasOplog = true
			err = m.parseOplog(&it.Elem)
		}
		if err != nil {
			return m, err
		}
	}
	switch err := it.Err(); {
	case err != nil:
		return m, metadataFault("the reply", err.Error())
	case !hasRepl:
		return m, metadataFault(replData, "missing")
	case !hasOplog:
		return m, metadataFault(oplogData, "missing")
	}
	return m, nil
}

// parseRepl reads what a member says of the set.
func (m *Metadata) parseRepl(part *rawbson.Elem) error {
	return parsePart(part, []string{"term", "configVersion", "isPrimary"}, func(e *rawbson.Elem) (ok bool) {
		switch e.Name() {
		case "term":
			_, ok = e.Int64()
		case "configVersion":
			m.ConfigVersion, ok = e.Int64()
		case "isPrimary":
			m.IsPrimary, ok = e.Bool()
		case "replicaSetId":
			if ok = e.Type == bson.TypeObjectID; ok {
				copy(m.ReplicaSetID[:], e.Value)
			}
		default:
			return true
		}
		return ok
	})
}

// parseOplog reads what a member says of its oplog.
func (m *Metadata) parseOplog(part *rawbson.Elem) error {
	return parsePart(part, []string{"lastOpCommitted", "lastOpApplied", "rbid"}, func(e *rawbson.Elem) (ok bool) {
		switch e.Name() {
		case "lastOpCommitted":
			m.Committed, ok = opTimeOf(e)
		case "lastCommittedWall":
			var ms int64
			ms, ok = e.DateTime()
			m.CommittedWall = bson.DateTime(ms)
		case "lastOpApplied":
			m.Applied, ok = opTimeOf(e)
		case "rbid":
			m.RBID, ok = e.Int64()
		case "syncSourceIndex":
			var i int64
			i, ok = e.Int64()
			m.HasSource = i >= 0
		case "primaryIndex":
			var i int64
			i, ok = e.Int64()
			m.NoPrimary = i < 0
		default:
			return true
		}
		return ok
	})
}

// parsePart gives read each field of a part, which says whether it has a type
// that it can have. The fields needed must all be there.
func parsePart(part *rawbson.Elem, needed []string, read func(e *rawbson.Elem) bool) error {
	doc, ok := part.Document()
	if !ok {
		return metadataFault(part.Name(), "not a document but "+part.Type.String())
	}
	path := func(field string) string { return part.Name() + "." + field }
	missing := 0
	for i := range needed {
		missing |= 1 << i
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		if !read(&it.Elem) {
			return metadataFault(path(it.Name()), "of type "+it.Type.String())
		}
		for i, name := range needed {
			if it.Is(name) {
				missing &^= 1 << i
			}
		}
	}
	if err := it.Err(); err != nil {
		return metadataFault(part.Name(), err.Error())
	}
	for i, name := range needed {
		if missing&(1<<i) != 0 {
			return metadataFault(path(name), "missing")
		}
	}
	return nil
}

// opTimeOf reads {ts, t}. Both have to be there.
func opTimeOf(e *rawbson.Elem) (oplog.OpTime, bool) {
	at := oplog.OpTime{Term: oplog.UninitializedTerm}
	doc, ok := e.Document()
	if !ok {
		return at, false
	}
	var hasTS, hasTerm bool
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "ts":
			at.TS, hasTS = it.Timestamp()
		case "t":
			at.Term, hasTerm = it.Int64()
		}
	}
	return at, hasTS && hasTerm && it.Err() == nil
}
