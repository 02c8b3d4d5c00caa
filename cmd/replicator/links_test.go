package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Requests to links go to the target's metadata, whether the links run or not.
func TestLinks(t *testing.T) {
	source, target := twoSets(t)
	on := "--target=" + target.URI()
	code, stdout, stderr := invoke(t, nil, "links", on)
	if code != cli.ExitOK || stdout != "" || !strings.Contains(stderr, "There is no link in replicator") {
		t.Errorf("no link: code %d, %s%s", code, stdout, stderr)
	}
	code, _, stderr = invoke(t, nil, "throttle", on, "--link=test")
	if code != cli.ExitUsage || !strings.Contains(stderr, "--link: there is no link test in replicator of the target, which has none") {
		t.Errorf("no such link: code %d, %s", code, stderr)
	}
	l := startLink(t, append(uris(source, target), "--await=100ms")...)
	awaitLink(l)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	code, stdout, _ = invoke(t, nil, "links", on)
	if want := regexp.MustCompile(`^LINK +SOURCE +WRITERS +APPLIED +OF +STATE\ntest +src +16 +\d+:\d+ t\d+ +\S+Z +consistent\n$`); code != cli.ExitOK || !want.MatchString(stdout) {
		t.Errorf("code %d, %s", code, stdout)
	}
	code, _, stderr = invoke(t, nil, "resync", on, "--link=tset", "--namespace=shop.a")
	if code != cli.ExitUsage || !strings.Contains(stderr, "which has test") {
		t.Errorf("a typo: code %d, %s", code, stderr)
	}

	// The environment has settings to start a link with, not requests.
	environ := []string{"REPLICATOR_TARGET=" + target.URI(), "REPLICATOR_LINK=test", "REPLICATOR_MAX_BYTES_PER_SECOND=1MiB"}
	for _, tt := range []struct{ args, want string }{
		{"", "Link test copies: as many bytes per second as it was started with, as many documents per second as it was started with.\nLink test applies without a limit.\n"},
		{"--max-ops-per-second=500", "Link test copies, within a few seconds if it runs: as many bytes per second as it was started with, at most 500 documents per second.\n"},
		{"--max-bytes-per-second=20MiB", "Link test copies, within a few seconds if it runs: at most 20MiB per second, at most 500 documents per second.\n"},
		{"--max-ops-per-second=0", "Link test copies, within a few seconds if it runs: at most 20MiB per second, documents without a limit.\n"},
		{"", "Link test copies: at most 20MiB per second, documents without a limit.\nLink test applies without a limit.\n"},
		{"--default", "Link test copies, within a few seconds if it runs: as many bytes per second as it was started with, as many documents per second as it was started with.\n"},
	} {
		code, stdout, stderr := invoke(t, environ, append([]string{"throttle"}, strings.Fields(tt.args)...)...)
		if code != cli.ExitOK || stdout != tt.want {
			t.Errorf("throttle %s: code %d, %s%s", tt.args, code, stdout, stderr)
		}
	}

	code, stdout, stderr = invoke(t, environ, "resync", "--namespace=shop.a", "--no-wait")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "shop.a: asked for. Link test starts it") {
		t.Errorf("resync: code %d, %s%s", code, stdout, stderr)
	}
	said(t, cli.ExitOK, `(?m)^shop\.a +asked `, environ, "resync", "--list")
	if _, _, stderr := invoke(t, environ, "resync", "--list"); !strings.HasPrefix(stderr, "No process runs link test: ") {
		t.Errorf("resync --list: %s", stderr)
	}
	said(t, cli.ExitOK, `resync +asked +by .*@`, environ, "events")
	// The outcome of an earlier request does not count.
	insert(t, target, "replicator", "requests", bson.D{
		{Key: "_id", Value: "test/shop.a"}, {Key: "ns", Value: "shop.a"}, {Key: "asked", Value: time.UnixMilli(5)}, {Key: "state", Value: request.Done}, {Key: "why", Value: ""},
	})
	wait := startCommand(t, environ, "resync", "--namespace=shop.a")
	wait.see("shop.a asked for")
	// It is in the state that the link says.
	tell(t, target, "replicator", bson.D{{Key: "update", Value: "requests"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "ns", Value: "shop.a"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: request.Joining}}}}},
	}}}})
	tell(t, target, "replicator", bson.D{{Key: "update", Value: "control"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "kind", Value: "resync"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: request.Working}}}}},
		{Key: "multi", Value: true},
	}}}})
	wait.see("shop.a is copied, and the oplog is applied to the copy")
	tell(t, target, "replicator", bson.D{{Key: "update", Value: "requests"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "ns", Value: "shop.a"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: request.Done}}}}},
	}}}})
	wait.see("shop.a is the same as the source's again")
	if code := wait.end(); code != cli.ExitOK {
		t.Errorf("code %d", code)
	}
}

