package cutover_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestRestore: the options of a link that has ended are restored whatever interrupts that, and however often it is
// called. An index that documents violate stays as it is, and deferred, until they are mended; the others do not wait.
func TestRestore(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5.0", "7.0"} {
		target := open(t, version)
		restore := func(m *moved, on mongo.Caller) (int, ddl.RefusedErrors, error) {
			return cutover.Restore(t.Context(), &cutover.ConvertConfig{Target: on, MetaDB: "replicator", Link: m.link})
		}
		for n := 1; ; n++ {
			m := newMoved(t, target, fmt.Sprintf("l%d", n))
			m.run(m.link, `{"insert": "a", "documents": [{"_id": 3, "late": 1}, {"_id": 4, "email": "z", "late": 1}]}`)
			c := &crash{Caller: target, at: n, sent: n%2 == 0}
			_, _, err := restore(m, c)
			changed, refused, again := restore(m, target)
			if again != nil || len(refused) != 1 || refused[0].Index != "late_1" || string(refused[0].NS) != m.link+".a" || changed > 2 {
				t.Fatalf("%s, command %d: %d changes, refused %v, %v", version, n, changed, refused, again)
			}
			if got := m.indexes(); got != "_id_, at_1 expireAfterSeconds, email_1 unique" {
				t.Fatalf("%s, command %d: %s", version, n, got)
			}
			left := must.Get(ddl.ReadDeferred(t.Context(), target, "replicator", m.link))(t)
			if len(left) != 1 || left[0].Index != "late_1" || !left[0].Absent {
				t.Fatalf("%s, command %d: deferred is %v", version, n, left)
			}
			var text bytes.Buffer
			keys := must.Get(cutover.ListViolations(t.Context(), target, left, nil, &text))(t)
			if want := `{"namespace":"` + m.link + `.a","index":"late_1","key":[{"$numberInt":"1"}],"ids":[{"$numberInt":"3"},{"$numberInt":"4"}]}` + "\n"; keys != 1 || text.String() != want {
				t.Fatalf("%s, command %d: %d keys, %s", version, n, keys, text.String())
			}
			m.run(m.link, `{"delete": "a", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
			if changed, refused, err := restore(m, target); err != nil || len(refused) != 0 || changed != 1 || m.indexes() != restoredIndexes {
				t.Fatalf("%s, command %d, mended: %d changes, refused %v, %v; %s", version, n, changed, refused, err, m.indexes())
			}
			if changed, refused, err := restore(m, target); err != nil || len(refused) != 0 || changed != 0 {
				t.Fatalf("%s, command %d, again: %d changes, refused %v, %v", version, n, changed, refused, err)
			}
			if err == nil {
				break // it has no such command
			}
		}
	}
}

// TestRestoreKeepsIndex: an index that documents violate is there whatever interrupts its conversion, also where it
// has to be dropped for that.
func TestRestoreKeepsIndex(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5.0", "7.0"} {
		target := open(t, version)
		for n := 1; ; n++ {
			m := newMoved(t, target, fmt.Sprintf("k%d", n))
			m.run(m.link, `{"insert": "a", "documents": [{"_id": 3, "email": "y"}]}`)
			cfg := &cutover.ConvertConfig{Target: &crash{Caller: target, at: n, sent: n%2 == 0}, MetaDB: "replicator", Link: m.link}
			_, _, err := cutover.Restore(t.Context(), cfg)
			cfg.Target = target
			_, refused, again := cutover.Restore(t.Context(), cfg)
			if again != nil || len(refused) != 1 || refused[0].Index != "email_1" {
				t.Fatalf("%s, command %d: refused %v, %v", version, n, refused, again)
			}
			if got := m.indexes(); got != "_id_, at_1 expireAfterSeconds, email_1, late_1 unique" {
				t.Fatalf("%s, command %d: %s", version, n, got)
			}
			if err == nil {
				break // it has no such command
			}
		}
	}
}

// TestRestoreLeavesChoices: what applications have removed or renamed since the link has ended stays so.
func TestRestoreLeavesChoices(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"5.0", "7.0"} {
		target := open(t, version)
		m := newMoved(t, target, "r")
		m.run(m.link, `{"insert": "a", "documents": [{"_id": 3, "email": "y", "late": 1}, {"_id": 4, "late": 1}]}`)
		cfg := &cutover.ConvertConfig{Target: target, MetaDB: "replicator", Link: m.link}
		if _, refused, err := cutover.Restore(t.Context(), cfg); err != nil || len(refused) != 2 {
			t.Fatalf("%s: refused %v, %v", version, refused, err)
		}
		m.run(m.link, `{"dropIndexes": "a", "index": ["email_1", "at_1"]}`) // not unique, then: nothing is to expire either
		m.run("admin", `{"renameCollection": "`+m.link+`.a", "to": "`+m.link+`.b"}`)
		m.run(m.link, `{"delete": "b", "deletes": [{"q": {"_id": 3}, "limit": 1}]}`)
		changed, refused, err := cutover.Restore(t.Context(), cfg)
		if err != nil || len(refused) != 0 || changed != 1 {
			t.Fatalf("%s: %d changes, refused %v, %v", version, changed, refused, err)
		}
		if got := m.indexesOf("b"); got != "_id_, late_1 unique" {
			t.Errorf("%s: %s", version, got)
		}
		if left := must.Get(ddl.ReadDeferred(t.Context(), target, "replicator", m.link))(t); len(left) != 0 {
			t.Errorf("%s: deferred is %v", version, left)
		}

		// One that expired nothing yet when applications dropped it.
		m = newMoved(t, target, "e")
		m.run(m.link, `{"dropIndexes": "a", "index": "at_1"}`)
		must.Get(cutover.Expire(t.Context(), &cutover.ConvertConfig{Target: target, MetaDB: "replicator", Link: m.link}))(t)
		if got := m.indexes(); got != "_id_, email_1" {
			t.Errorf("%s: %s", version, got)
		}
	}
}

// TestListViolations: all documents that violate an index are listed, over many replies, and those of an index
// that cannot be listed do not keep it from the others.
func TestListViolations(t *testing.T) {
	t.Parallel()
	c := target(t)
	var docs []string
	for i := range 900 {
		docs = append(docs, fmt.Sprintf(`{"_id":%d,"a":%d,"l":[%d,%d]}`, i, i/3, i, i+1))
	}
	must.Get(call(t, c, `{"insert":"c","documents":[`+strings.Join(docs, ",")+`]}`))(t)
	cut := cutNow(t, c)
	must.Get(call(t, c, `{"insert":"c","documents":[{"_id":1000,"a":0,"l":[5]}]}`))(t)
	specs := ddl.Specs{unique(t, "text", `"key":{"a":"hashed"}`), unique(t, "a", `"key":{"a":1}`), unique(t, "l", `"key":{"l":1}`)}
	var text bytes.Buffer
	keys, err := cutover.ListViolations(t.Context(), c, specs, cut, &text)
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if err == nil || !strings.Contains(err.Error(), "index text of db.c") || keys != 300+899 || len(lines) != keys {
		t.Fatalf("%d keys, %d lines: %v", keys, len(lines), err)
	}
	for i, line := range lines {
		want := 3
		if i >= 300 {
			want = 2
		}
		if _, ids, _ := strings.Cut(line, `"ids":`); strings.Count(ids, "numberInt") != want || strings.Contains(line, "1000\"") {
			t.Fatalf("line %d: %s", i, line)
		}
	}
	keys, _ = cutover.ListViolations(t.Context(), c, specs[1:2], nil, &text)
	if keys != 300 || !strings.Contains(text.String(), `{"$numberInt":"1000"}`) {
		t.Errorf("now: %d keys", keys)
	}
}
