package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify"
	"github.com/oplogrep/replicator/verify/standing"
)

func reportLine(t *testing.T, kind verify.Kind, ns string, id any) string {
	t.Helper()
	d := map[string]any{"kind": kind, "namespace": "t" + ns, "sourceNamespace": ns}
	if id != nil {
		d["idBSON"] = must.Get(bson.Marshal(bson.D{{Key: "_id", Value: id}}))(t)
	}
	return string(must.Get(json.Marshal(d))(t)) + "\n"
}

// TestRepairReport: each document of a report is in one request, no request is too large, and what
// a repair does not remove is named with the command that does.
func TestRepairReport(t *testing.T) {
	t.Parallel()
	var report strings.Builder
	for i := range 3000 {
		report.WriteString(reportLine(t, verify.Differs, "d.a", bson.ObjectID{byte(i), byte(i >> 8)}))
	}
	report.WriteString(reportLine(t, verify.Missing, "d.b", "x"))
	report.WriteString(reportLine(t, verify.Extra, "d.b", "y"))
	report.WriteString(reportLine(t, verify.Extra, "d.b", "y"))
	for _, k := range []verify.Kind{verify.Order, verify.OfCollection, verify.OfIndex, verify.OfOption, verify.OfView} {
		report.WriteString(reportLine(t, k, "d.c", nil))
	}
	report.WriteString(`{"kind":"summary","result":"different"}` + "\n")
	w := must.Get(parseRepairs(strings.NewReader(report.String())))(t)
	all := must.Get(w.requests())(t)
	buckets := otherWork{kind: verify.OfIndex, source: "d.system.buckets.c"}
	if r := buckets.remedy("l"); !strings.HasSuffix(r, "resync --link l --namespace d.c") {
		t.Errorf("the buckets of a time series: %s", r)
	}
	count := map[string]int{}
	for i := range all {
		text := must.Get(json.Marshal(all[i]))(t)
		r := request.Record{Kind: request.Repair, Args: text}
		if err := r.Check(); err != nil || len(text) > request.MostRepairBytes {
			t.Errorf("request %d has %d bytes: %v", i, len(text), err)
		}
		if all[i].Target != "t"+all[i].Namespace {
			t.Errorf("%s is %s", all[i].Namespace, all[i].Target)
		}
		count[all[i].Namespace] += len(all[i].IDs)
	}
	if count["d.a"] != 3000 || count["d.b"] != 2 || len(count) != 2 || len(all) > 20 || len(w.others) != 5 {
		t.Errorf("%v in %d requests, %d others", count, len(all), len(w.others))
	}
	for i := range w.others {
		if r := w.others[i].remedy("l"); !strings.Contains(r, "resync --link l --namespace d.c") && w.others[i].kind != verify.OfView {
			t.Errorf("%s: %s", w.others[i].kind, r)
		}
	}
	for text, want := range map[string]string{
		"{": "line 1", `{"kind":"new"}`: "not known", `{"kind":"missing","namespace":"a.b","sourceNamespace":"a.b"}`: "idBSON",
		`{"kind":"missing"}`: "without its namespaces",
		// What a verification leaves that was not completed, or has not begun.
		"": "no difference", "\n": "no difference",
	} {
		if _, err := parseRepairs(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := parseRepairs(strings.NewReader(`{"kind":"summary"}`)); err != nil {
		t.Errorf("a report without differences: %v", err)
	}
}

// TestRepairVerified: the known differences of a link are repaired, and those without an exact _id are
// reported as left.
func TestRepairVerified(t *testing.T) {
	t.Parallel()
	found := func(kind verify.Kind, id string) standing.Found { return standing.NewFound(string(kind), id, "", "") }
	text := func(v any) string {
		typ, value, err := bson.MarshalValue(v)
		must.Succeed(t, err)
		return verify.IDText(bson.RawValue{Type: typ, Value: value})
	}
	nan := bson.RawValue{Type: bson.TypeDouble, Value: []byte{2, 0, 0, 0, 0, 0, 0xf8, 0x7f}}
	st := standing.Standing{Differences: 110, Differing: []standing.Differing{
		{NS: "td.a", SourceNS: "d.a", Differences: 105, Found: []standing.Found{
			found(verify.Missing, text(int64(7))), found(verify.Differs, text("a\"…")), found(verify.Extra, text(strings.Repeat("x", 1000))),
			found(verify.Extra, verify.IDText(nan)),
		}},
		{NS: "td.b", SourceNS: "d.b", Differences: 5, Found: []standing.Found{found(verify.Extra, text(bson.ObjectID{1})), found(verify.OfIndex, "")}},
	}}
	w := verifiedRepairs(&st)
	all := must.Get(w.requests())(t)
	want := []any{int64(7), "a\"…", bson.ObjectID{1}}
	for i := range all {
		for _, v := range must.Get(all[i].Values())(t) {
			if typ, value, err := bson.MarshalValue(want[0]); err != nil || !v.Equal(bson.RawValue{Type: typ, Value: value}) {
				t.Errorf("%s, want %v", v, want[0])
			}
			want = want[1:]
		}
	}
	if len(all) != 2 || all[0].Target != "td.a" || len(want) > 0 || len(w.others) != 1 || w.unlisted != 106 {
		t.Errorf("%+v; %v is left, %d others, %d unlisted", all, want, len(w.others), w.unlisted)
	}
	var out bytes.Buffer
	must.Succeed(t, w.print(cli.Output{Results: &out}, &repairCommand{linkFlags: linkFlags{Link: "l"}}))
	if !strings.Contains(out.String(), "106 differences that are counted only") || !strings.Contains(out.String(), "compared again: replicator verify --link l ") {
		t.Error(out.String())
	}
}

// TestRepairFlags: what cannot be meant is refused.
func TestRepairFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		c    repairCommand
		want string
	}{
		{repairCommand{}, "--from"},
		{repairCommand{From: "x", Namespace: "a.b"}, "leave the other flags out"},
		{repairCommand{From: "x", FromVerified: true}, "leave the other flags out"},
		{repairCommand{Namespace: "a.b", ID: []string{"1"}, FromID: "1", ToID: "2"}, "either"},
		{repairCommand{Namespace: "a.b", FromID: "1"}, "--to-id"},
		{repairCommand{Namespace: "a"}, "DB.COLLECTION"},
		{repairCommand{Namespace: "a.b", ID: []string{"abc"}}, "quotes"},
		{repairCommand{Namespace: "a.b", ID: []string{"[1]"}}, "not an _id"},
		{repairCommand{Namespace: "a.b", ID: []string{`1, "x": 2`}}, "not an _id"},
		{repairCommand{From: "/nowhere"}, "no such file"},
	} {
		if _, err := tt.c.plan(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.c, err, tt.want)
		}
	}
	c := repairCommand{Namespace: "a.b", ID: []string{"1", `"x"`, `{"$oid": "0123456789abcdef01234567"}`}}
	w := must.Get(c.plan())(t)
	if len(w.list) != 1 || len(w.list[0].ids) != 3 {
		t.Errorf("%+v", w)
	}
}

