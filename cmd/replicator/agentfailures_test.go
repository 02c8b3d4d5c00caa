package main

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/oplogrep/replicator/agent"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/lease/share"
	"github.com/oplogrep/replicator/preflight"
)

// A failure of an earlier assignment is not shown: its process may have died before it removed
// it, and started again under the same name.
func TestFailureOfEarlierTerm(t *testing.T) {
	t.Parallel()
	for term, shown := range map[int64]bool{6: false, 7: true, 8: false} {
		state := &share.Status{Partitions: []share.PartitionStatus{{Partition: "a", Member: "m", Holder: &share.Holder{Member: "m", Term: 7}}}}
		f := fleetOf(&linksFile{}, state, map[string]memberFailure{"a": {"m", term, agent.Failure{Code: 8, Helps: true}}})
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
		"runs again":    {agent.LinkStatus{State: agent.Running, LastFailure: failure, Run: &agent.Brief{}}, false},
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

// What is wrong on this machine alone may work on another.
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
