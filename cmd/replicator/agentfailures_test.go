package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/preflight"
)

// A failure of an earlier assignment is not shown: its process may have died before it removed
// it, and started again under the same name.
func TestFailureOfEarlierTerm(t *testing.T) {
	t.Parallel()
	for term, shown := range map[int64]bool{6: false, 7: true, 8: false} {
		state := &share.Status{Partitions: []share.PartitionStatus{{Partition: "a", Member: "m", Holder: &share.Holder{Member: "m", Term: 7}}}}
		f := fleetOf(&linksFile{}, state, map[string]memberFailure{"a": {Member: "m", Term: term, Failure: agent.Failure{Code: 8, Helps: true}}})
		if got := f.Links[0].Failure != nil; got != shown {
			t.Errorf("term %d: shown %t", term, got)
		}
	}
}

// A link that starts again after a failure does not run before it has something to show.
func TestFailuresOf(t *testing.T) {
	t.Parallel()
	failure := &agent.Failure{At: time.Unix(1, 0), Code: 8}
	for name, tc := range map[string]struct {
		link agent.LinkStatus
		want bool
	}{
		"retries":       {agent.LinkStatus{State: agent.Retrying, LastFailure: failure}, true},
		"ended":         {agent.LinkStatus{State: agent.Ended, LastFailure: failure}, true},
		"starts again":  {agent.LinkStatus{State: agent.Running, LastFailure: failure}, true},
		"runs again":    {agent.LinkStatus{State: agent.Running, LastFailure: failure, Run: &agent.Summary{}}, false},
		"starts":        {agent.LinkStatus{State: agent.Running}, false},
		"drains at end": {agent.LinkStatus{State: agent.Draining, LastFailure: failure}, false},
	} {
		tc.link.Link, tc.link.Term = "a", 7
		got := failuresOf(agent.Status{Member: "m", Links: []agent.LinkStatus{tc.link}})
		if f, ok := got["a"]; ok != tc.want || ok && (f.Term != 7 || f.Member != "m") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A link that waits for room is not shown as one that runs.
func TestWaitsShown(t *testing.T) {
	t.Parallel()
	const room = "as many links run as the process has room for"
	told := failuresOf(agent.Status{Member: "m", Links: []agent.LinkStatus{{Link: "a", Term: 7, State: agent.Waiting, Since: time.Unix(5, 0), Why: room}}})
	state := &share.Status{Partitions: []share.PartitionStatus{{Partition: "a", Member: "m", Holder: &share.Holder{Member: "m", Term: 7}}}}
	f := fleetOf(&linksFile{links: []*fileLink{{name: "a"}}}, state, told)
	if l := &f.Links[0]; l.Failure != nil || l.Waits != room {
		t.Errorf("%+v", l)
	}
	if _, now, _, why := f.Links[0].text(); now != "waiting" || why != room {
		t.Errorf("%s: %s", now, why)
	}
}

// TestRetryBoard: a request to start a link again reaches the process that has it, once. It is for the end
// that the operator has seen: not for another one, nor for a process that does not have the link.
func TestRetryBoard(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Moods: oneRun})
	to := client.Open(t, driver.Config{URI: set.URI()})
	board := func(member string) *failureBoard {
		return &failureBoard{target: to, db: "replicator", group: "links", member: member, written: map[string]toldFailure{}}
	}
	ended := func(at int64) agent.Status {
		return agent.Status{Member: "m", Links: []agent.LinkStatus{{Link: "a", Term: 7, State: agent.Ended, LastFailure: &agent.Failure{At: time.Unix(at, 0), Code: 6}}}}
	}
	m, other := board("m"), board("other")
	asked := func(b *failureBoard) (links []string) {
		t.Helper()
		must.Succeed(t, b.retries(t.Context(), func(link string) bool { links = append(links, link); return true }))
		return links
	}
	must.Succeed(t, m.update(t.Context(), ended(1)))
	other.written["b"] = toldFailure{at: time.Unix(1, 0), term: 7}
	for _, tc := range []struct {
		by   *failureBoard
		at   int64
		want bool
	}{{m, 0, false}, {other, 1, false}, {m, 1, true}} {
		if got := must.Get(tc.by.retry(t.Context(), "a", time.Unix(tc.at, 0)))(t); got != tc.want {
			t.Errorf("%s, the end at %d: %t", tc.by.member, tc.at, got)
		}
	}
	if got := asked(other); len(got) > 0 {
		t.Errorf("another process starts %v", got)
	}
	for i, want := range []int{1, 0} {
		if got := asked(m); len(got) != want {
			t.Errorf("look %d: it starts %v", i, got)
		}
	}
	if got := must.Get(m.retry(t.Context(), "a", time.Unix(1, 0)))(t); !got {
		t.Error("it cannot be asked for again")
	}
	must.Succeed(t, m.update(t.Context(), ended(2)))
	if got := asked(m); len(got) > 0 {
		t.Errorf("it starts %v, for an end before the last one", got)
	}
}