var emptyDoc = bson.Binary{Data: []byte{5, 0, 0, 0, 0}}

// TestLinksLeftOut: the position of a link is where it left out a collection, and
// collections left out are named, above all those no longer retried.
func TestLinksLeftOut(t *testing.T) {
	_, target := twoSets(t)
	opts, err := driver.Parse(driver.Config{URI: target.URI()})
	if err != nil {
		t.Fatal(err)
	}
	set, err := driver.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	store, err := checkpoint.New(checkpoint.Config{Target: set, Link: "test"})
	if err != nil {
		t.Fatal(err)
	}
	at := func(seconds uint32) oplog.OpTime { return oplog.NewOpTime(seconds, 1, 2) }
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at(5), AppliedWall: 5_000, FetchFrom: at(5), Source: checkpoint.Source{SetName: "src"}}))
	link, err := store.Acquire(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []oplog.Namespace{"shop.a", "shop.b"} {
		must.Succeed(t, request.New(store).LeaveOut(t.Context(), link, request.Resync{NS: ns, Asked: time.UnixMilli(7)}))
	}
	must.Succeed(t, request.New(store).Answer(t.Context(), link, "shop.b", request.Failed, "too long"))
	cp := checkpoint.Progress{Applied: at(9), AppliedWall: 9_000, FetchFrom: at(9)}
	must.Succeed(t, link.Advance(t.Context(), cp, []checkpoint.Position{{}}, checkpoint.Source{SetName: "src"}))
	for _, doc := range []bson.D{
		{
			{Key: "_id", Value: bson.D{{Key: "link", Value: "test"}, {Key: "ns", Value: "shop2.v"}, {Key: "index", Value: ""}, {Key: "view", Value: true}}},
			{Key: "source", Value: "shop.v"},
			{Key: "why", Value: "it has no viewOn"},
			{Key: "spec", Value: emptyDoc},
		},
		{
			{Key: "_id", Value: bson.D{{Key: "link", Value: "test"}, {Key: "ns", Value: "shop.a"}, {Key: "index", Value: "x_1"}}},
			{Key: "uuid", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}},
			{Key: "deferred", Value: bson.A{}},
			{Key: "absent", Value: true},
			{Key: "spec", Value: emptyDoc},
		},
		{
			{Key: "_id", Value: bson.D{{Key: "link", Value: "test"}, {Key: "ns", Value: "shop.b"}, {Key: "index", Value: ""}}},
			{Key: "uuid", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}},
			{Key: "deferred", Value: bson.A{"temp", "validator"}},
			{Key: "spec", Value: emptyDoc},
		},
		{
			{Key: "_id", Value: bson.D{{Key: "link", Value: "other"}, {Key: "ns", Value: "shop.a"}, {Key: "index", Value: "x_1"}}},
			{Key: "uuid", Value: bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}},
			{Key: "deferred", Value: bson.A{}},
			{Key: "absent", Value: true},
			{Key: "spec", Value: emptyDoc},
		},
	} {
		body, err := bson.Marshal(bson.D{{Key: "insert", Value: "deferred"}, {Key: "documents", Value: bson.A{doc}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Call(t.Context(), mongo.Command{DB: "replicator", Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, _ := invoke(t, nil, "links", "--target="+target.URI())
	want := regexp.MustCompile(`\ntest +src +1 +5:1 t2 +1970-01-01T00:00:05Z +consistent, except collections that are copied again: shop.a, ` +
		`but for shop.b, which could NOT be copied again and is left out: too long; the oplog was applied up to 9:1 t2; without the view shop.v: it has no viewOn; without the index x_1 of shop.a; without the validator of shop.b\n$`)
	if code != cli.ExitOK || !want.MatchString(stdout) {
		t.Errorf("code %d, %s", code, stdout)
	}

	damage := must.Marshal(t, bson.D{
		{Key: "update", Value: "deferred"},
		{Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id.link", Value: "test"}, {Key: "absent", Value: true}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "uuid", Value: 5}}}}},
		}}},
	})
	must.Get(set.Call(t.Context(), mongo.Command{DB: "replicator", Body: damage}))(t)
	code, stdout, _ = invoke(t, nil, "links", "--target="+target.URI())
	if code != cli.ExitOK || !strings.Contains(stdout, "; cannot read which views, indexes and options it lacks: ") {
		t.Errorf("with a damaged document: code %d, %s", code, stdout)
	}
}

func TestLinkState(t *testing.T) {
	at := func(seconds uint32) oplog.OpTime { return oplog.OpTime{TS: bson.Timestamp{T: seconds, I: 1}, Term: 2} }
	for want, s := range map[string]checkpoint.State{
		"consistent": {Applied: at(5)},
		"not consistent: applying the oplog up to 7:1 t2": {Applied: at(5), CopiedUntil: at(7)},
		"not consistent: copying, not listed yet (copy 2: rs0/a rolled back)": {Applied: at(5), Copy: &checkpoint.Copy{
			Number: 2, Phase: checkpoint.Copying, Why: "rs0/a rolled back",
		}},
		"not consistent: copying": {Applied: at(5), Copy: &checkpoint.Copy{Number: 1, Phase: checkpoint.Copying, Listed: true}},
		// That it has been applied so far is not all: the source must not have rolled back.
		"not consistent: copied, applying the oplog up to 5:1 t2": {Applied: at(5), CopiedUntil: at(5), Copy: &checkpoint.Copy{Number: 1, Phase: checkpoint.Replaying, Stop: at(5)}},
		"consistent (copy 3: x)":                                  {Applied: at(5), CopiedUntil: at(5), Copy: &checkpoint.Copy{Number: 3, Phase: checkpoint.Copied, Stop: at(5), Why: "x"}},
	} {
		if got := linkState(&s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// running is a running command, and its output.
type running struct {
	t    *testing.T
	out  logLines
	code chan int
}

// startCommand starts a command line that prints to out.
func startCommand(t *testing.T, environ []string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &running{t: t, code: make(chan int, 1)}
	r.out.more = sync.NewCond(&r.out.mu)
	var wait sync.WaitGroup
	wait.Go(func() {
		r.code <- execute(cli.Ends{Soft: ctx, Hard: context.WithoutCancel(ctx)}, args, environ, &r.out, io.Discard)
		r.out.end()
	})
	t.Cleanup(func() {
		cancel(context.Canceled)
		wait.Wait()
	})
	return r
}

// see waits for a line.
func (r *running) see(want string) {
	r.t.Helper()
	for {
		line, ok := r.out.next()
		if !ok {
			r.t.Fatalf("it ended before %q came; it printed\n%s", want, &r.out)
		}
		if strings.Contains(string(line), want) {
			return
		}
	}
}

func (r *running) end() int { return <-r.code }
