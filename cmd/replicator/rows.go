package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/verify/standing"
)

// linkRows are the links that /links shows.
type linkRows struct {
	At time.Time `json:"at"`
	// Links are the links, the worst first: at most a thousand, and Omitted is how many more there are.
	Links   []linkRow `json:"links"`
	Omitted int       `json:"omitted"`
	// Error is why the metadata, or the assignment of links, could not be read. Then links may be
	// missing; those of this process are there.
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
	// At is the time of the state shown: if it is from the metadata, of the last recorded position. A link
	// that was cut over or promoted has no later one, and does not become old.
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
	if found {
		leader = holderOf(&seen.Lease)
	}
	stored = status.Stored{Link: l.Link, State: l.State, Lease: seen.Lease, At: time.Now()}
	under, err := status.Cutovers(ctx, target, db, l.Link)
	if err != nil {
		return stored, leader, err
	}
	stored.Cutover = cutoverOf(under, l.Link)
	if stored.Guard, err = openWrites(ctx, &guard.Store{Target: target, DB: db, Link: l.Link}); err != nil {
		return stored, leader, err
	}
	if stored.Deferred, err = notRestored(ctx, target, db, l); err != nil {
		return stored, leader, err
	}
	known, err := standing.Read(ctx, target, db, l.Link)
	stored.Diverged = known.Diverged
	return stored, leader, err
}

// notRestored returns how many indexes and collections of a promoted link do not have all options of the source, 0 for other links:
// these need no command.
func notRestored(ctx context.Context, target mongo.Caller, db string, l *checkpoint.Listed) (int, error) {
	if over := l.State.Over; over == nil || over.Promoted == nil {
		return 0, nil
	}
	specs, err := ddl.ReadDeferred(ctx, target, db, l.Link)
	return len(specs), err
}

// openWrites are the foreign writes of the metadata that were not cleared, nil if the target was not watched yet.
func openWrites(ctx context.Context, store *guard.Store) (*guard.State, error) {
	st, err := store.Read(ctx)
	if err != nil || st == nil {
		return nil, err
	}
	cleared, err := store.Cleared(ctx)
	if err != nil {
		return nil, err
	}
	st.Clear(cleared)
	return st, nil
}

// cutoverOf is the cutover of a link that is under way, nil for none.
func cutoverOf(all map[string]status.Cutover, link string) *status.Cutover {
	if c, ok := all[link]; ok {
		return &c
	}
	return nil
}

// holderOf is the process that has a lease that ends unless it is renewed, empty if none has.
func holderOf(s *lease.Sighting) string {
	if s.Free || s.Record.Grant.ID.IsZero() {
		return ""
	}
	return s.Record.Holder
}

// unreadable is the verdict on a link whose metadata cannot be read.
func unreadable(fault error) status.Verdict {
	return status.Verdict{
		Name: "unreadable", Level: status.Broken, Sentence: "The link's metadata cannot be read: " + fault.Error() + ".", Since: time.Now().UTC(), Also: []string{},
	}
}

// storedRow is the row of a link as its metadata say.
func storedRow(l *checkpoint.Listed, cutover *status.Cutover, open *guard.State, diverged []checkpoint.Diverged, deferred int) linkRow {
	r := linkRow{Link: l.Link, From: "metadata", At: time.Now().UTC()}
	if l.Err != nil {
		r.Verdict = unreadable(l.Err)
		return r
	}
	stored := status.Stored{Link: l.Link, State: l.State, Lease: l.Lease, Cutover: cutover, Guard: open, Diverged: diverged, Deferred: deferred, At: time.Now()}
	r.Leader, r.Verdict, r.LagSeconds = holderOf(&l.Lease), stored.Verdict(), stored.Lag()
	reached := l.State.Reached()
	consistent := !reached.Applied.IsNull() && len(l.State.LeftOut) == 0
	r.Consistent = &consistent
	if !reached.Applied.IsNull() && l.State.Over == nil {
		r.At = time.UnixMilli(reached.AppliedWall).UTC()
	}
	return r
}

// rowsOf returns the rows of this process's links, own, with those of the metadata: all but what a
// process that leads says itself, and but links that copy collections again.
func rowsOf(ctx context.Context, target mongo.Caller, db string, own []linkRow) linkRows {
	all := linkRows{At: time.Now().UTC(), Links: []linkRow{}}
	links, err := checkpoint.Survey(ctx, target, db)
	if err != nil {
		all.Error = err.Error()
	}
	under, err := status.Cutovers(ctx, target, db, "")
	if err != nil && all.Error == "" {
		all.Error = err.Error()
	}
	inexact := &inexact{}
	if len(links) > 0 { // without a target the answer would be late, and have no more
		if inexact, err = surveyInexact(ctx, target, db); err != nil && all.Error == "" {
			all.Error = err.Error()
		}
	}
	for i := range links {
		if resync.IsPart(links[i].Link) {
			continue
		}
		at := slices.IndexFunc(own, func(r linkRow) bool { return r.Link == links[i].Link })
		if at >= 0 && !own[at].standsBy() {
			continue
		}
		diverged, err := inexact.divergedOf(ctx, links[i].Link)
		if err != nil && all.Error == "" {
			all.Error = err.Error()
		}
		deferred, err := notRestored(ctx, target, db, &links[i])
		if err != nil && all.Error == "" {
			all.Error = err.Error()
		}
		r := storedRow(&links[i], cutoverOf(under, links[i].Link), inexact.guard[links[i].Link], diverged, deferred)
		if at >= 0 {
			r.Page = own[at].Page
		}
		all.Links = append(all.Links, r)
	}
	all.add(own...)
	return all
}

// add adds the rows of links that are not there.
func (all *linkRows) add(rows ...linkRow) {
	for _, r := range rows {
		if !slices.ContainsFunc(all.Links, func(s linkRow) bool { return s.Link == r.Link }) {
			all.Links = append(all.Links, r)
		}
	}
}

// worst sorts the worst links first, and omits those that are not shown.
func (all linkRows) worst() linkRows {
	slices.SortStableFunc(all.Links, worse)
	if more := len(all.Links) - maxLinkRows; more > 0 {
		all.Links, all.Omitted = all.Links[:maxLinkRows], more
	}
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
