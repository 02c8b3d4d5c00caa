package spool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// stored is a reply of the model, and where it ends on disk.
type stored struct {
	entries []int
	file    string
	end     int64
}

// model is the spool as documented: slow and obvious.
type model struct {
	cfg Config
	s   *Spool
	log []stored
	// next is the least number that was never used.
	next int
}

func (m *model) numbers() (list []int) {
	for _, r := range m.log {
		list = append(list, r.entries...)
	}
	return list
}

// TestModel: for every order of storing, crashing, forgetting and reading, the spool
// has the same entries as the model.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{cfg: Config{
			Dir: t.TempDir(), SegmentBytes: rapid.Int64Range(300, 3000).Draw(rt, "segment"), Memory: rapid.Int64Range(1, 8000).Draw(rt, "memory"),
		}, next: 1}
		var err error
		if m.s, err = openTest(t, m.cfg); err != nil {
			rt.Fatal(err)
		}
		defer func() {
			must.Succeed(rt, m.s.Close())
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"":         m.check,
			"store":    func(rt *rapid.T) { m.store(rt, t) },
			"run":      func(rt *rapid.T) { m.run(rt, t) },
			"kill":     func(rt *rapid.T) { m.kill(rt, t) },
			"forget":   func(rt *rapid.T) { m.forget(rt, t) },
			"commands": func(rt *rapid.T) { m.commands(rt, t) },
		})
	})
}

// draw makes a reply of new entries; it may begin with the last one.
func (m *model) draw(rt *rapid.T, t *testing.T) (oplog.Reply, []int) {
	var list []int
	for range rapid.IntRange(1, 4).Draw(rt, "entries") {
		m.next += rapid.IntRange(1, 3).Draw(rt, "step")
		list = append(list, m.next)
	}
	send := list
	if all := m.numbers(); len(all) > 0 && rapid.Bool().Draw(rt, "repeat") {
		send = append([]int{all[len(all)-1]}, list...)
	}
	return reply(t, rapid.IntRange(0, 400).Draw(rt, "pad"), send...), list
}

// note adds a reply that was stored, and finds it on disk.
func (m *model) note(rt *rapid.T, t *testing.T, list []int) {
	paths := files(t, m.cfg.Dir)
	last := paths[len(paths)-1]
	info := must.Get(os.Stat(last))(rt)
	m.log = append(m.log, stored{list, last, info.Size()})
}

func (m *model) store(rt *rapid.T, t *testing.T) {
	for range rapid.IntRange(1, 3).Draw(rt, "replies") {
		r, list := m.draw(rt, t)
		must.Succeed(rt, tryStore(t, m.s, r))
		m.note(rt, t, list)
	}
}

// run reads from a random entry on, while more is stored.
func (m *model) run(rt *rapid.T, t *testing.T) {
	all := m.numbers()
	begin := 0
	if len(all) > 0 && rapid.Bool().Draw(rt, "start") {
		from := rapid.IntRange(all[0]-1, all[len(all)-1]+1).Draw(rt, "from")
		i, has := slices.BinarySearch(all, from)
		err := m.s.Start(at(from))
		if has != (err == nil) || err != nil && !errors.Is(err, ErrMissing) {
			rt.Fatalf("start at %d of %v: %v", from, all, err)
		}
		if has {
			begin = i
		}
	}
	var replies []oplog.Reply
	if rapid.Bool().Draw(rt, "more") {
		r, list := m.draw(rt, t)
		replies = []oplog.Reply{r}
		defer m.note(rt, t, list)
		all = append(all, list...)
	}
	got, err := drain(t, m.s, replies...)
	if err != nil || !slices.Equal(allNumbers(got), all[begin:]) {
		rt.Fatalf("handed on %v, want %v: %v", allNumbers(got), all[begin:], err)
	}
	for _, r := range got {
		for i := range r.Entries {
			if r.Entries[i].OpTime != at(int(r.Entries[i].OpTime.TS.I)) {
				rt.Fatalf("entry %s", r.Entries[i].OpTime)
			}
		}
	}
}

// kill ends the process at any byte of the last file, or not within one.
func (m *model) kill(rt *rapid.T, t *testing.T) {
	must.Succeed(rt, m.s.Close())
	if paths := files(t, m.cfg.Dir); len(paths) > 0 && rapid.Bool().Draw(rt, "tear") {
		last := paths[len(paths)-1]
		info, err := os.Stat(last)
		if err != nil {
			rt.Fatal(err)
		}
		size := rapid.Int64Range(0, info.Size()).Draw(rt, "size")
		must.Succeed(rt, os.Truncate(last, size))
		m.log = slices.DeleteFunc(m.log, func(r stored) bool { return r.file == last && r.end > size })
	}
	var err error
	if m.s, err = openTest(t, m.cfg); err != nil {
		rt.Fatal(err)
	}
}

// forget removes the files whose entries are all before a number, except the one that
// is being written.
func (m *model) forget(rt *rapid.T, t *testing.T) {
	before := rapid.IntRange(0, m.next+1).Draw(rt, "before")
	written := ""
	if paths := files(t, m.cfg.Dir); len(paths) > 0 {
		written = paths[len(paths)-1]
	}
	keep := map[string]bool{written: true}
	for _, r := range m.log {
		if r.entries[len(r.entries)-1] >= before {
			keep[r.file] = true
		}
	}
	m.log = slices.DeleteFunc(m.log, func(r stored) bool { return !keep[r.file] })
	must.Succeed(rt, m.s.Forget(at(before)))
	for _, path := range files(t, m.cfg.Dir) {
		if !keep[path] {
			rt.Fatalf("%s is there still", filepath.Base(path))
		}
	}
}

func (m *model) commands(rt *rapid.T, t *testing.T) {
	all := m.numbers()
	if len(all) == 0 {
		return
	}
	after := rapid.IntRange(all[0], m.next).Draw(rt, "after")
	until := rapid.IntRange(0, m.next+1).Draw(rt, "until")
	var want, got []int
	for _, n := range all {
		if n > after && n <= until && n%5 == 0 {
			want = append(want, n)
		}
	}
	err := m.s.Commands(t.Context(), at(after), at(until).TS, func(e *oplog.Entry) error {
		got = append(got, int(e.OpTime.TS.I))
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("commands after %d until %d: %v, want %v: %v", after, until, got, want, err)
	}
}

func (m *model) check(rt *rapid.T) {
	all := m.numbers()
	first, last, ok := m.s.Bounds()
	if ok != (len(all) > 0) || ok && (first != at(all[0]) || last != at(all[len(all)-1])) {
		rt.Fatalf("bounds %s %s %v, want those of %v", first, last, ok, all)
	}
	st := m.s.Disk()
	sum := int64(0)
	list, err := listFiles(m.cfg.Dir)
	for _, g := range list {
		info, fault := os.Stat(g.path)
		if err = errors.Join(err, fault); fault == nil {
			sum += info.Size()
		}
	}
	if err != nil || st.Bytes != sum || st.Entries != int64(len(all)) || m.s.Stats().Buffered != 0 {
		rt.Fatalf("%+v, want %d bytes, %d entries: %v", st, sum, len(all), err)
	}
}
