package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestSetAside: files are set aside in place of those from before, whatever their numbers are. After a crash in the middle the beginning is
// in one place, and the next time all are set aside.
func TestSetAside(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]uint64{"none": nil, "more": {1, 2, 3, 4, 5, 6, 7}, "later ones": {8, 9}, "those that would follow": {6, 7}, "earlier ones": {1}} {
		for crash := range 5 {
			dir := t.TempDir()
			put := func(in, what string, numbers ...uint64) {
				must.Succeed(t, os.MkdirAll(in, 0o700))
				for _, n := range numbers {
					must.Succeed(t, os.WriteFile(filepath.Join(in, fileName(n)), fmt.Append(nil, what, n), 0o600))
				}
			}
			numbers := func(in string) (all []uint64) {
				for _, g := range must.Get(listFiles(in))(t) {
					all = append(all, g.number)
				}
				return all
			}
			put(dir, "new ", 2, 3, 4, 5)
			if put(AsideDir(dir), "old ", before...); len(before) == 0 {
				must.Succeed(t, os.Remove(AsideDir(dir)))
			}
			moved, crashes := 0, errors.New("the process is killed")
			err := setAside(dir, func(from, to string) error {
				if moved == crash {
					return crashes
				}
				moved++
				return os.Rename(from, to)
			})
			if crash < 4 != errors.Is(err, crashes) {
				t.Fatalf("%s: %v", name, err)
			}
			if left := numbers(dir); !slices.Equal(left, []uint64{2, 3, 4, 5}[:4-crash]) {
				t.Errorf("%s, killed after %d: %v are left", name, crash, left)
			}
			must.Succeed(t, SetAside(dir))
			if got := numbers(AsideDir(dir)); !slices.Equal(got, []uint64{2, 3, 4, 5}) || len(numbers(dir)) > 0 {
				t.Errorf("%s, killed after %d: %v are set aside", name, crash, got)
			}
			if all := must.Get(os.ReadDir(AsideDir(dir)))(t); len(all) != 4 {
				t.Errorf("%s, killed after %d: %v", name, crash, all)
			}
			for _, g := range must.Get(listFiles(AsideDir(dir)))(t) {
				if text := must.Get(os.ReadFile(g.path))(t); string(text) != fmt.Sprint("new ", g.number) {
					t.Errorf("%s, killed after %d: file %d is %s", name, crash, g.number, text)
				}
			}
		}
	}
}

// TestSetAsideAfterMore: what a crash has left of a move does not stay once the spool has gone on without it, and has files of the same numbers.
func TestSetAsideAfterMore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(what string, numbers ...uint64) {
		for _, n := range numbers {
			must.Succeed(t, os.WriteFile(filepath.Join(dir, fileName(n)), fmt.Append(nil, what, n), 0o600))
		}
	}
	put("before ", 2, 3, 4, 5)
	killed := errors.New("the process is killed")
	if err := setAside(dir, func(from, to string) error {
		if filepath.Base(from) == fileName(3) {
			return killed
		}
		return os.Rename(from, to)
	}); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	put("after ", 4)
	must.Succeed(t, SetAside(dir))
	var got []string
	for _, g := range must.Get(listFiles(AsideDir(dir)))(t) {
		got = append(got, string(must.Get(os.ReadFile(g.path))(t)))
	}
	if want := []string{"before 2", "before 3", "after 4"}; !slices.Equal(got, want) {
		t.Errorf("%q are set aside, want %q", got, want)
	}

	// The process is killed before it says that all are moved, and the spool begins anew.
	must.Succeed(t, os.WriteFile(filepath.Join(AsideDir(dir), begunPrefix+"2"), nil, 0o600))
	put("new ", 1)
	must.Succeed(t, SetAside(dir))
	if all := must.Get(os.ReadDir(AsideDir(dir)))(t); len(all) != 1 || all[0].Name() != fileName(1) {
		t.Errorf("%v are set aside", all)
	}
}
