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
	// At is when the link was ended, by the clock of the process that did it, By who asked.
	At time.Time
	By string
	// Source is the source's optime as of which the target was the source.
	Source oplog.OpTime
	// Reverse is the way back, nil if there is none.
	Reverse *Reverse
}

// Same reports whether both are the same end of a link, and not one that another process has
// written.
func (o *Over) Same(p *Over) bool {
	if o.Reverse == nil || p.Reverse == nil {
		return o.Reverse == p.Reverse && o.At.Equal(p.At) && o.By == p.By && o.Source == p.Source
	}
	return o.At.Equal(p.At) && o.By == p.By && o.Source == p.Source && o.Reverse.Start == p.Reverse.Start
}

// OverError reports that a link was cut over: nobody may acquire its lease.
type OverError struct {
	Link string
	Over Over
}

func (e *OverError) Error() string {
	return fmt.Sprintf("link %q was cut over at %s by %s: applications use its target, which was the source as of %s; nothing later of the source is applied",
		e.Link, e.Over.At.UTC().Format("2006-01-02 15:04:05 UTC"), e.Over.By, e.Over.Source)
}

const fieldOver = "over"

// End ends the link for ever, with write concern majority: from then on Acquire returns an
// *OverError, in this process and in all others, and releases that do not know the format refuse
// the link. The lease stays as it is: nothing may be applied under it any more. It is idempotent.
func (h *Link) End(ctx context.Context, o Over) error {
	return h.locked(ctx, func() error {
		return h.update(ctx, func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
				dst = bsoncore.AppendInt32Element(dst, "version", Version)
				return metadata.AppendDoc(dst, fieldOver, func(dst []byte) []byte {
					dst = bsoncore.AppendDateTimeElement(dst, "at", o.At.UnixMilli())
					dst = bsoncore.AppendStringElement(dst, "by", o.By)
					dst = metadata.AppendOpTime(dst, "source", o.Source)
					if o.Reverse != nil {
						dst = appendReverse(dst, o.Reverse)
					}
					return dst
				})
			})
		}, func(*mongo.Txn) error { return nil })
	}, "end it")
}

// Over returns the end of the link, nil if it goes on. It is majority-committed.
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

// over returns an *OverError if the link has ended.
func (s *Store) over(link *linkDoc) error {
	if link.Over == nil {
		return nil
	}
	return &OverError{Link: s.cfg.Link, Over: *link.Over}
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
	o := &Over{At: time.UnixMilli(sub.Date("at")).UTC(), By: sub.Text("by"), Source: sub.OpTime("source", false), Reverse: readReverse(sub)}
	r.Take(sub)
	return o
}
