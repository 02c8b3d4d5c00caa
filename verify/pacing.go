package verify

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/clone"
)

// pacing slows reading down. A nil Pacer does not.
type pacing struct{ pacer clone.Pacer }

func (p *pacing) took(s clone.Side, d time.Duration, docs, bytes int) {
	if p.pacer != nil {
		p.pacer.Took(s, d, docs, bytes)
	}
}

// wait waits until that much may be read. The limits count reads of the source only: those of
// the target are as large.
func (p *pacing) wait(ctx context.Context, s clone.Side, docs []bson.Raw) error {
	if p.pacer == nil || s != clone.Source {
		return nil
	}
	n := 0
	for _, d := range docs {
		n += len(d)
	}
	return p.pacer.Wait(ctx, len(docs), n)
}
