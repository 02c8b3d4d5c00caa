package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// errUnanswered is wrapped by the error of an answer that is not stored.
var errUnanswered = errors.New("answer a request of an operator")

// actOn acts on the open records of a list, the oldest first. One that cannot be carried out fails. One
// that may be carried out later holds up those that follow, unless it does not matter which of them is first.
func (c *Controller) actOn(ctx context.Context, list []request.Record) error {
	var later error
	c.attend(list)
	for i := len(list) - 1; i >= 0; i-- {
		r := &list[i]
		if !r.Open() {
			continue
		}
		err := c.act(ctx, r)
		anyOrder := r.Kind == request.Verify
		switch {
		case err == nil:
		case ctx.Err() != nil, passes(err), errors.Is(err, errUnanswered):
			return errors.Join(later, err)
		case lasts(err), anyOrder && c.failsFor(r.ID) >= markFor:
			if err := c.answer(ctx, r, request.Failed, err.Error()); err != nil {
				return errors.Join(later, err)
			}
		case anyOrder:
			later = errors.Join(later, err)
			continue
		default:
			return errors.Join(later, err)
		}
		delete(c.failing, r.ID)
	}
	return later
}

// failsFor returns for how long a request could not be carried out.
func (c *Controller) failsFor(id string) time.Duration {
	now := time.Now()
	since, before := c.failing[id]
	if !before {
		c.failing[id] = now
		return 0
	}
	return now.Sub(since)
}

// attend notes which requests are open, and whether one of them is new.
func (c *Controller) attend(list []request.Record) {
	open := map[string]bool{}
	for i := range list {
		if r := &list[i]; r.Open() {
			open[r.ID] = true
			if !c.open[r.ID] {
				c.asked = time.Now()
			}
		}
	}
	c.open = open
}

