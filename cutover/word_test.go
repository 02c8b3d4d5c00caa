package cutover_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/request"
)

// byWord is a cutover of the link "l" whose source is p, by the operator's word that nobody writes.
func byWord(target mongo.Caller, p *play) *cutover.Config {
	return &cutover.Config{
		Drain:  cutover.DrainConfig{Source: p, Cuts: p, Link: "l", By: "me", Within: time.Minute},
		Target: target, MetaDB: "replicator", Process: "the operator's",
	}
}

// TestWrittenAfterDrain: a write of a user to the source after the drain stops a cutover before its commit
// point, also where only the operator says that nobody writes. Deletes by the server itself do not.
func TestWrittenAfterDrain(t *testing.T) {
	t.Parallel()
	const at = `"ts":{"$timestamp":{"t":101,"i":1}}`
	for name, tt := range map[string]struct {
		written string
		want    error
		users   bool
	}{
		"nothing":                               {},
		"a no-op":                               {written: `{` + at + `,"op":"n","ns":""}`},
		"an insert":                             {written: `{` + at + `,"op":"i","ns":"shop.orders"}`, want: cutover.ErrWritten},
		"an expired document":                   {written: `{` + at + `,"op":"d","ns":"shop.sessions"}`},
		"a client's deletion of many documents": {written: `{` + at + `,"op":"d","ns":"shop.orders"}`, want: cutover.ErrWritten},
		"one of several by the server":          {written: `{` + at + `,"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"d","ns":"shop.orders"},{"op":"d","ns":"shop.sessions"}]}}`, want: cutover.ErrWritten},
		"a delete by a client":                  {written: `{` + at + `,"op":"d","ns":"shop.sessions","lsid":{"id":1}}`, want: cutover.ErrWritten},
		"expired documents":                     {written: `{` + at + `,"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"op":"d","ns":"shop.sessions"}]}}`},
		"a transaction":                         {written: `{` + at + `,"op":"c","ns":"admin.$cmd","lsid":{"id":1},"o":{"applyOps":[{"op":"d","ns":"shop.sessions"}]}}`, want: cutover.ErrWritten},
		"a user":                                {written: `{` + at + `,"op":"i","ns":"admin.system.users"}`},
		"a mirrored user":                       {written: `{` + at + `,"op":"i","ns":"admin.system.users"}`, want: cutover.ErrWritten, users: true},
		"a mirrored role":                       {written: `{` + at + `,"op":"d","ns":"admin.system.roles"}`, want: cutover.ErrWritten, users: true},
		"a user in a transaction": {
			written: `{` + at + `,"op":"c","ns":"admin.$cmd","lsid":{"id":1},"o":{"applyOps":[{"op":"u","ns":"admin.system.users"}]}}`, want: cutover.ErrWritten, users: true,
		},
		"of the server": {written: `{` + at + `,"op":"u","ns":"config.transactions"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := open(t, "7.0")
			s, link := leading(t, target, "l")
			must.Succeed(t, link.SetFilters(t.Context(), checkpoint.Filters{UsersAndRoles: tt.users}))
			p := &play{t: t, notes: []any{noted}, cuts: []uint32{100}, target: bson.Timestamp{T: 100, I: 1}, written: tt.written}
			_, err := cutover.Run(t.Context(), byWord(target, p), &record.Options{Freeze: record.Stopped, Reverse: record.NoReverse})
			if tt.want == nil {
				must.Succeed(t, err)
			} else if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if over := must.Get(s.Over(t.Context()))(t); (over != nil) != (tt.want == nil) {
				t.Errorf("the end of the link is %+v", over)
			}
		})
	}
}

// TestPromotedMeanwhile: a cutover does not take the end of a promoted link for its own, and is not cancelled as if the link went on, also
// if the target's primary was just elected, and does not know yet that a majority has the end.
func TestPromotedMeanwhile(t *testing.T) {
	t.Parallel()
	target := &elected{coll: "links"}
	cancel := func(cfg *cutover.Config) (*record.Record, error) { return cutover.Cancel(t.Context(), cfg) }
	for name, again := range map[string]func(*cutover.Config) (*record.Record, error){
		"resumed":   func(cfg *cutover.Config) (*record.Record, error) { return cutover.Resume(t.Context(), cfg) },
		"cancelled": cancel,
		"cancelled after an election": func(cfg *cutover.Config) (*record.Record, error) {
			target.arm()
			return cancel(cfg)
		},
	} {
		t.Run(name, func(t *testing.T) {
			target.Caller = open(t, "7.0")
			_, link := leading(t, target.Caller, "l")
			p := &play{t: t, notes: []any{noted}, cuts: []uint32{100, 0}}
			cfg := byWord(target, p)
			cfg.Drain.OnWait = func(string) {}
			r, err := cutover.Run(t.Context(), cfg, &record.Options{Freeze: record.Stopped})
			if err == nil || !r.Open() {
				t.Fatalf("the cutover is %v, %v", r, err)
			}
			must.Succeed(t, link.End(t.Context(), checkpoint.Over{At: time.UnixMilli(1), By: "b", Source: ot(100), Promoted: &checkpoint.Promoted{Exact: true}}))
			r, err = again(cfg)
			over, is := errors.AsType[*checkpoint.OverError](err)
			if !is || over.Over.Promoted == nil || r.State != record.Cancelled || r.Has(record.Expire) {
				t.Errorf("the cutover is %v, %v", r, err)
			}
		})
	}
}

// TestNoCuts: a link that makes no cut is found before clients are stopped, and nothing is recorded.
func TestNoCuts(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	leading(t, target, "l")
	cfg := byWord(target, &play{t: t, cuts: []uint32{0}})
	cfg.Drain.OnWait = func(string) {}
	cfg.Shell = func(context.Context, string, []string) error {
		t.Error("clients are stopped")
		return nil
	}
	_, err := cutover.Run(t.Context(), cfg, &record.Options{Freeze: record.Command})
	step, is := errors.AsType[*cutover.StepError](err)
	if !is || step.Step != record.Check || !errors.Is(err, request.ErrNoCut) {
		t.Errorf("got %v", err)
	}
	if r := must.Get((&record.Store{Target: target, DB: "replicator"}).Get(t.Context(), "l"))(t); r != nil {
		t.Errorf("recorded: %v", r)
	}
}

// TestNoCutsResumed: a cutover that was interrupted before clients were stopped does not stop them either.
func TestNoCutsResumed(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	leading(t, target, "l")
	cfg := byWord(target, &play{t: t, cuts: []uint32{0}})
	cfg.Drain.OnWait = func(string) {}
	records := &record.Store{Target: target, DB: "replicator"}
	must.Succeed(t, records.Put(t.Context(), nil, &record.Record{
		Link: "l", ID: "1", State: record.Running, By: "me", Started: time.UnixMilli(1), Steps: []record.Taken{}, Options: record.Options{Freeze: record.Stopped},
	}))
	r, err := cutover.Resume(t.Context(), cfg)
	step, is := errors.AsType[*cutover.StepError](err)
	if !is || step.Step != record.Check || !errors.Is(err, request.ErrNoCut) || r.Began(record.Freeze) || !r.Open() {
		t.Errorf("got %v, %v", r, err)
	}
}

// TestCheckedAgain: preconditions that are no longer met after the link has taken its time to make a cut are not
// taken for met.
func TestCheckedAgain(t *testing.T) {
	t.Parallel()
	target := open(t, "7.0")
	leading(t, target, "l")
	cfg := byWord(target, &play{t: t, notes: []any{noted}, cuts: []uint32{100}, target: bson.Timestamp{T: 100, I: 1}, took: 4 * time.Second})
	errNotMet, n := errors.New("not met any more"), 0
	cfg.Check = func(context.Context) (string, error) {
		if n++; n > 1 {
			return "", errNotMet
		}
		return "", nil
	}
	if _, err := cutover.Run(t.Context(), cfg, &record.Options{Freeze: record.Stopped, Reverse: record.NoReverse}); !errors.Is(err, errNotMet) {
		t.Errorf("got %v after %d checks", err, n)
	}
}
