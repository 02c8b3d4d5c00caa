package mirrored

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// CopyReport is the result of copying a source that plays a recording.
type CopyReport struct {
	Name string
	// Seed is that of all choices.
	Seed uint64
	// Settings says with which settings it was copied.
	Settings string
	// Entries is how many there are. Before of them had been played when the link
	// was made, Meanwhile until everything was copied; the others followed while
	// the log was applied.
	Entries, Before, Meanwhile int
	// Moments is how often some were played meanwhile.
	Moments int
	// Copies is how many copies were begun.
	Copies int64
	Report compare.Report
	// Err is why it did not complete.
	Err     error
	Elapsed time.Duration
}

// OK reports whether the target came out equal.
func (r *CopyReport) OK() bool { return r.Err == nil && r.Report.Equal() }

// String is one line, and more where the target did not come out equal.
func (r *CopyReport) String() string {
	verdict := "ok  "
	if !r.OK() {
		verdict = "FAIL"
	}
	text := fmt.Sprintf("%s %s copied with seed %d: %d entries, %d before, %d meanwhile in %d moments, %d copies; %s; %s",
		verdict, printable.Text(r.Name), r.Seed, r.Entries, r.Before, r.Meanwhile, r.Moments, r.Copies, r.Settings,
		r.Elapsed.Round(time.Millisecond))
	if r.Err != nil {
		return text + ": " + printable.Text(r.Err.Error())
	}
	return text + ": " + r.Report.String()
}

// Copy plays a part of a recording, copies the source into a new target while it
// plays more, at moments of the copy that the seed chooses, and then the rest.
// Finally the target is compared with the recording's final state.
//
// Which command of the copy comes when is not up to the seed, so that another run
// with the same one may play the entries at other moments.
func Copy(ctx context.Context, s *corpus.Scenario, seed uint64, o RunOptions) CopyReport {
	start := time.Now()
	r := CopyReport{Name: s.Name, Seed: seed}
	r.Err = copyWhile(ctx, s, o, &r)
	r.Elapsed = time.Since(start)
	return r
}

func copyWhile(ctx context.Context, s *corpus.Scenario, o RunOptions, r *CopyReport) error {
	o.setDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Limit, errTooLong)
	defer cancel()
	src, err := Start(ctx, s)
	if err != nil {
		return err
	}
	defer src.Close()
	r.Entries = src.Entries()
	p := newPlayer(src, r.Seed)
	p.olderUpdates = cmp.Or(s.Meta.FCV, dialectOf(s)) < "4.7"
	if r.Before, err = p.begin(); err != nil {
		return err
	}
	cfg, err := p.settings()
	if err != nil {
		return err
	}
	r.Settings = said(&cfg)
	if cfg.Copy.SpoolDir, err = os.MkdirTemp("", "replicator-copied-*"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(cfg.Copy.SpoolDir) }() // the system removes the rest
	if o.Change != nil {
		o.Change(&cfg)
	}
	cfg.Observer = func(e event.Event) {
		o.Observer.Tell(e)
		p.told(e)
	}
	r.Report, err = p.run(ctx, cfg, o, r)
	r.Meanwhile, r.Moments = p.meanwhile, p.moments
	return err
}

// run copies, follows until everything is played and applied, and compares.
func (p *player) run(ctx context.Context, cfg pipeline.Config, o RunOptions, r *CopyReport) (compare.Report, error) {
	uri, end, err := o.target(ctx)
	if err != nil {
		return compare.Report{}, err
	}
	defer end()
	from, err := Connect(ctx, p.src.URI())
	if err != nil {
		return compare.Report{}, err
	}
	defer from.Close()
	to, err := Connect(ctx, uri)
	if err != nil {
		return compare.Report{}, err
	}
	defer to.Close()
	source := tapped{Cluster: from, before: p.asked}
	target := tapped{Cluster: to, before: p.asked}
	snapshot, err := follow(ctx, cfg, source, target, func(s *monitor.Snapshot) bool {
		consistent := s.Copy != nil && s.Copy.Phase == checkpoint.Copied
		return p.failed() != nil || consistent && !s.Progress.Applied.Before(p.src.Last)
	})
	if c := snapshot.Copy; c != nil {
		r.Copies = c.Number
	}
	if played := p.failed(); played != nil {
		return compare.Report{}, played
	}
	if err != nil {
		return compare.Report{}, err
	}
	deferred, err := ddl.ReadDeferred(ctx, to, scope.DefaultMetaDB, linkName)
	if err != nil {
		return compare.Report{}, err
	}
	return compare.Compare(ctx, compare.Recorded(p.src.After), compare.Cluster(to), compare.Options{
		Map: cfg.Scope.Target, Deferred: deferred, AnyFieldOrder: p.olderUpdates,
	})
}