// A fault of this machine alone may not exist on another.
func TestFaultOfMachine(t *testing.T) {
	t.Parallel()
	failed := func(checks ...string) error {
		e := &preflight.FailedError{}
		for _, c := range checks {
			e.Findings = append(e.Findings, preflight.Finding{Check: c, Level: preflight.Fail})
		}
		return e
	}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{cli.Usage(&fs.PathError{Op: "open", Path: "/run/secrets/shop", Err: fs.ErrNotExist}), true},
		{cli.Usage(errors.New("--source is missing")), false},
		{failed("spool"), true},
		{failed("spool", "versions"), false},
	} {
		if got := explainLink(tc.err); got.Helps != tc.want {
			t.Errorf("%v: helps %t", tc.err, got.Helps)
		}
	}
}

// TestLateFailure: a process that was suspended says late how a link has ended there. What the process says that has had the link
// since, and whose link has ended too, stays, also if it has the same name: it does not say it again.
func TestLateFailure(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Moods: oneRun})
	to := client.Open(t, driver.Config{URI: set.URI()})
	for _, name := range []string{"next", "m"} {
		group := "links-" + name
		board := func(member string) *failureBoard {
			return &failureBoard{target: to, db: "replicator", group: group, member: member, written: map[string]toldFailure{}}
		}
		ended := func(term, at int64) agent.Status {
			return agent.Status{Links: []agent.LinkStatus{{Link: "a", Term: term, State: agent.Ended, LastFailure: &agent.Failure{At: time.Unix(at, 0), Code: 6}}}}
		}
		late, next := board("m"), board(name)
		stays := func(when string) {
			t.Helper()
			if f := must.Get(readFailures(t.Context(), to, "replicator", group))(t)["a"]; f.Term != 8 || f.Member != name {
				t.Fatalf("%s, %s: %+v", name, when, f)
			}
		}
		say := func(b *failureBoard, s agent.Status) {
			t.Helper()
			s.Member = b.member
			must.Succeed(t, b.update(t.Context(), s))
		}
		say(late, ended(7, 1))
		say(next, ended(8, 2))
		stays("after it was said")
		say(late, ended(7, 3))
		stays("after another end of the earlier term was said")
		if !must.Get(next.retry(t.Context(), "a", time.Unix(2, 0)))(t) {
			t.Errorf("%s: it cannot be asked for again", name)
		}
		starts := func(b *failureBoard) (links []string) {
			t.Helper()
			must.Succeed(t, b.retries(t.Context(), func(link string) bool { links = append(links, link); return true }))
			return links
		}
		if got := starts(late); len(got) > 0 {
			t.Errorf("%s: the earlier process starts %v", name, got)
		}
		say(late, agent.Status{})
		stays("after the earlier process has dropped the link")
		if got := starts(next); len(got) != 1 {
			t.Errorf("%s: it starts %v", name, got)
		}
		say(next, agent.Status{})
		if all := must.Get(readFailures(t.Context(), to, "replicator", group))(t); len(all) > 0 {
			t.Errorf("%s: once it runs again: %v", name, all)
		}
	}
}

