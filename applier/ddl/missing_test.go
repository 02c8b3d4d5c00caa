package ddl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// owing are logs that meet a copy without src.gone, with the collection that the copy
// lacks at its end, by the source's name.
var owing = []struct{ name, log, lacks string }{
	{"renamed", `c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}`, "src.late"},
	{"renamed twice", `
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"renameCollection": "src.late", "to": "src.later"}`, "src.later"},
	{"dropped", `
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"drop": "late"}`, ""},
	{"renamed and dropped", `
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"renameCollection": "src.late", "to": "src.later"}
c src.$cmd {"drop": "later"}`, ""},
	{"made again", `
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"create": "late", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}`, ""},
	{"replaced", `
c src.$cmd {"create": "x", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"renameCollection": "src.x", "to": "src.late", "dropTarget": {"$uuid": "00000000-0000-4000-8000-000000000001"}}`, ""},
	{"out of scope", `
c src.$cmd {"renameCollection": "src.gone", "to": "src.late"}
c src.$cmd {"renameCollection": "src.late", "to": "src.hidden"}`, ""},
}

// TestMissingSurvives ends the process that applies the log at each command that it sends to
// the target, before or after it is executed. Another process continues with only the
// stored state, and still finds at the end which collection the copy lacks.
func TestMissingSurvives(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{Map: []string{"src=dst"}, Exclude: []string{"src.hidden", "dst"}})
	runs := 0
	for _, placed := range []bool{false, true} {
		b.cfg.Placed = placed
		for _, tt := range owing {
			for cut, was := 0, true; was; cut++ {
				for _, answered := range []bool{false, true} {
					runs++
					b.must(t, "dst", `{"dropDatabase": 1}`)
					b.cfg.Link = fmt.Sprint("link", runs)
					err := b.owing(t, tt.log, cut, answered)
					was = b.sent > cut
					lacks := ""
					if e, is := errors.AsType[*ddl.ResyncError](err); is {
						lacks, err = string(e.NS), nil
					}
					if err != nil || lacks != tt.lacks {
						t.Fatalf("%s, placed %t, ended at command %d, carried out %t: the copy lacks %q, want %q: %v",
							tt.name, placed, cut, answered, lacks, tt.lacks, err)
					}
				}
			}
		}
	}
	if runs < 100 {
		t.Errorf("only %d ends were tried", runs)
	}
}

// owing applies a log to a copy, and ends the copy. The process ends with the command
// that follows cut others, which is executed or not. Another process applies the
// operation again, and continues.
func (b *bench) owing(t *testing.T, log string, cut int, carriedOut bool) error {
	t.Helper()
	defer b.cutAt(cut, carriedOut)()
	b.restart(t)
	again := func(work func() error) error {
		err := work()
		if isCut(err) {
			b.restart(t)
			err = work()
		}
		return err
	}
	for line := range strings.Lines(strings.TrimSpace(log)) {
		op := b.operation(t, strings.TrimSpace(line))
		if err := again(func() error { return b.exec.Apply(t.Context(), op, ddl.Copied) }); err != nil {
			return err
		}
	}
	b.restart(t) // wherever the first process ended
	return again(func() error { return b.exec.EndCopy(t.Context(), oplog.OpTime{TS: b.read, Term: 1}) })
}

// TestMissingOfOthers: owed names of a collection are ignored while its resync copies it,
// and those of one link do not concern another one.
func TestMissingOfOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	rename := b.operation(t, `c db.$cmd {"renameCollection": "db.gone", "to": "db.late"}`)
	must.Succeed(t, b.exec.Apply(t.Context(), rename, ddl.Copied))
	at := rename.OpTime
	whole := b.cfg
	b.cfg.Own = "resync-1"
	b.restart(t)
	if err := b.exec.EndCopy(t.Context(), at); err != nil {
		t.Errorf("the link of another collection: %v", err)
	}
	b.cfg = whole
	b.restart(t)
	if _, lacks := errors.AsType[*ddl.ResyncError](b.exec.EndCopy(t.Context(), at)); !lacks {
		t.Error("the copy lacks nothing")
	}
	without, err := scope.New(scope.Config{Exclude: []string{"db.late"}})
	if err != nil {
		t.Fatal(err)
	}
	b.cfg.Scope = without
	b.restart(t)
	if err := b.exec.EndCopy(t.Context(), at); err != nil {
		t.Errorf("while somebody else copies it: %v", err)
	}
	b.cfg = whole
	b.restart(t)
	if err := b.exec.EndCopy(t.Context(), at); err != nil {
		t.Errorf("once it was left to somebody else: %v", err)
	}
}
