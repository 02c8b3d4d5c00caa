package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// requestBoard is the state of a link in a target over time.
type requestBoard struct {
	began time.Time
	acts  []act // by time
}

// act is the state from a time on.
type act struct {
	at         time.Duration
	state, why string
	applied    uint32
	err        error
	gone       bool
	phase      checkpoint.CopyPhase
}

func (b *requestBoard) now() act {
	var now act
	for _, a := range b.acts {
		if time.Since(b.began) >= a.at {
			now = a
		}
	}
	return now
}

func (b *requestBoard) Read(context.Context) (request.Requests, error) {
	a := b.now()
	if a.state == "" {
		return request.Requests{}, a.err
	}
	return request.Requests{Resync: []request.Resync{
		{NS: "shop.other", State: request.Failed}, {NS: "shop.a", State: a.state, Why: a.why},
	}}, a.err
}

func (b *requestBoard) Load(context.Context) (checkpoint.State, bool, error) {
	a := b.now()
	s := checkpoint.State{Applied: oplog.OpTime{TS: bson.Timestamp{T: a.applied}}}
	if a.phase != "" {
		s.Copy = &checkpoint.Copy{Phase: a.phase}
	}
	return s, !a.gone, nil
}

func TestResyncWatch(t *testing.T) {
	stepDown := &servererr.Error{Code: servererr.NotWritablePrimary, Message: "not primary"}
	for name, tt := range map[string]struct {
		acts  []act
		want  string // the output, a line each
		fault string // the error has that
		took  time.Duration
	}{
		"all goes well": {
			[]act{{state: request.Asked, applied: 1}, {at: 2 * time.Second, state: request.Copying, applied: 1}, {at: 5 * time.Second, state: request.Joining, applied: 2}, {at: 7 * time.Second, state: request.Done, applied: 3}},
			"shop.a asked for\nshop.a is being copied\nshop.a is copied, and the oplog is applied to the copy\nshop.a is the same as the source's again\n", "", 7 * time.Second,
		},
		"progress, not more often than every ten seconds": {
			[]act{{state: request.Copying, why: "1 of 9", applied: 1}, {at: 5 * time.Second, state: request.Copying, why: "2 of 9", applied: 2}, {at: 12 * time.Second, state: request.Copying, why: "3 of 9", applied: 3}, {at: 15 * time.Second, state: request.Done, applied: 4}},
			"shop.a is being copied: 1 of 9\nshop.a is being copied: 2 of 9\nshop.a is the same as the source's again\n", "", 15 * time.Second,
		},
		"in the middle of the first copy": {
			[]act{{state: request.Asked, applied: 1, phase: checkpoint.Copying}, {at: 90 * time.Second, state: request.Done, applied: 2, phase: checkpoint.Copied}},
			"shop.a asked for\n! Link l has not finished its initial sync\nshop.a is the same as the source's again\n", "", 90 * time.Second,
		},
		"refused": {
			[]act{{state: request.Asked, applied: 1}, {at: time.Second, state: request.Failed, why: "shop is not mirrored", applied: 1}},
			"shop.a asked for\n", "shop.a could not be copied again: shop is not mirrored", time.Second,
		},
		"nobody runs it, then somebody does": {
			[]act{{state: request.Asked, applied: 1}, {at: 90 * time.Second, state: request.Done, applied: 2}},
			"shop.a asked for\n! Link l has not moved for 20s: if no process runs it\nshop.a is the same as the source's again\n", "", 90 * time.Second,
		},
		"an idle source": {
			[]act{{state: request.Copying, applied: 1}, {at: 10 * time.Second, state: request.Copying, applied: 2}, {at: 20 * time.Second, state: request.Copying, applied: 3}, {at: 30 * time.Second, state: request.Done, applied: 4}},
			"shop.a is being copied\nshop.a is the same as the source's again\n", "", 30 * time.Second,
		},
		"a step-down": {
			[]act{{state: request.Asked, applied: 1}, {at: time.Second, state: request.Asked, applied: 1, err: stepDown}, {at: 4 * time.Second, state: request.Done, applied: 2}},
			"shop.a asked for\n! The target cannot be read: not primary\nshop.a is the same as the source's again\n", "", 4 * time.Second,
		},
		"a lost connection":          {[]act{{state: request.Asked, applied: 1, err: &mongo.LostError{Host: "a", Err: errors.New("reset")}}, {at: time.Second, state: request.Done, applied: 1}}, "! The target cannot be read\nshop.a is the same as the source's again\n", "", time.Second},
		"not allowed":                {[]act{{state: request.Asked, applied: 1, err: &servererr.Error{Code: servererr.Unauthorized, Message: "not authorized"}}}, "", "not authorized", 0},
		"the request is gone":        {[]act{{state: request.Asked, applied: 1}, {at: time.Second, state: "", applied: 1}}, "shop.a asked for\n", "the request was removed", time.Second},
		"the link is gone":           {[]act{{state: request.Asked, applied: 1}, {at: time.Second, state: request.Asked, applied: 1, gone: true}}, "shop.a asked for\n", "the link l was removed", time.Second},
		"stopped, the request stays": {[]act{{state: request.Asked, applied: 1}}, "shop.a asked for\n! Link l has not moved\n", "stopped waiting for shop.a to be copied again, which has not started yet", 100 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var results bytes.Buffer
				ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Second, errors.New("enough"))
				defer cancel()
				w := &resyncWatch{
					store: &requestBoard{began: time.Now(), acts: tt.acts}, ns: "shop.a", link: "l", moved: time.Now(),
					applied: oplog.OpTime{TS: bson.Timestamp{T: 1}}, out: cli.Output{Results: &results, Complaints: marked{&results}},
				}
				began := time.Now()
				err := w.run(ctx)
				if time.Since(began) != tt.took {
					t.Errorf("it took %s, want %s", time.Since(began), tt.took)
				}
				if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
					t.Errorf("got %v, want %q", err, tt.fault)
				}
				got, want := strings.Split(results.String(), "\n"), strings.Split(tt.want, "\n")
				if len(got) != len(want) {
					t.Fatalf("got\n%swant\n%s", &results, tt.want)
				}
				for i := range got {
					if line := atTime.ReplaceAllString(got[i], ""); !strings.HasPrefix(line, want[i]) || want[i] == "" && line != "" {
						t.Errorf("got %q, want %q", line, want[i])
					}
				}
			})
		})
	}
}

