//go:build linux || darwin

package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// takeLock creates and locks the file at path. It returns ErrInUse if it is locked
// already. On a disk that is read-only the file has to exist.
func takeLock(path string, open opener) (*os.File, error) {
	for {
		f, err := open(path, os.O_RDWR|os.O_CREATE, 0o600)
		if isReadOnly(err) {
			f, err = open(path, os.O_RDONLY, 0)
		}
		if err != nil {
			return nil, err
		}
		same, err := tryLock(f, path)
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if same {
			sign(f)
			return f, nil
		}
		_ = f.Close() // its previous owner removed it
	}
}

// sign writes the holder into a lock file, for operators. An error does no harm.
func sign(f *os.File) {
	host, _ := os.Hostname()
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "process %d on %s", os.Getpid(), host)
	}
}

// maxSignature is the maximum number of bytes read from a lock file.
const maxSignature = 300

// inUse returns ErrInUse, with the holder of the lock file if that is known.
func inUse(f *os.File) error {
	text := make([]byte, maxSignature)
	n, _ := f.ReadAt(text, 0)
	who := strings.ToValidUTF8(string(text[:n]), "?")
	if !strings.HasPrefix(who, "process ") {
		return ErrInUse // a release that does not sign it
	}
	return fmt.Errorf("%w: %s. If that was suspended, let it go on (kill -CONT), or end it (kill -9)", ErrInUse, who)
}

// tryLock locks f and reports whether it still is the file at path.
func tryLock(f *os.File, path string) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, inUse(f)
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	mine, err1 := f.Stat()
	there, err2 := os.Stat(path)
	if os.IsNotExist(err2) {
		return false, nil
	}
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	return os.SameFile(mine, there), nil
}

// freeBytes returns how many bytes are available on the disk of dir.
func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	for {
		err := syscall.Statfs(dir, &st)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, &fs.PathError{Op: "ask for the free space of", Path: dir, Err: err}
		}
		return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // of another type on macOS
	}
}

// isFull reports whether a write found no room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isReadOnly reports whether a file cannot be opened for writing because the disk became
// read-only.
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }
