package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/history"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/status"
)

// ask sends a request to a process, without a token.
func ask(t *testing.T, url, body string) (code int, answer string) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	must.Succeed(t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, string(must.Get(io.ReadAll(resp.Body))(t))
}

// rowsAt reads /links.
func rowsAt(t *testing.T, address string) linkRows {
	t.Helper()
	_, body := get(t, "http://"+address+"/links")
	var rows linkRows
	if err := json.Unmarshal([]byte(body), &rows); err != nil || rows.Error != "" || rows.At.IsZero() {
		t.Fatalf("%v: %s", err, body)
	}
	return rows
}

// describes checks what a process answers against its own description of it.
func describes(t *testing.T, address string) {
	t.Helper()
	read := func(path string) any {
		_, body := get(t, "http://"+address+path)
		return must.Get(jsonschema.UnmarshalJSON(strings.NewReader(body)))(t)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must.Succeed(t, c.AddResource("openapi.json", read("/openapi.json")))
	for _, path := range []string{"/status", "/history", "/history?range=24h", "/links", "/requests"} {
		route, _, _ := strings.Cut(path, "?")
		schema := must.Get(c.Compile("openapi.json#/paths/" + strings.ReplaceAll(route, "/", "~1") + "/get/responses/200/content/application~1json/schema"))(t)
		if err := schema.Validate(read(path)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		// It says something.
		if err := schema.Validate(true); err == nil {
			t.Errorf("%s: anything would do", path)
		}
	}
	if code, body := get(t, "http://"+address+"/"); code != http.StatusOK || !strings.Contains(body, "<html") {
		t.Errorf("the page: %d %.100s", code, body)
	}
}

// TestRunServes: what a process serves besides its status: whether it is ready, requests, which
// are stored in the target, and the links of the target, for a link of this process as it says
// itself, for others as the metadata say.
func TestRunServes(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=127.0.0.1:0")...)
	address, _ := l.await("serving status, health and metrics")["listen"].(string)
	awaitLink(l)
	l.await("verdict", "to", "steady")
	if code, body := get(t, "http://"+address+"/readyz"); code != http.StatusOK || body != "ready\n" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := ask(t, "http://"+address+"/requests", `{"kind": "dance"}`); code != http.StatusBadRequest || !strings.Contains(body, "pause") {
		t.Errorf("an unknown kind: %d %s", code, body)
	}
	code, body := ask(t, "http://"+address+"/requests", `{"kind": "logLevel", "why": "to see more", "args": {"level": "debug"}}`)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(body), &made); err != nil || code != http.StatusAccepted || made.ID == "" {
		t.Errorf("%d %s", code, body)
	}
	_, body = get(t, "http://"+address+"/requests")
	var list []struct{ ID, Kind, By, Why string }
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].Why != "to see more" || list[0].By != "127.0.0.1" {
		t.Errorf("%v: %s", err, body)
	}

	describes(t, address)

	second := startLink(t, append(uris(source, target), "--await=100ms", "--listen=127.0.0.1:0")...)
	standby, _ := second.await("serving status, health and metrics")["listen"].(string)
	second.await("state changed", "to", "standby")
	own, other := rowsAt(t, address), rowsAt(t, standby)
	if len(own.Links) != 1 || own.Links[0].From != "process" || own.Links[0].Page != "./" || own.Links[0].Verdict.Name != "steady" || *own.Links[0].State != "steady" {
		t.Errorf("%+v", own)
	}
	if len(other.Links) != 1 || other.Links[0].From != "metadata" || other.Links[0].Verdict.Name != "stored" || other.Links[0].Verdict.Level != status.Good ||
		other.Links[0].Leader != own.Links[0].Leader || own.Links[0].Leader == "" || other.Links[0].Page != "./" || other.Links[0].OplogWindowLeftSeconds != nil {
		t.Errorf("%+v", other)
	}
	http.DefaultClient.CloseIdleConnections()
	second.drain()
	if code := second.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &second.log)
	}
}