// atTime is the start of a line.
var atTime = regexp.MustCompile(`^\S+Z  `)

// marked puts a mark before the output.
type marked struct{ to *bytes.Buffer }

func (m marked) Write(p []byte) (int, error) {
	m.to.WriteString("! ")
	return m.to.Write(p)
}

func TestResyncCodes(t *testing.T) {
	for _, err := range []error{leftError(errors.New("x")), resyncError(errors.New("x"))} {
		if code, hint := explain(err); code != cli.ExitUnexpected || hint == "" {
			t.Errorf("%T: %d, %q", err, code, hint)
		}
	}
}

// TestResyncList: a line for each request, with what it waits for.
func TestResyncList(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	list := []request.Resync{
		{NS: "shop.a", State: request.Done, Asked: at},
		{NS: "shop.b\n", State: request.Asked, Asked: at, Why: "waits: namespace/shop.b is locked by p"},
	}
	for asJSON, want := range map[bool]string{
		false: "COLLECTION  STATE  REQUESTED             WHY\n" +
			"shop.a      done   2026-01-02T03:04:05Z  -\n" +
			"shop.b\\n    asked  2026-01-02T03:04:05Z  waits: namespace/shop.b is locked by p\n",
		true: `{"namespace":"shop.a","state":"done","requested":"2026-01-02T03:04:05Z"}` + "\n" +
			`{"namespace":"shop.b\n","state":"asked","requested":"2026-01-02T03:04:05Z","why":"waits: namespace/shop.b is locked by p"}` + "\n",
	} {
		var got bytes.Buffer
		if err := printResyncs(&got, list, asJSON); err != nil || got.String() != want {
			t.Errorf("%v\ngot\n%swant\n%s", err, &got, want)
		}
	}
}

// TestResyncNothing: a collection that the source does not have, as with a mistyped name, is said not to exist.
func TestResyncNothing(t *testing.T) {
	t.Parallel()
	source := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "src", Seed: 1})
	target := mongosim.StartTest(t, mongosim.Options{Moods: oneRun, SetName: "dst", Seed: 2})
	fill(t, source, "shop", "a", 3)
	flags, _ := copies(t, source, target)
	l := startLink(t, flags...)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	for name, want := range map[string]string{"nope": "again: the source has no such collection", "a": "again"} {
		c := startCommand(t, nil, "resync", "--link=test", "--namespace=shop."+name, "--target="+target.URI())
		c.see("shop." + name + " is the same as the source's " + want)
		if code := c.end(); code != cli.ExitOK {
			t.Errorf("%s: code %d", name, code)
		}
	}
	c := startCommand(t, nil, "events", "--link=test", "--target="+target.URI())
	c.see("the source's again; shop.nope: the source has no such collection")
	c.end()
	c = startCommand(t, nil, "events", "--link=test", "--target="+target.URI())
	c.see("the source's again  ") // of the other, as it is there
	c.end()
	l.drain()
}
