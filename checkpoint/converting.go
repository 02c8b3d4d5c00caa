package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
)

// Converting says that the deferred options of a link are being converted, or put back: the target
// has some of them, with which nothing of the source may be applied.
type Converting struct {
	// ID is that of the cutover, By the operator, Since when, by that process's clock.
	ID, By string
	Since  time.Time
}

// ConvertingError reports that no process but the cutover that converts its deferred options may acquire
// the lease of a link.
type ConvertingError struct {
	Link       string
	Converting Converting
}

func (e *ConvertingError) Error() string {
	return fmt.Sprintf("link %q: since %s by %s a cutover converts its deferred options, and nothing is applied meanwhile: "+
		"replicator cutover --resume --link %s … goes on with it, --cancel takes it back",
		e.Link, e.Converting.Since.UTC().Format("2006-01-02 15:04:05 UTC"), e.Converting.By, e.Link)
}

const fieldConverting = "converting"

// errKeptBack reports a link that cannot be converted now.
var errKeptBack = errors.New("collections wait for an index build")

// Convert records that the deferred options are being converted, with write concern majority: from
// then on Acquire returns a *ConvertingError unless Config.Converts is its ID, in this process and in
// all others, and releases that do not know the format refuse the link. Idempotent.
func (h *Link) Convert(ctx context.Context, c Converting) error {
	if len(h.state.KeptBack) > 0 {
		return h.store.wrap(errKeptBack, "record that its deferred options are converted")
	}
	return h.setConverting(ctx, func(dst []byte) []byte {
		return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte {
			dst = bsoncore.AppendInt32Element(dst, "version", halfway)
			return metadata.AppendDoc(dst, fieldConverting, func(dst []byte) []byte {
				dst = bsoncore.AppendStringElement(dst, "id", c.ID)
				dst = bsoncore.AppendStringElement(dst, "by", c.By)
				return bsoncore.AppendDateTimeElement(dst, "since", c.Since.UnixMilli())
			})
		})
	}, "record that its deferred options are converted")
}

// Reverted records that the options are deferred again, and the link continues. Idempotent.
func (h *Link) Reverted(ctx context.Context) error {
	return h.setConverting(ctx, func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "version", plain) })
		return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, fieldConverting, "") })
	}, "record that its options are deferred again")
}

func (h *Link) setConverting(ctx context.Context, change func(dst []byte) []byte, what string) error {
	return h.locked(ctx, func() error {
		return h.update(ctx, change, func(*mongo.Txn) error { return nil })
	}, "%s", what)
}

// open returns an error if the link has ended, or is being converted by another cutover.
func (s *Store) open(link *linkDoc) error {
	switch c := link.Converting; {
	case link.Over != nil:
		return &OverError{Link: s.cfg.Link, Over: *link.Over}
	case c != nil && c.ID != s.cfg.Converts:
		return &ConvertingError{Link: s.cfg.Link, Converting: *c}
	}
	return nil
}

// readConverting reads which cutover converts the deferred options.
func readConverting(r *metadata.Reader) *Converting {
	if !r.Has(fieldConverting) {
		return nil
	}
	sub, ok := r.Doc(fieldConverting, false)
	if !ok {
		return nil
	}
	c := &Converting{ID: sub.Text("id"), By: sub.Text("by"), Since: time.UnixMilli(sub.Date("since")).UTC()}
	r.Take(sub)
	return c
}
