package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
)

// linkRows are the links that /links shows.
type linkRows struct {
	At time.Time `json:"at"`
	// Links are the links, the worst first, and Omitted how many more there are.
	Links   []linkRow `json:"links"`
	Omitted int       `json:"omitted"`
	// Error is why the metadata could not be read: then Links are those of this process only.
	Error string `json:"error"`
}

// linkRow is one link.
type linkRow struct {
	Link string `json:"link"`
	// Leader is the process that runs it, empty if none does.
	Leader string `json:"leader"`
	// From says where all that comes from: process, for one of this process, or metadata.
	From    string         `json:"from"`
	Verdict status.Verdict `json:"verdict"`
	// State, Consistent and the figures are null where they are not known.
	State                  *string  `json:"state"`
	Consistent             *bool    `json:"consistent"`
	LagSeconds             *float64 `json:"lagSeconds"`
	OplogWindowLeftSeconds *float64 `json:"oplogWindowLeftSeconds"`
	// At is the time of what is shown: of the position that was recorded last, for the metadata.
	At time.Time `json:"at"`
	// Page is the address of its page, from that of /links, empty if this process has none.
	Page string `json:"page"`
}

// maxLinkRows is how many links are shown.
const maxLinkRows = 1000

// ownRow is the row of a link of this process.
func ownRow(s *status.Snapshot, page string) linkRow {
	r := linkRow{
		Link: s.Link, From: "process", Verdict: s.Verdict, State: &s.State, Consistent: &s.Consistent,
		LagSeconds: s.AgeOfOldestUnappliedSeconds, OplogWindowLeftSeconds: s.OplogWindowLeftSeconds, At: s.At, Page: page,
	}
	if s.Lease != nil {
		r.Leader = cmp.Or(s.Lease.Leader, s.Lease.Process)
	}
	return r
}

// storedLinks reads the links of a metadata database, but not those that copy collections again.
func storedLinks(ctx context.Context, target mongo.Caller, db string) ([]checkpoint.Listed, error) {
	links, err := checkpoint.List(ctx, target, db)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(links, func(l checkpoint.Listed) bool { return resync.IsPart(l.Link) }), nil
}

// readStored reads what the metadata say of a link, and which process runs it.
func readStored(ctx context.Context, target mongo.Caller, db string, l *checkpoint.Listed) (stored status.Stored, leader string, err error) {
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: db, Link: l.Link})
	if err != nil {
		return stored, "", err
	}
	seen, found, err := store.Look(ctx, lease.NewWatch(""))
	if err != nil {
		return stored, "", err
	}
	if found && !seen.Lease.Free && !seen.Lease.Record.Grant.ID.IsZero() {
		leader = seen.Lease.Record.Holder
	}
	return status.Stored{Link: l.Link, State: l.State, Lease: seen.Lease, At: time.Now()}, leader, nil
}

// unreadable is the verdict on a link whose metadata cannot be read.
func unreadable(fault error) status.Verdict {
	return status.Verdict{
		Name: "unreadable", Level: status.Broken, Sentence: "The link's metadata cannot be read: " + fault.Error() + ".", Since: time.Now().UTC(), Also: []string{},
	}
}

// storedRow is the row of a link as its metadata say.
func storedRow(ctx context.Context, target mongo.Caller, db string, l *checkpoint.Listed) (linkRow, error) {
	r := linkRow{Link: l.Link, From: "metadata", At: time.Now().UTC()}
	if l.Err != nil {
		r.Verdict = unreadable(l.Err)
		return r, nil //nolint:nilerr // the row has it
	}
	stored, leader, err := readStored(ctx, target, db, l)
	if err != nil {
		return r, fmt.Errorf("read the lease of the link %s: %w", l.Link, err)
	}
	r.Leader, r.Verdict, r.LagSeconds = leader, stored.Verdict(), stored.Lag()
	reached := l.State.Reached()
	consistent := !reached.Applied.IsNull() && len(l.State.LeftOut) == 0
	r.Consistent = &consistent
	if !reached.Applied.IsNull() {
		r.At = time.UnixMilli(reached.AppliedWall).UTC()
	}
	return r, nil
}

// rowsOf returns the rows of this process's links, own, with those of the metadata: all but what a
// process that leads says itself.
func rowsOf(ctx context.Context, target mongo.Caller, db string, own []linkRow) linkRows {
	all := linkRows{At: time.Now().UTC(), Links: []linkRow{}}
	links, err := storedLinks(ctx, target, db)
	for i := range links {
		at := slices.IndexFunc(own, func(r linkRow) bool { return r.Link == links[i].Link })
		if at >= 0 && !own[at].standsBy() {
			continue
		}
		if len(all.Links) >= maxLinkRows {
			all.Omitted++
			continue
		}
		var r linkRow
		if r, err = storedRow(ctx, target, db, &links[i]); err != nil {
			break
		}
		if at >= 0 {
			r.Page = own[at].Page
		}
		all.Links = append(all.Links, r)
	}
	if err != nil {
		all.Error, all.Links = err.Error(), nil
	}
	for _, r := range own {
		if !slices.ContainsFunc(all.Links, func(s linkRow) bool { return s.Link == r.Link }) {
			all.Links = append(all.Links, r)
		}
	}
	slices.SortStableFunc(all.Links, worse)
	return all
}

// standsBy reports whether another process runs the link, which is not asked: the metadata say
// more of it than this process knows.
func (r *linkRow) standsBy() bool { return r.State != nil && *r.State == "standby" }

// levels are the levels, the worst first.
var levels = []status.Level{status.Broken, status.Unknown, status.Attention, status.Working, status.Good}

// worse orders rows, the worst first.
func worse(a, b linkRow) int {
	return cmp.Or(
		cmp.Compare(slices.Index(levels, a.Verdict.Level), slices.Index(levels, b.Verdict.Level)),
		cmp.Compare(lagOf(b), lagOf(a)), cmp.Compare(a.Link, b.Link),
	)
}

func lagOf(r linkRow) float64 {
	if r.LagSeconds == nil {
		return -1
	}
	return *r.LagSeconds
}
