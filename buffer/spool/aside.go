package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// AsideDir returns the folder for files that were set aside, in the folder of a spool.
func AsideDir(dir string) string { return filepath.Join(dir, "damaged") }

// begunPrefix is that of the name of an empty file in AsideDir while files are moved there. The number of the first of them follows.
const begunPrefix = "begun-"

// SetAside moves the files of a spool that is not open and that Open cannot use into AsideDir, in
// place of those that are there: what can be read of them may be all that is left of a source.
// Salvage reads them. The newest are moved first, so that a crash leaves the beginning in one place.
func SetAside(dir string) error {
	lock, err := takeFolder(dir, os.OpenFile)
	if err == nil {
		err = errors.Join(setAside(dir, os.Rename), lock.Close())
	}
	if err != nil {
		return fmt.Errorf("spool: set the files in %s aside: %w", dir, err)
	}
	return nil
}

func setAside(dir string, rename func(from, to string) error) error {
	list, err := listFiles(dir)
	if err != nil || len(list) == 0 {
		return err
	}
	to := AsideDir(dir)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	there, err := listFiles(to)
	if err != nil {
		return err
	}
	// Files that a crash has left of the same move stay: they follow those that are not moved yet. So may those from before, whose move has
	// ended, or had another first file.
	begun := filepath.Join(to, begunPrefix+strconv.FormatUint(list[0].number, 10))
	_, err = os.Stat(begun)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil || len(there) > 0 && there[0].number != list[len(list)-1].number+1 {
		if err := errors.Join(removeBegun(to), clearFiles(to)); err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(begun, nil, 0o600), syncDir(to, (*os.File).Sync)); err != nil {
			return err
		}
	}
	for _, g := range slices.Backward(list) {
		if err := rename(g.path, filepath.Join(to, filepath.Base(g.path))); err != nil {
			return err
		}
	}
	if err := errors.Join(syncDir(to, (*os.File).Sync), syncDir(dir, (*os.File).Sync)); err != nil {
		return err
	}
	return removeBegun(to)
}

// removeBegun removes what says that files are being moved.
func removeBegun(dir string) error {
	found, err := os.ReadDir(dir)
	for _, f := range found {
		if strings.HasPrefix(f.Name(), begunPrefix) {
			err = errors.Join(err, remove(filepath.Join(dir, f.Name())))
		}
	}
	return err
}

// ForgetAside removes the files that were set aside if no entry after from can be read of them. It
// reports whether none are left.
func ForgetAside(cfg Config, from oplog.OpTime) (none bool, err error) {
	cfg.Dir = AsideDir(cfg.Dir)
	if there, err := Found(cfg.Dir); err != nil || !there {
		return err == nil, err
	}
	s, _, err := Salvage(cfg, false)
	if err != nil {
		return false, err
	}
	_, last, ok := s.Bounds()
	if err := s.Close(); err != nil || ok && last.After(from) {
		return false, err
	}
	if err := errors.Join(clearFiles(cfg.Dir), removeBegun(cfg.Dir)); err != nil {
		return false, fmt.Errorf("spool: remove the files set aside in %s: %w", cfg.Dir, err)
	}
	if err := os.Remove(cfg.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("spool: remove the files set aside: %w", err)
	}
	return true, nil
}