// answers is a board whose requests end as a test says.
type answers struct {
	ends  []request.Record
	asked int
}

func (a *answers) Ask(context.Context, request.Ask) (request.Record, error) {
	a.asked++
	return request.Record{ID: strconv.Itoa(a.asked - 1), State: request.Asked}, nil
}

func (a *answers) Get(_ context.Context, id string) (request.Record, error) {
	var n int
	_, err := fmt.Sscan(id, &n)
	return a.ends[n], err
}

// TestRepairVerdict: the exit code says whether everything is the same.
func TestRepairVerdict(t *testing.T) {
	t.Parallel()
	end := func(state, outcome string) request.Record { return request.Record{State: state, Outcome: outcome} }
	done, differs := end(request.Done, "ok"), end(request.Failed, request.StillDiffers+": x")
	failed, refused := end(request.Failed, "no cut"), end(request.Refused, "capped")
	for _, tt := range []struct {
		ends   []request.Record
		others bool
		want   int
		hint   string
	}{
		{[]request.Record{done, done}, false, cli.ExitOK, ""},
		{[]request.Record{done, done}, true, cli.ExitFailed, "which command does"},
		{[]request.Record{differs, done}, false, cli.ExitFailed, "All others are repaired."},
		{[]request.Record{differs, done}, true, cli.ExitFailed, "All other documents that can be are repaired."},
		{[]request.Record{failed, differs, done}, false, cli.ExitFailed, "1 other requests were not carried out, or not verified."},
		{[]request.Record{failed, done}, true, cli.ExitUnexpected, "safe"},
		{[]request.Record{refused}, false, cli.ExitUnexpected, "safe"},
	} {
		var out bytes.Buffer
		w := repairWatch{board: &answers{ends: tt.ends}, link: "l", out: cli.Output{Results: &out}}
		err := w.run(t.Context(), make([]request.RepairArgs, len(tt.ends)), tt.others)
		got, hint := cli.ExitOK, ""
		if e, ok := errors.AsType[*cli.Error](err); ok {
			got, hint = e.Code, e.Hint
		}
		if !strings.Contains(hint, tt.hint) {
			t.Errorf("%v: the hint %q, want %q", tt.ends, hint, tt.hint)
		}
		if got != tt.want || strings.Count(out.String(), "\n") != len(tt.ends) {
			t.Errorf("%v: %d, want %d: %s", tt.ends, got, tt.want, out.String())
		}
	}
}

