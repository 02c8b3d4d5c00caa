package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
)

// Cutover is a cutover of a link that is neither done nor cancelled.
type Cutover struct {
	State string `json:"state"`
	// Step was begun last, at Since, by By.
	Step  string    `json:"step"`
	Since time.Time `json:"since"`
	By    string    `json:"by"`
	// BlocksSource means that it may have blocked writes to the source.
	BlocksSource bool `json:"blocksSource"`
	// TargetBlocked means that the target may still refuse the writes of applications, as the step unblock has not ended.
	TargetBlocked bool `json:"targetBlocked,omitempty"`
	// Committed means that the link has ended: it cannot be cancelled any more.
	Committed bool `json:"committed"`
	// Interrupted means that no process works on it.
	Interrupted bool `json:"interrupted"`
	// Failed is the last error, and an earlier one that will be met again; empty if a step has ended since and none lasts, or the process has not ended by one.
	Failed string `json:"failed,omitempty"`
	// OnlyCancel means that to resume it finds the same error again.
	OnlyCancel bool `json:"onlyCancel"`

	save string
}

// Cutovers returns the cutovers that are under way, by link: that of one link, or of all of them if link is
// empty. A process that works on one has the lock of the link ([jobs.Link]) before it creates the record,
// and until after its last change: so a record that was there before and after the lock was free, and is
// unchanged, is one that no process works on.
func Cutovers(ctx context.Context, target mongo.Caller, db, link string) (map[string]Cutover, error) {
	store := &record.Store{Target: target, DB: db}
	open, err := readCutovers(ctx, store, link)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	list, err := mongostore.New(target, db).List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read which processes work on cutovers: %w", err)
	}
	worked := map[string]bool{}
	for i := range list {
		worked[list[i].Name] = list[i].IsLocked()
	}
	after, err := readCutovers(ctx, store, link)
	if err != nil {
		return nil, err
	}
	for name, c := range after {
		c.Interrupted = !worked[jobs.Link(name)] && open[name].save == c.save
		if !c.Committed && c.Step == string(record.Commit) {
			if c.Committed, err = hasEnded(ctx, target, db, name); err != nil {
				return nil, err
			}
		}
		after[name] = c
	}
	return after, nil
}

// hasEnded reports whether a link has ended: a process that was killed in the step commit may not have recorded that.
func hasEnded(ctx context.Context, target mongo.Caller, db, link string) (bool, error) {
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: db, Link: link})
	if err != nil {
		return false, err
	}
	over, err := store.Over(ctx)
	if errors.Is(err, checkpoint.ErrNoLink) || errors.As(err, new(*checkpoint.VersionError)) || errors.As(err, new(*metadata.DamagedError)) {
		return false, nil // it says so itself where it is listed
	}
	return over != nil, err
}

func readCutovers(ctx context.Context, store *record.Store, link string) (map[string]Cutover, error) {
	list, err := store.Open(ctx, link)
	if err != nil {
		return nil, err
	}
	all := make(map[string]Cutover, len(list))
	for _, r := range list {
		last := r.Last()
		c := Cutover{
			State: string(r.State), Step: string(last.Step), Since: last.Started.UTC(), By: last.By,
			Committed: r.Has(record.Commit), BlocksSource: r.Blocks() && r.Options.Freeze == record.Block, save: r.Save.Hex(),
			TargetBlocked: last.Step == record.Unblock && last.Ended.IsZero(),
		}
		if r.Failed != nil {
			c.Failed, c.OnlyCancel = r.Failed.Errors(), r.Failed.OnlyCancel
		}
		all[r.Link] = c
	}
	return all, nil
}

// cutoverSeen is the last record read of the link's cutover, nil if none is under way.
type cutoverSeen struct {
	is *Cutover
	at time.Time
}

