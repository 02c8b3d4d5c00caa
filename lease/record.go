package lease

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
)

// Record has the fields of the lease in a document. It is comparable.
type Record struct {
	// Term counts the acquisitions, from 1; 0 in a new document.
	Term int64
	// Holder is the process that acquired it last, empty for none.
	Holder string
	// Instance is random, and identifies the document among all of the same name.
	Instance string
	// Grant is that of Term. It is zero if the holder does not renew the lease: a process
	// of a release that did not, or one whose Claim had no TTL.
	Grant Grant
	// Superseded reports that there is a grant, of an older term: a process that does not
	// renew has acquired the lease after one that does.
	Superseded bool
	// Writes counts the updates of the document under the lease.
	Writes int64
}

// ForCutover is the purpose of the lease that a cutover takes over while it converts options and ends the link: its process applies nothing.
const ForCutover = "cutover"

// Grant has the time for which a lease was granted. All times are the store's, which sets them.
type Grant struct {
	// ID is the lock id: new for each acquisition.
	ID bson.ObjectID
	// Duration counts the renewals in the term.
	Duration int64
	// TTL is how long it lasts after it was granted or renewed.
	TTL time.Duration
	// Granted is since when the holder has had the lease without interruption, Expires when
	// it ends unless it is renewed.
	Granted, Expires bson.DateTime
	// Why is the purpose of the lease.
	Why string
	// Released reports that the holder has given it back, Offered that it continues using it, but
	// leaves it to a process that says that it can do what this one cannot: see Claim.
	Released, Offered bool
}

// The fields of a grant, in the field fieldLease of the document. fieldOf is the term that
// the grant belongs to: a release that does not know grants raises the term and leaves
// them as they are.
const (
	fieldLease    = "lease"
	fieldOf       = "term"
	fieldID       = "id"
	fieldDuration = "termDuration"
	fieldTTL      = "ttl"
	fieldGranted  = "granted"
	fieldExpires  = "expires"
	fieldWhy      = "why"
	fieldReleased = "released"
	fieldOffered  = "offered"
)

// Append appends the fields of a record, without a grant, to a new document.
func (r *Record) Append(dst []byte) []byte {
	dst = bsoncore.AppendStringElement(dst, "instance", r.Instance)
	dst = bsoncore.AppendInt64Element(dst, "term", r.Term)
	dst = bsoncore.AppendStringElement(dst, "holder", r.Holder)
	return bsoncore.AppendInt64Element(dst, "writes", 0)
}

// ReadRecord reads the fields of a record.
func ReadRecord(r *metadata.Reader) Record {
	record := Record{Term: r.Int64("term"), Holder: r.Text("holder"), Instance: r.Text("instance")}
	if r.Has("writes") {
		record.Writes = r.Int64("writes")
	}
	sub, ok := r.Doc(fieldLease, true)
	if !ok {
		return record
	}
	if record.Superseded = sub.Int64(fieldOf) != record.Term; !record.Superseded {
		g := Grant{
			Duration: sub.Int64(fieldDuration), TTL: time.Duration(sub.Int64(fieldTTL)) * time.Millisecond,
			Granted: bson.DateTime(sub.Date(fieldGranted)), Expires: bson.DateTime(sub.Date(fieldExpires)), Why: sub.Text(fieldWhy),
			Released: sub.Has(fieldReleased), Offered: sub.Has(fieldOffered) && sub.Bool(fieldOffered),
		}
		id := sub.Value(fieldID)
		if g.ID, ok = id.ObjectIDOK(); !ok {
			sub.Fault(fieldID, "an ObjectId")
		}
		record.Grant = g
	}
	r.Take(sub)
	return record
}

// isGranted reports whether the lease was granted for a limited time.
func (g *Grant) isGranted() bool { return !g.ID.IsZero() }

// Free reports whether a process may acquire the lease at a time of the store's clock:
// no process has it, or this process has it, or it has ended, or the holder does not say when
// it ends.
func (r *Record) Free(process string, now bson.DateTime) bool {
	return r.Holder == "" || r.Holder == process || !r.Grant.isGranted() || r.Grant.Released || r.Grant.Expires <= now
}

// String describes the holder of the lease.
func (r Record) String() string {
	switch {
	case r.Holder == "":
		return "no process"
	case !r.Grant.isGranted():
		return fmt.Sprintf("%s in term %d", r.Holder, r.Term)
	}
	return fmt.Sprintf("%s in term %d, since %s, until %s UTC unless it renews it", r.Holder, r.Term,
		r.Grant.Granted.Time().UTC().Format(time.DateTime), r.Grant.Expires.Time().UTC().Format(time.TimeOnly))
}