// TestRepairLongID: an _id that is too long for a request does not keep the other documents from being
// repaired; the output says what to do about it.
func TestRepairLongID(t *testing.T) {
	t.Parallel()
	id := func(v any) []byte { return must.Marshal(t, bson.D{{Key: "_id", Value: v}}) }
	w := &repairWork{list: []*namespaceWork{
		{source: "d.a", target: "d.a", ids: [][]byte{id(1), id(strings.Repeat("x", request.MostRepairBytes)), id(strings.Repeat("y", request.MostRepairBytes)), id(2)}},
		{source: "d.b", target: "d.b", ids: [][]byte{id(strings.Repeat("x", request.MostRepairBytes))}},
		{source: "d.c", target: "d.c", ids: [][]byte{id(3)}},
	}}
	all := must.Get(w.requests())(t)
	if len(all) != 2 || all[0].Namespace != "d.a" || len(all[0].IDs) != 2 || all[1].Namespace != "d.c" || len(all[1].IDs) != 1 {
		t.Errorf("%d requests: %+v", len(all), all)
	}
	if len(w.others) != 2 || !strings.Contains(w.others[0].text, "too much for a request") || !strings.Contains(w.others[1].remedy("l"), "resync --link l --namespace d.b") {
		t.Errorf("%+v", w.others)
	}
}

// TestRepairNothing: where no differences are known, nothing is offered to be done about them.
func TestRepairNothing(t *testing.T) {
	source, target := twoSets(t)
	l := startLink(t, append(uris(source, target), "--await=100ms", "--spool-dir="+t.TempDir())...)
	awaitLink(l)
	code, stdout, stderr := invoke(t, nil, "repair", "--from-verified", "--target="+target.URI(), "--link=test")
	if want := "No differences are known.\n"; code != cli.ExitOK || stdout != want || stderr != "" {
		t.Errorf("code %d, %q, want %q; %s", code, stdout, want, stderr)
	}
	l.drain()
	if code := l.end(); code != cli.ExitOK {
		t.Errorf("code %d\n%s", code, &l.log)
	}
}