// TestTermsBeginAgain: after somebody has deleted the locks the terms of links begin again, and the end of a link in the present one
// takes the place of that of an earlier one. That of a process which has the link now, or is not known not to, stays.
func TestTermsBeginAgain(t *testing.T) {
	t.Parallel()
	set := mongosim.StartTest(t, mongosim.Options{Moods: oneRun})
	to := client.Open(t, driver.Config{URI: set.URI()})
	for name, tt := range map[string]struct {
		holder   *share.Holder
		replaced bool
	}{
		"it has the link":                 {&share.Holder{Member: "m", Term: 2}, true},
		"it has had it":                   {&share.Holder{Member: "m", Term: 57}, false},
		"another one has it":              {&share.Holder{Member: "other", Term: 2}, false},
		"none has it":                     {nil, false},
		"it has had it, and has it again": {&share.Holder{Member: "m", Term: 3}, false},
	} {
		ended := func(member string, term, at int64) agent.Status {
			return agent.Status{Member: member, Links: []agent.LinkStatus{{Link: "a", Term: term, State: agent.Ended, LastFailure: &agent.Failure{At: time.Unix(at, 0), Code: 6}}}}
		}
		board := func(member string) *failureBoard {
			return &failureBoard{
				target: to, db: "replicator", group: name, member: member, written: map[string]toldFailure{},
				holder: func(context.Context, string) (*share.Holder, error) { return tt.holder, nil },
			}
		}
		must.Succeed(t, board("other").update(t.Context(), ended("other", 57, 1)))
		must.Succeed(t, board("m").update(t.Context(), ended("m", 2, 5)))
		if got := must.Get(readFailures(t.Context(), to, "replicator", name))(t)["a"]; (got.Term == 2 && got.Member == "m" && got.At.Unix() == 5) != tt.replaced {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestFailedChecksShown: what a process shows of a link whose startup checks failed names them, as its own output is
// not where an operator looks.
func TestFailedChecksShown(t *testing.T) {
	t.Parallel()
	got := explainLink(fmt.Errorf("link a: %w", &preflight.FailedError{Findings: []preflight.Finding{
		{Level: preflight.Fail, Check: "link", Detail: "it is another", Do: "Use its settings."},
		{Level: preflight.Fail, Check: "source oplog window", Detail: "the oplog is empty"},
		{Level: preflight.Fail, Check: "spool", Detail: "no room", Do: "Make room."},
	}}))
	want := agent.Failure{
		Code:  cli.ExitCheck,
		Error: "startup checks failed: link: it is another; source oplog window: the oplog is empty; spool: no room",
		Do:    "Use its settings. Make room. Nothing was written.",
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestAssignedToNobody: a link that is assigned to a process that has gone does not start there, also once the last
// process has stopped: nobody assigns it to another one.
func TestAssignedToNobody(t *testing.T) {
	t.Parallel()
	state := &share.Status{
		Members: []share.MemberStatus{
			{Member: "m1", Process: "p1", Alive: true},
			{Member: "m2", Process: "p2"},
			{Member: "m3"}, // drained, and not there
		},
		Partitions: []share.PartitionStatus{
			{Partition: "a", Member: "m1", Why: "new"},
			{Partition: "b", Member: "m2", Why: "new"},
			{Partition: "c", Member: "m3", Why: "new"},
			{Partition: "d", Member: "m4", Why: "new"},
			{Partition: "e", Member: "m4", Why: "new", Holder: &share.Holder{Member: "m4"}},
		},
	}
	none := "; there is no coordinator: no agent runs, or one is about to"
	want := map[string][3]string{
		"a": {"m1", "starting", "new"},
		"b": {"-", "no process has it", "it was assigned to m2, which has gone" + none},
		"c": {"-", "no process has it", "it was assigned to m3, which has gone" + none},
		"d": {"-", "no process has it", "it was assigned to m4, which has gone" + none},
		"e": {"m4", "running", "new"},
	}
	check := func(want map[string][3]string) {
		t.Helper()
		file := &linksFile{}
		for _, p := range state.Partitions {
			file.links = append(file.links, &fileLink{name: p.Partition})
		}
		for _, l := range fleetOf(file, state, nil).Links {
			if is, ok := want[l.Link]; ok {
				if member, now, _, why := l.text(); [3]string{member, now, why} != is {
					t.Errorf("%s: %s, %s, %s; want %v", l.Link, member, now, why, is)
				}
			}
		}
	}
	check(want)
	state.Coordinator = &share.Holder{Member: "m1"}
	check(map[string][3]string{"d": {"-", "no process has it", "it was assigned to m4, which has gone; m1, the coordinator, assigns it to another process"}})
}
