package cutover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
)

const (
	// failedWithin is how long the record of an error is tried.
	failedWithin = 5 * time.Second
	// failedBytes is how much of its text is kept: it may name many indexes.
	failedBytes = 2000
)

// OnlyCancel reports whether a cutover that has failed finds the same again when it is resumed: it does not drain again once it has
// begun to convert. Documents that violate an index can be removed by a write to the target only, and with a way back the step arm does not go
// on after one.
func OnlyCancel(r *record.Record, err error) bool {
	switch {
	case r == nil || r.State != record.Running || !r.Began(record.Convert) || r.Has(record.Commit), errors.As(err, new(*aheadError)):
		return false
	case errors.Is(err, ErrWritten), errors.Is(err, ErrThawed):
		return true
	case errors.Is(err, ErrNoWayBack): // a newer release may read filters that this one cannot
		return r.Options.Reverse != record.NoReverse && !errors.As(err, new(*checkpoint.VersionError))
	}
	return errors.As(err, new(*ddl.RefusedError)) && r.Options.Reverse != record.NoReverse
}

// failed records the error with which this process ends, for those who look at the cutover later, and returns it. Nothing is recorded if the
// process was stopped, has lost the lock, or another one has changed the record, nor of a cancellation that comes too late: nothing is in the
// way of the cutover.
func (w *work) failed(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, ErrCommitted) || !w.rec.Open() || w.rec.ID != w.cfg.id {
		return err
	}
	f := &record.Failure{Step: w.rec.Last().Step, At: now(), By: w.cfg.Drain.By, Error: err.Error(), OnlyCancel: OnlyCancel(w.rec, err)}
	if e, is := errors.AsType[*StepError](err); is {
		f.Step, f.Error = e.Step, e.Err.Error()
	}
	f.Error = withoutCommands(f.Error, &w.rec.Options)
	if len(f.Error) > failedBytes {
		f.Error = strings.ToValidUTF8(f.Error[:failedBytes], "") + " …"
	}
	switch was := w.rec.Failed; {
	case f.OnlyCancel && !errors.Is(err, ErrThawed): // which passes if somebody blocks the source again
		f.Lasting = f.Error
	case was != nil && w.rec.State == record.Running:
		f.Lasting, f.OnlyCancel = was.Lasting, f.OnlyCancel || was.Lasting != ""
	}
	ctx, cancel := context.WithTimeout(ctx, failedWithin)
	defer cancel()
	_ = w.change(ctx, func(r *record.Record) { r.Failed = f }) // the error itself is returned
	return err
}

// withoutCommands returns the text of an error without the operator's commands. They may have passwords, and it is shown to all who see
// the link's status.
func withoutCommands(text string, o *record.Options) string {
	pairs := []string{o.FreezeCommand, "--freeze-command", o.ThawCommand, "--thaw-command"}
	if len(o.ThawCommand) > len(o.FreezeCommand) { // it may begin with it
		pairs = slices.Concat(pairs[2:], pairs[:2])
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != "" {
			text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
		}
	}
	return text
}