// TestRowsOf: the rows of a link that this process leads are its own; where it stands by, or has
// no such link, those of the metadata; and if these cannot be read its own are there, with the reason.
func TestRowsOf(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--listen=none")...)
	awaitLink(l)
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Fatalf("code %d\n%s", code, &l.log)
	}
	steady, standby := "steady", "standby"
	good := status.Verdict{Level: status.Good, Name: "own"}
	opts := must.Get(driver.Parse(driver.Config{URI: target.URI()}))(t)
	set := must.Get(driver.Open(t.Context(), opts))(t)
	for name, tt := range map[string]struct {
		own  []linkRow
		want string
	}{
		"nobody has it":  {nil, "test=stored"},
		"it leads":       {[]linkRow{{Link: "test", State: &steady, Verdict: good}}, "test=own"},
		"it stands by":   {[]linkRow{{Link: "test", State: &standby, Verdict: good}}, "test=stored"},
		"it has another": {[]linkRow{{Link: "a", State: &steady, Verdict: good}}, "test=stored a=own"},
	} {
		rows := rowsOf(t.Context(), set, "replicator", tt.own)
		if got := namesOf(rows.Links); got != tt.want || rows.Error != "" {
			t.Errorf("%s: %s, error %q", name, got, rows.Error)
		}
	}
	set.Close()
	rows := rowsOf(t.Context(), set, "replicator", []linkRow{{Link: "test", State: &standby, Verdict: good}})
	if namesOf(rows.Links) != "test=own" || rows.Error == "" {
		t.Errorf("%+v", rows)
	}
	dead := &status.Cutover{Step: "freeze", Interrupted: true}
	if row := storedRow(&checkpoint.Listed{Link: "x"}, dead, nil, nil, 0); row.Verdict.Name != "cutover-interrupted" || row.Verdict.Level != status.Broken {
		t.Errorf("%+v", row)
	}
	if row := storedRow(&checkpoint.Listed{Link: "x", Err: http.ErrBodyNotAllowed}, nil, nil, nil, 0); row.Verdict.Level != status.Broken {
		t.Errorf("%+v", row)
	}
}

// TestRowOfEnded: the page takes a row whose position is older than a minute for one of a link that is not heard any
// more. A link that was cut over or promoted has no later position, and its row is as good as on the first day.
func TestRowOfEnded(t *testing.T) {
	t.Parallel()
	stopped := checkpoint.Listed{Link: "x", State: checkpoint.State{
		Applied: oplog.OpTime{TS: bson.Timestamp{T: 1_700_000_000, I: 1}, Term: 1}, AppliedWall: 1_700_000_000_000,
	}}
	if row := storedRow(&stopped, nil, nil, nil, 0); time.Since(row.At) < time.Hour {
		t.Errorf("a link that nothing runs: as of %s", row.At)
	}
	for name, promoted := range map[string]*checkpoint.Promoted{"cut over": nil, "promoted": {Exact: true}} {
		ended := stopped
		ended.State.Over = &checkpoint.Over{At: time.Unix(1_700_000_060, 0), By: "ann@ops1", Promoted: promoted}
		if row := storedRow(&ended, nil, nil, nil, 0); row.Verdict.Level != status.Good || time.Since(row.At) > time.Minute {
			t.Errorf("%s: as of %s, %+v", name, row.At, row.Verdict)
		}
	}
}

// counting counts commands, but getMore: how large its batches are is the server's choice.
type counting struct {
	mongo.Caller
	n int
}

func (c *counting) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.Body.Index(0).Key() != "getMore" {
		c.n++
	}
	return c.Caller.Call(ctx, cmd)
}

