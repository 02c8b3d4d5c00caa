package request

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Kind is the kind of a request.
type Kind string

// seqField is that of Seq.
const seqField = "seq"

// The kinds.
const (
	// Pause stops copying and applying, Resume ends that.
	Pause  Kind = "pause"
	Resume Kind = "resume"
	// Throttle limits copying and applying.
	Throttle Kind = "throttle"
	// Again copies collections again.
	Again Kind = "resync"
	// LogLevel sets the level of the log of the process that leads.
	LogLevel Kind = "logLevel"
	// Cut makes a consistent cut.
	Cut Kind = "cut"
	// Repair rewrites documents of a collection from the source.
	Repair Kind = "repair"
	// Verify has collections compared again, or everything.
	Verify Kind = "verify"
)

// kinds are the kinds that this release knows.
func kinds() []Kind { return []Kind{Pause, Resume, Throttle, Again, LogLevel, Cut, Repair, Verify} }

// The states of a Record, in addition to Asked, Done and Failed.
const (
	// Working: the process that leads has begun to act on it.
	Working = "working"
	// Refused: nothing was done, and nothing will be; the outcome says why.
	Refused = "refused"
)

// Record is one request of an operator, and its outcome.
type Record struct {
	// ID is unique in a link, and sorts by the time of the asking process.
	ID string `json:"id"`
	// Kind may be one that this release does not know.
	Kind Kind `json:"kind"`
	// By is the operator: user@host, or the name of a token. Why is the reason given, may be empty.
	By  string `json:"by"`
	Why string `json:"why"`
	// At is when it was asked, ChangedAt when its state was last written, by the target's clock.
	At time.Time `json:"at"`
	// Args is a JSON object; its fields depend on Kind.
	Args json.RawMessage `json:"args"`
	// State is Asked, Working, Done, Failed or Refused; Outcome is its result in words.
	State     string    `json:"state"`
	Outcome   string    `json:"outcome"`
	ChangedAt time.Time `json:"changedAt"`
	// Seq is greater than that of all requests that were stored when it was asked, from 1 on, 0 in one of
	// an earlier release. The clock of the target does not order requests: after a failover it is another one.
	Seq int64 `json:"-"`
}

// Open reports whether it still has to be carried out.
func (r *Record) Open() bool { return r.State == Asked || r.State == Working }

// newestFirst sorts records. One of an earlier release, which has no Seq, counts as asked next after the
// numbered ones whose time is not later.
func newestFirst(list []Record) {
	slices.SortFunc(list, func(a, b Record) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(b.Seq, a.Seq)) })
	seqs, seq := make(map[string]int64, len(list)), int64(0)
	for i := range list {
		r := &list[i]
		seq = max(seq, r.Seq)
		if seqs[r.ID] = r.Seq; r.Seq == 0 {
			seqs[r.ID] = seq
		}
	}
	slices.SortFunc(list, func(a, b Record) int {
		return cmp.Or(cmp.Compare(seqs[b.ID], seqs[a.ID]), b.At.Compare(a.At), cmp.Compare(b.ID, a.ID))
	})
}

// parseRecord reads a document. A field that cannot be parsed is shown, and the leader refuses the
// request: it must not end the link.
func (s *Store) parseRecord(doc bson.Raw) Record {
	text := func(name string) string {
		v, _ := doc.Lookup(name).StringValueOK()
		return v
	}
	date := func(name string) time.Time {
		v, ok := doc.Lookup(name).TimeOK()
		if !ok {
			return time.Time{}
		}
		return v.UTC()
	}
	r := Record{
		ID: text("_id")[min(len(text("_id")), len(s.link)+1):], Kind: Kind(text("kind")), By: text("by"), Why: text("why"),
		At: date("at"), State: text("state"), Outcome: text("outcome"), ChangedAt: date("changedAt"), Args: json.RawMessage(text("args")),
	}
	r.Seq, _ = doc.Lookup(seqField).AsInt64OK()
	if !json.Valid(r.Args) {
		r.Args = json.RawMessage("{}")
	}
	return r
}

// parseAll reads the documents of a link: its Settings, and its records, the oldest first.
func (s *Store) parseAll(docs []bson.Raw) (Settings, []Record, error) {
	var settings Settings
	var records []Record
	for _, doc := range docs {
		if err := doc.Validate(); err != nil {
			return settings, nil, s.damaged(err.Error())
		}
		if id, _ := doc.Lookup("_id").StringValueOK(); id != s.link {
			records = append(records, s.parseRecord(doc))
			continue
		}
		var err error
		if settings, err = s.parseSettings(doc); err != nil {
			return settings, nil, err
		}
	}
	return settings, records, nil
}
