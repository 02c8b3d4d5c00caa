package corpus

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// judge compiles every delta that meets a document while a log is applied, and
// executes the update by the rules of a server. It must make the same document
// as the delta.
type judge struct {
	on bool
	// exact is set while documents are said to be the pre-images.
	exact bool
	// written is how much all updates wrote, in bytes of documents, bytes how
	// much those that were judged read and wrote.
	written, bytes int64
	// misfits are deltas that were not computed from the document that they met,
	// which therefore was no pre-image.
	misfits int
	// judged is how many deltas met a document, compiled or not.
	judged int
	// wrong are updates that made another document, wrongOnPreImage those that
	// did so on a declared pre-image. In steady state on exact data it is.
	wrong, wrongOnPreImage []string
}

// maxWrong is how many wrong updates are described.
const maxWrong = 20

func (j *judge) update(pre bson.Raw, op *oplog.Op, post bson.Raw) {
	j.written += int64(len(post))
	if form, err := update.Classify(op.O); !j.on || err != nil || form != update.FormDelta {
		return
	}
	j.judged++
	j.bytes += int64(len(pre) + len(post))
	j.wrong = j.compile(j.wrong, pre, op, post, update.GuaranteeNone)
	if !j.exact {
		return
	}
	diff, err := update.DeltaOf(op.O)
	if err != nil {
		return
	}
	d, err := update.ParseDelta(diff)
	if err != nil {
		return
	}
	if !fits(d, pre) {
		j.misfits++
		return
	}
	j.wrongOnPreImage = j.compile(j.wrongOnPreImage, pre, op, post, update.GuaranteePreImage)
	if d.AddsTo(pre) {
		j.wrongOnPreImage = j.compile(j.wrongOnPreImage, pre, op, post, update.GuaranteeNewFields)
	}
}

func (j *judge) compile(wrong []string, pre bson.Raw, op *oplog.Op, post bson.Raw, g update.Guarantee) []string {
	if len(wrong) >= maxWrong {
		return wrong
	}
	if err := judgeOne(pre, op.O, post, g); err != nil {
		return append(wrong, fmt.Sprintf("entry %s, %s: _id %s: %v", op.OpTime, op.NS, op.ID, err))
	}
	return wrong
}

func judgeOne(pre, o, post bson.Raw, g update.Guarantee) error {
	diff, err := update.DeltaOf(o)
	if err != nil {
		return err
	}
	compiled, err := update.CompileDelta(diff, update.CompileOptions{Guarantee: g})
	if errors.Is(err, update.ErrNotCompilable) {
		return nil // a limit, reported to the compiler's caller
	}
	if err != nil {
		return err
	}
	if err := serverupdate.CheckStatement(compiled.U); err != nil {
		return err
	}
	got, err := serverupdate.Apply(pre, compiled.U)
	if err != nil {
		return fmt.Errorf("the update %s: %w", abridged(compiled.U.String()), err)
	}
	if string(got) != string(post) {
		return fmt.Errorf("the update %s gives %s, want %s", abridged(compiled.U.String()), abridged(got.String()), abridged(post.String()))
	}
	return nil
}

func abridged(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