// askCutover reads whether a cutover of the link is under way, and whether a process works on it.
func (t *Tracker) askCutover(ctx context.Context) {
	if t.cfg.Target == nil || t.cfg.MetaDB == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askEvery)
	defer cancel()
	all, err := Cutovers(ctx, t.cfg.Target, t.cfg.MetaDB, t.cfg.Link)
	if err != nil {
		return
	}
	seen := cutoverSeen{at: time.Now()}
	if c, ok := all[t.cfg.Link]; ok {
		seen.is = &c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cutover = seen
}

// shown returns the cutover that is under way, nil if none is known to be.
func (c *cutoverSeen) shown(now time.Time) *Cutover {
	if c.is == nil || now.Sub(c.at) > staleAnswers*askEvery {
		return nil
	}
	is := *c.is
	return &is
}

// String describes the cutover in sentences.
func (c *Cutover) String() string {
	at := fmt.Sprintf("at step %s, which %s began at %s", c.Step, c.By, c.Since.UTC().Format("2006-01-02 15:04:05 UTC"))
	if !c.Interrupted {
		return "A cutover is " + at + "."
	}
	text := "A cutover was interrupted " + at + ": no process works on it."
	if c.TargetBlocked {
		text += " " + record.TargetBlocked
	}
	if c.BlocksSource {
		text += " Writes to the source may still be blocked by it."
	}
	if c.Failed != "" {
		text += " Its last error: " + strings.TrimSuffix(c.Failed, ".") + "."
	}
	switch {
	case c.State == string(record.Cancelling):
		return text + " It was being cancelled."
	case c.OnlyCancel:
		return text + " It can only be cancelled (--cancel): to resume it finds the same again."
	case c.Committed:
		return text + " It can be resumed."
	}
	return text + " It can be resumed, or cancelled (--cancel)."
}

// next returns the command that continues the cutover, or its cancellation.
func (c *Cutover) next(command func(flag string) string) string {
	if c.State == string(record.Cancelling) || c.OnlyCancel {
		return command("--cancel")
	}
	return command("--resume")
}

// cutoverInterrupted holds while no process works on a cutover that is under way.
func cutoverInterrupted(s *Snapshot) (string, time.Time) {
	if c := s.Cutover; c != nil && c.Interrupted {
		return c.String(), time.Time{}
	}
	return "", time.Time{}
}

// cutsOver holds while a process works on a cutover.
func cutsOver(s *Snapshot) (string, time.Time) {
	if c := s.Cutover; c != nil && !c.Interrupted {
		return c.String(), time.Time{}
	}
	return "", time.Time{}
}

func (s *Snapshot) cutoverCommand(flag string) string {
	return s.command("cutover", flag, "--source", "…")
}

// continueCutover returns the command that continues a cutover, or its cancellation.
func continueCutover(s *Snapshot) string { return s.Cutover.next(s.cutoverCommand) }

// unblockSource says how writes to the source are allowed again.
func unblockSource(s *Snapshot) string {
	if s.Cutover != nil {
		return "The cutover lifts the block if it is cancelled: " + s.cutoverCommand("--cancel")
	}
	return "No cutover of this link is known to be under way. If no other program needs the block, lift it on the source's primary: db.adminCommand({setUserWriteBlockMode: 1, global: false})"
}

// Back says which link a link is the way back of.
type Back struct {
	// Link was cut over at At, by the clock of the process that did it; Start is the entry of its target's
	// oplog after which the way back began.
	Link  string    `json:"link"`
	At    time.Time `json:"at"`
	Start *OpTime   `json:"start"`
}

// NewBack returns the way back of the metadata, nil for a link that is not one.
func NewBack(b *checkpoint.Back) *Back {
	if b == nil {
		return nil
	}
	return &Back{Link: b.Link, At: b.At.UTC(), Start: opTime(b.Start, 0)}
}

// String describes it.
func (b *Back) String() string {
	return "the way back of link " + b.Link + ", cut over at " + b.At.UTC().Format("2006-01-02 15:04:05 UTC")
}