// lasts reports whether an error cannot pass.
func lasts(err error) bool {
	return !servererr.Classify(err).Passes() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// act acts on an open record. Acting on it again, after a process died in between, changes
// nothing.
func (c *Controller) act(ctx context.Context, r *request.Record) error {
	if err := r.Check(); err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	switch r.Kind {
	case request.Pause:
		return c.pause(ctx, r)
	case request.Resume:
		return c.resume(ctx, r)
	case request.Throttle:
		return c.throttle(ctx, r)
	case request.Again:
		return c.again(ctx, r)
	case request.Cut:
		return c.cut(ctx, r)
	case request.Repair:
		return c.repair(ctx, r)
	case request.Verify:
		return c.verify(ctx, r)
	default:
		return c.level(ctx, r)
	}
}

func (c *Controller) paused() *request.Paused {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings.Paused
}

// pause pauses the link. The request is done once nothing is in flight.
func (c *Controller) pause(ctx context.Context, r *request.Record) error {
	now := c.paused()
	switch {
	case now != nil && now.Request != r.ID:
		return c.answer(ctx, r, request.Done, fmt.Sprintf("it was paused already, since %s by %s", stamp(now.Since), cmp.Or(now.By, "an operator")))
	case now == nil && r.State == request.Working:
		return c.answer(ctx, r, request.Done, "it was resumed before everything in flight was finished")
	case now == nil:
		err := c.set(ctx, func(s *request.Settings) {
			s.Paused = &request.Paused{Request: r.ID, Since: r.At, By: r.By, Why: r.Why}
		})
		if err != nil {
			return err
		}
	}
	if !c.brake.settled() {
		return c.answer(ctx, r, request.Working, "nothing new is applied; operations in flight are being completed")
	}
	outcome := "paused"
	if at := c.cfg.Applied(); !at.IsNull() {
		outcome += fmt.Sprintf("; the oplog is applied up to %s", at)
	}
	return c.answer(ctx, r, request.Done, outcome)
}

// resume ends a pause. A process that sets that and dies before it answers has left the request working.
func (c *Controller) resume(ctx context.Context, r *request.Record) error {
	was := c.paused()
	switch {
	case was == nil && r.State == request.Working:
		return c.answer(ctx, r, request.Done, "resumed") // it was set, and not answered
	case was == nil:
		return c.answer(ctx, r, request.Done, "it was not paused")
	}
	if err := c.answer(ctx, r, request.Working, "being resumed"); err != nil {
		return err
	}
	if err := c.set(ctx, func(s *request.Settings) { s.Paused = nil }); err != nil {
		return err
	}
	return c.answer(ctx, r, request.Done, fmt.Sprintf("resumed after %s", max(0, r.At.Sub(was.Since)).Round(time.Second)))
}

func (c *Controller) throttle(ctx context.Context, r *request.Record) error {
	change, err := r.Change()
	if err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	c.mu.Lock()
	next := c.settings.Throttle
	c.mu.Unlock()
	set(&next.BytesPerSecond, change.ApplyBytesPerSecond)
	set(&next.OpsPerSecond, change.ApplyOpsPerSecond)
	if change.Adaptive != nil {
		next.Adaptive = *change.Adaptive
	}
	if next.Adaptive && next.BytesPerSecond == 0 && next.OpsPerSecond == 0 {
		if change.Adaptive != nil && *change.Adaptive {
			return c.answer(ctx, r, request.Refused, "adaptive works below a limit: set a limit of applying as well")
		}
		next.Adaptive = false // the last limit was taken away
	}
	next.Request, next.At, next.By, next.Why = r.ID, r.At, r.By, r.Why
	copied, err := c.limitCopy(ctx, &change)
	if err != nil {
		return err
	}
	if err := c.set(ctx, func(s *request.Settings) { s.Throttle = next }); err != nil {
		return err
	}
	return c.answer(ctx, r, request.Done, "applies "+next.Describe()+copied)
}

func set(limit *int64, l request.Limit) {
	if l.Given {
		*limit = l.PerSecond
	}
}

// limitCopy changes the limits of the copy, and describes them if it has.
func (c *Controller) limitCopy(ctx context.Context, change *request.Change) (string, error) {
	if !change.Default && !change.CopyBytesPerSecond.Given && !change.CopyOpsPerSecond.Given {
		return "", nil
	}
	now, err := c.cfg.Requests.Read(ctx)
	if err != nil && !request.Damaged(err) { // damaged limits are replaced
		return "", err
	}
	bytes, ops := now.BytesPerSecond, now.OpsPerSecond
	if change.Default {
		bytes, ops = -1, -1
	}
	set(&bytes, change.CopyBytesPerSecond)
	set(&ops, change.CopyOpsPerSecond)
	err = c.under(ctx, func(ctx context.Context, by request.Leader) error {
		return c.cfg.Requests.LimitUnder(ctx, by, bytes, ops)
	})
	if err != nil {
		return "", err
	}
	if change.Default {
		return "; copies with the limits that it was started with", nil
	}
	return "; copies " + request.Describe(ops, bytes), nil
}

// again copies collections again, and follows that to its end.
func (c *Controller) again(ctx context.Context, r *request.Record) error {
	args, err := r.Again()
	if err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	if r.State == request.Asked {
		for _, ns := range args.All() {
			err := c.under(ctx, func(ctx context.Context, by request.Leader) error {
				return c.cfg.Requests.ResyncUnder(ctx, by, ns)
			})
			if err != nil {
				return err
			}
		}
		return c.answer(ctx, r, request.Working, "asked for")
	}
	all, err := c.cfg.Requests.Read(ctx)
	if err != nil && (!request.Damaged(err) || !hasAll(args.All(), all.Resync)) {
		return err
	}
	state, outcome := follow(args.All(), all.Resync)
	return c.answer(ctx, r, state, outcome)
}

// hasAll reports whether there is a request for each of some collections.
func hasAll(names []oplog.Namespace, all []request.Resync) bool {
	return !slices.ContainsFunc(names, func(ns oplog.Namespace) bool {
		return !slices.ContainsFunc(all, func(r request.Resync) bool { return r.NS == ns })
	})
}

// copyStates says how far the copy of a collection is.
var copyStates = map[string]string{
	request.Asked: "waits to be copied", request.Copying: "is being copied", request.Joining: "is copied, and the oplog is applied to the copy",
	request.Failed: "could not be copied",
}

// follow sums up how far the copies of collections are.
func follow(names []oplog.Namespace, all []request.Resync) (state, outcome string) {
	var failed, open, notes []string
	for _, ns := range names {
		now := request.Resync{NS: ns, State: request.Failed, Why: "the request was removed"}
		for _, one := range all {
			if one.NS == ns {
				now = one
			}
		}
		text := string(ns) + " " + cmp.Or(copyStates[now.State], "is "+now.State)
		if now.Why != "" {
			text += ": " + now.Why
		}
		switch {
		case now.State == request.Failed:
			failed = append(failed, text)
		case now.Open():
			open = append(open, text)
		case now.Why != "":
			notes = append(notes, "; "+string(ns)+": "+now.Why)
		}
	}
	switch {
	case len(open) > 0:
		return request.Working, strings.Join(append(open, failed...), "; ")
	case len(failed) > 0:
		return request.Failed, strings.Join(failed, "; ")
	}
	return request.Done, fmt.Sprintf("%d of %d collections are the same as the source's again", len(names), len(names)) + strings.Join(notes, "")
}

func (c *Controller) level(ctx context.Context, r *request.Record) error {
	level, err := r.Level()
	if err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	outcome := "logs from level " + level + " on"
	if level == "default" {
		level, outcome = "", "logs as it was started"
	}
	if err := c.set(ctx, func(s *request.Settings) { s.Level = level }); err != nil {
		return err
	}
	return c.answer(ctx, r, request.Done, outcome)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