// TestManyRows: the rows of many links cost a few commands. Of more than are shown the worst are there, and
// the others are counted.
func TestManyRows(t *testing.T) {
	t.Parallel()
	_, target := twoSets(t)
	opts := must.Get(driver.Parse(driver.Config{URI: target.URI()}))(t)
	set := must.Get(driver.Open(t.Context(), opts))(t)
	t.Cleanup(set.Close)
	// Others than this release's, so that one document is enough.
	var docs []bson.Raw
	for i := range maxLinkRows + 200 {
		docs = append(docs, must.Get(bson.Marshal(bson.D{{Key: "_id", Value: fmt.Sprintf("l%04d", i)}, {Key: "version", Value: 99}}))(t))
	}
	must.Succeed(t, metadata.Run(t.Context(), set, metadata.Write("replicator", "insert", metadata.Links, "documents", docs...), int64(len(docs))))
	calls := &counting{Caller: set}
	rows := rowsOf(t.Context(), calls, "replicator", []linkRow{{Link: "zz", Verdict: status.Verdict{Level: status.Good}}}).worst()
	if calls.n > 5 || rows.Error != "" {
		t.Errorf("%d commands, error %q", calls.n, rows.Error)
	}
	if n := len(rows.Links); n != maxLinkRows || rows.Omitted != 201 || rows.Links[n-1].Link != "l0999" || rows.Links[0].Verdict.Name != "unreadable" {
		t.Errorf("%d rows, %d more, %+v", n, rows.Omitted, rows.Links[n-1])
	}
}

func namesOf(rows []linkRow) string {
	var list []string
	for i := range rows {
		list = append(list, rows[i].Link+"="+rows[i].Verdict.Name)
	}
	return strings.Join(list, " ")
}

// TestWorse: the worst link is first, then the one that lags most.
func TestWorse(t *testing.T) {
	t.Parallel()
	lag := func(s float64) *float64 { return &s }
	rows := []linkRow{
		{Link: "good", Verdict: status.Verdict{Level: status.Good}},
		{Link: "lags", Verdict: status.Verdict{Level: status.Good}, LagSeconds: lag(2)},
		{Link: "zero", Verdict: status.Verdict{Level: status.Good}, LagSeconds: lag(0)},
		{Link: "working", Verdict: status.Verdict{Level: status.Working}},
		{Link: "unknown", Verdict: status.Verdict{Level: status.Unknown}},
		{Link: "attention", Verdict: status.Verdict{Level: status.Attention}},
		{Link: "broken", Verdict: status.Verdict{Level: status.Broken}},
		{Link: "also broken", Verdict: status.Verdict{Level: status.Broken}},
	}
	slices.SortStableFunc(rows, worse)
	var got []string
	for _, r := range rows {
		got = append(got, r.Link)
	}
	if want := "also broken, broken, unknown, attention, working, lags, zero, good"; strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
}

// TestSharedRow: the row of a link that another member of the fleet has.
func TestSharedRow(t *testing.T) {
	t.Parallel()
	for want, at := range map[string]share.PartitionStatus{
		"unknown: m1 runs the link, and its page has more.": {Partition: "l", Member: "m2", Holder: &share.Holder{Member: "m1"}},
		"unknown: m2 is to run the link: fewest links.":     {Partition: "l", Member: "m2", Why: "fewest links"},
		"broken: No process runs the link: no room.":        {Partition: "l", Why: "no room"},
	} {
		if r := sharedRow(&at, memberFailure{}); string(r.Verdict.Level)+": "+r.Verdict.Sentence != want || r.Link != "l" {
			t.Errorf("%+v, want %s", r, want)
		}
	}
}

