package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/status"
)

// TestIdle: a command that waits for a link which no process runs says so at once, and once.
func TestIdle(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: oneRun})
	target := client.Open(t, driver.Config{URI: set.URI()})
	keeper := lease.NewKeeper(lease.KeeperConfig{Target: target, DB: "replicator", Collection: "links", ID: "l", Holder: "vm"})
	store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: "l", Process: "vm", Keeper: keeper, Converts: "1"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "rs0"}}))
	if !isIdle(t.Context(), store) {
		t.Error("it was never run")
	}
	leading, over := keeper.Lead(t.Context())
	link := must.Get(store.AcquireBy(leading, 0, lease.Claim{TTL: lease.DefaultTTL, Why: "mirror"}))(t)
	if isIdle(t.Context(), store) {
		t.Error("it is run")
	}
	must.Succeed(t, link.Convert(t.Context(), checkpoint.Converting{ID: "1", By: "me", Since: time.Now()}))
	must.Succeed(t, keeper.Release(t.Context()))
	if isIdle(t.Context(), store) {
		t.Error("its processes stand by while a cutover converts it")
	}
	link = must.Get(store.AcquireBy(leading, 0, lease.Claim{TTL: lease.DefaultTTL, Why: "mirror"}))(t)
	must.Succeed(t, link.Reverted(t.Context()))
	over()
	must.Succeed(t, keeper.Release(t.Context()))
	if !isIdle(t.Context(), store) {
		t.Error("its process has ended")
	}

	const told = "No process runs link l: "
	for name, f := range map[string]func(cli.Output) error{
		"pause": func(out cli.Output) error {
			f := askFlags{linkFlags: linkFlags{Link: "l"}, Within: 3 * askPoll}
			return f.ask(t.Context(), out, store, request.Pause, nil)
		},
		"cut": func(out cli.Output) error {
			c := cutCommand{linkFlags: linkFlags{Link: "l"}, Timeout: time.Second}
			return c.next(t.Context(), out, store)
		},
	} {
		var complaints bytes.Buffer
		if err := f(cli.Output{Results: new(bytes.Buffer), Complaints: &complaints}); err == nil || strings.Count(err.Error(), "link l")+strings.Count(err.Error(), `link "l"`) != 1 {
			t.Errorf("%s ends with %v", name, err)
		}
		if text := complaints.String(); strings.Count(text, told) != 1 {
			t.Errorf("%s says %q", name, text)
		}
	}

	var complaints bytes.Buffer
	out := cli.Output{Results: new(bytes.Buffer), Complaints: &complaints}
	ctx, cancel := context.WithCancelCause(t.Context())
	looked := 0
	note := newIdleNote(store, out)
	w := repairWatch{board: &waiting{func() {
		if looked++; looked == 3 {
			cancel(errors.New("enough"))
		}
	}}, link: "l", out: out, idle: note}
	if err := w.run(ctx, make([]request.RepairArgs, 2), false); err == nil {
		t.Error("it has ended")
	}
	if text := complaints.String(); strings.Count(text, told) != 1 {
		t.Errorf("it says %q", text)
	}
}

// waiting is a board whose requests stay open; it calls then when one is read.
type waiting struct{ then func() }

func (*waiting) Ask(context.Context, request.Ask) (request.Record, error) {
	return request.Record{ID: "1", State: request.Asked}, nil
}

func (w *waiting) Get(context.Context, string) (request.Record, error) {
	w.then()
	return request.Record{ID: "1", State: request.Asked}, nil
}

// toldIdle is where a command complains; it ends the command once that has said that no process runs the link.
type toldIdle struct {
	bytes.Buffer
	end context.CancelFunc
}

// Write implements io.Writer.
func (w *toldIdle) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), "No process runs link l: this waits") {
		w.end()
	}
	return n, err
}

// TestCommandsSayIdle: repair and resync say it.
func TestCommandsSayIdle(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, Moods: oneRun})
	store := must.Get(checkpoint.New(checkpoint.Config{Target: client.Open(t, driver.Config{URI: set.URI()}), Link: "l"}))(t)
	at := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, AppliedWall: 100_000, FetchFrom: at, Source: checkpoint.Source{SetName: "rs0"}}))
	for _, args := range [][]string{{"repair", "--id=1", "--apply"}, {"resync"}} {
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		said := toldIdle{end: end}
		code := execute(cli.Ends{Soft: ctx, Hard: ctx}, append(args, "--namespace=shop.a", "--link=l", "--target="+set.URI()), nil, new(bytes.Buffer), &said)
		if text := said.String(); code != cli.ExitUnexpected || strings.Count(text, "No process runs link l: this waits") != 1 {
			t.Errorf("%s: code %d, %s", args[0], code, text)
		}
		end()
	}
}

// TestCancelledIdle: a cancelled cutover of a link that no process runs does not say just that the link goes on.
func TestCancelledIdle(t *testing.T) {
	c := startCutoverLink(t)
	insert(t, c.target, "shop", "a", bson.D{{Key: "_id", Value: 9}, {Key: "email", Value: "x"}})
	waive := "--waive=verified,deferred-indexes,foreign-writes"
	c.check(map[string]status.Standing{"verified": status.Waived, "deferred-indexes": status.Waived, "foreign-writes": status.Waived}, waive)
	const idle = "No process has begun to run link test within 10s: nothing of the source is applied until one does, as replicator run --link test …."
	for _, runs := range []bool{true, false} {
		c.moves(cli.ExitFailed, `cannot become unique`, waive)
		if !runs {
			c.kill(failure.ErrStopped)
			c.end()
		}
		code, stdout, stderr := invoke(t, nil, c.move("--cancel")...)
		if code != cli.ExitOK || strings.Contains(stderr, idle) == runs {
			t.Errorf("it runs: %t: code %d, %s%s", runs, code, stdout, stderr)
		}
		if runs {
			c.cut()
			c.check(map[string]status.Standing{"verified": status.Waived, "deferred-indexes": status.Waived, "foreign-writes": status.Waived}, waive)
		}
	}
}
