package checkpoint

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Over is the end of a link: applications use its target instead of its source, and nothing of
// the source is applied any more, by any process.
type Over struct {
	// At is when the link was ended, by the clock of the process that did it, By the operator.
	At time.Time
	By string
	// Source is the source's optime as of which the target was the source.
	Source oplog.OpTime
	// Reverse is the way back, nil if there is none.
	Reverse *Reverse
	// Promoted is set if the source was gone, and the target promoted: Source is then how far the
	// target has it.
	Promoted *Promoted
}

// Promoted records the end of a link whose source was lost.
type Promoted struct {
	// Wall is the source's clock at Source, in milliseconds since the epoch.
	Wall int64
	// Exact means that the target was the source as of Source. Otherwise some lanes have applied
	// operations that come after it, up to Furthest.
	Exact    bool
	Furthest oplog.OpTime
	// Open is how many transactions were begun up to Source, and not known to be committed: nothing
	// of them was applied.
	Open int64
	// Heard is the newest entry that the source was heard to have, null if that is not known, at
	// HeardAt by the clock of the process that heard it.
	Heard   oplog.OpTime
	HeardAt time.Time
}

// OverError reports that a link was cut over: no process may acquire its lease.
type OverError struct {
	Link string
	Over Over
}

func (e *OverError) Error() string {
	if e.Over.Promoted != nil {
		return fmt.Sprintf("link %q was promoted at %s by %s: its source was gone, and applications use its target, which has the source up to %s; "+
			"nothing later of the source is applied. List what only the source has: replicator rewind; then mirror the target to it by a new link",
			e.Link, e.Over.At.UTC().Format("2006-01-02 15:04:05 UTC"), e.Over.By, e.Over.Source)
	}
	return fmt.Sprintf("link %q was cut over at %s by %s: applications use its target, which was the source as of %s; nothing later of the source is applied",
		e.Link, e.Over.At.UTC().Format("2006-01-02 15:04:05 UTC"), e.Over.By, e.Over.Source)
}

const fieldOver = "over"

// End ends the link for ever, with write concern majority: from then on Acquire returns an
// *OverError, in this process and in all others, and releases that do not know the format refuse
// the link, and ends a conversion. The lease stays as it is: nothing may be applied under it any more. It is idempotent.
func (h *Link) End(ctx context.Context, o Over) error {
	return h.locked(ctx, func() error {
		return h.update(ctx, func(dst []byte) []byte {
			dst = metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, fieldConverting, "") })
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendInt32Element(dst, "version", ended)
				return metadata.AppendDoc(dst, fieldOver, func(dst []byte) []byte {
					dst = bsoncore.AppendDateTimeElement(dst, "at", o.At.UnixMilli())
					dst = bsoncore.AppendStringElement(dst, "by", o.By)
					dst = metadata.AppendOpTime(dst, "source", o.Source)
					if o.Reverse != nil {
						dst = appendReverse(dst, o.Reverse)
					}
					return o.Promoted.append(dst)
				})
			})
		}, func(*mongo.Txn) error { return nil })
	}, "end it")
}

// Over returns the end of the link, nil if it continues. It is majority-committed.
func (s *Store) Over(ctx context.Context) (*Over, error) {
	docs, err := metadata.FindAll(ctx, s.patience(), s.once, nil, s.cfg.DB, metadata.Links, "majority", metadata.ByID(s.cfg.Link))
	if err != nil {
		return nil, s.wrap(err, "read whether it has ended")
	}
	if len(docs) == 0 {
		return nil, s.wrap(ErrNoLink, "read whether it has ended")
	}
	link, err := readLink(s.cfg.Link, docs[0])
	if err != nil {
		return nil, s.wrap(err, "read whether it has ended")
	}
	return link.Over, nil
}

// readOver reads the end of a link.
func readOver(r *metadata.Reader) *Over {
	if !r.Has(fieldOver) {
		return nil
	}
	sub, ok := r.Doc(fieldOver, false)
	if !ok {
		return nil
	}
	o := &Over{At: time.UnixMilli(sub.Date("at")).UTC(), By: sub.Text("by"), Source: sub.OpTime("source", false), Reverse: readReverse(sub), Promoted: readPromoted(sub)}
	r.Take(sub)
	return o
}

const fieldPromoted = "promoted"

// append appends the field of a promotion, if there was one.
func (p *Promoted) append(dst []byte) []byte {
	if p == nil {
		return dst
	}
	return metadata.AppendDoc(dst, fieldPromoted, func(dst []byte) []byte {
		dst = bsoncore.AppendDateTimeElement(dst, "wall", p.Wall)
		dst = bsoncore.AppendBooleanElement(dst, "exact", p.Exact)
		dst = metadata.AppendOpTime(dst, "furthest", p.Furthest)
		dst = bsoncore.AppendInt64Element(dst, "open", p.Open)
		if p.Heard.IsNull() {
			return dst
		}
		dst = metadata.AppendOpTime(dst, "heard", p.Heard)
		return bsoncore.AppendDateTimeElement(dst, "heardAt", p.HeardAt.UnixMilli())
	})
}

// readPromoted reads the promotion of a link that has ended, nil if there was none.
func readPromoted(r *metadata.Reader) *Promoted {
	sub, ok := r.Doc(fieldPromoted, true)
	if !ok {
		return nil
	}
	p := &Promoted{
		Wall: sub.Date("wall"), Exact: sub.Bool("exact"), Furthest: sub.OpTime("furthest", false), Open: sub.Int64("open"),
		Heard: sub.OpTime("heard", true),
	}
	if !p.Heard.IsNull() {
		p.HeardAt = time.UnixMilli(sub.Date("heardAt")).UTC()
	}
	r.Take(sub)
	return p
}