// TestSharedRowOfEnded: the row of a link that has ended on the member that has it, or waits there, does not say that it runs.
func TestSharedRowOfEnded(t *testing.T) {
	t.Parallel()
	assigned, ended := time.Unix(1000, 0).UTC(), time.Unix(9000, 0).UTC()
	at := share.PartitionStatus{Partition: "l", Member: "m1", Since: assigned, Holder: &share.Holder{Member: "m1", Term: 7}}
	for want, told := range map[string]memberFailure{
		"broken: The link has ended on m1 with exit code 6: too old. Copy it again.":              {Member: "m1", Term: 7, Failure: agent.Failure{Code: 6, Error: "too old", Do: "Copy it again."}},
		"attention: The link has ended on m1 with exit code 8: gone. It is started again there. ": {Member: "m1", Term: 7, Failure: agent.Failure{Code: 8, Error: "gone", Helps: true}},
		"working: m1 has the link, which waits: no room. ":                                        {Member: "m1", Term: 7, Waits: "no room"},
		"unknown: m1 runs the link, and its page has more. ":                                      {Member: "m1", Term: 6, Failure: agent.Failure{Code: 6, Error: "too old"}},
	} {
		told.At = ended
		r := sharedRow(&at, told)
		if since := r.Verdict.Since; told.Term == 7 && !since.Equal(ended) || told.Term != 7 && !since.Equal(assigned) {
			t.Errorf("%q since %s", r.Verdict.Sentence, since)
		}
		if got := string(r.Verdict.Level) + ": " + r.Verdict.Sentence + " " + r.Verdict.Next; got != want || r.Leader != "m1" {
			t.Errorf("%q, want %q; leader %s", got, want, r.Leader)
		}
	}
}

// TestSharedRowHasExitCode: a link whose metadata are here, and which has ended on the member that has it, is shown with its exit code, not
// only as one that no process runs. One that a process runs by now, or that was cut over, is not.
func TestSharedRowHasExitCode(t *testing.T) {
	t.Parallel()
	at := share.PartitionStatus{Partition: "l", Member: "m1", Holder: &share.Holder{Member: "m1", Term: 7}}
	ended := memberFailure{Member: "m1", Term: 7, Failure: agent.Failure{Code: 6, Error: "too old", Do: "Copy it again."}}
	const stored = "No process runs the link. As of the metadata, all is there."
	for name, tt := range map[string]struct {
		known linkRow
		told  memberFailure
		want  string
	}{
		"ended":          {linkRow{From: "metadata", Verdict: status.Verdict{Level: status.Broken, Sentence: stored}}, ended, "The link has ended on m1 with exit code 6: too old. Copy it again."},
		"told nothing":   {linkRow{From: "metadata", Verdict: status.Verdict{Level: status.Broken, Sentence: stored}}, memberFailure{}, stored + " "},
		"runs elsewhere": {linkRow{From: "metadata", Leader: "p", Verdict: status.Verdict{Level: status.Good, Sentence: "runs"}}, ended, "runs "},
		"cut over":       {linkRow{From: "metadata", Verdict: status.Verdict{Level: status.Good, Sentence: "Cut over"}}, ended, "Cut over "},
		"of this member": {linkRow{From: "process", Verdict: status.Verdict{Level: status.Broken, Sentence: "here"}}, ended, "here "},
	} {
		tt.known.Link = "l"
		all := linkRows{Links: []linkRow{tt.known}}
		all.share(sharedRow(&at, tt.told))
		r := &all.Links[0]
		if got := r.Verdict.Sentence + " " + r.Verdict.Next; got != tt.want || len(all.Links) != 1 || (name == "ended") != slices.Contains(r.Verdict.Also, stored) {
			t.Errorf("%s: %q, want %q: %+v", name, got, tt.want, all.Links)
		}
	}
	all := linkRows{}
	if all.share(sharedRow(&at, ended)); len(all.Links) != 1 || all.Links[0].Leader != "m1" {
		t.Errorf("its metadata are elsewhere: %+v", all.Links)
	}
}

// TestStreamed: an event has its place in the stream as its id there.
func TestStreamed(t *testing.T) {
	t.Parallel()
	if list := streamed([]history.Event{{ID: 3, Seq: 9}}); len(list) != 1 || list[0].ID != 9 || list[0].Body.(history.Event).ID != 3 {
		t.Errorf("%+v", list)
	}
}
