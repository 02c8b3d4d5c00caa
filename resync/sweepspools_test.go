package resync

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// TestSweepSpools: the spool of a part that has ended is removed, wherever below the part's folder it is; not that of one that will run, nor
// one that is in use, nor anything else.
func TestSweepSpools(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := New(Config{Link: "link"})
	runs := request.Resync{NS: "d.runs", State: request.Copying}
	m.leftOut = map[oplog.Namespace]request.Resync{runs.NS: runs}
	const ended, used = namePrefix + "0123456789abcdef", namePrefix + "fedcba9876543210"
	file := func(names ...string) string {
		path := filepath.Join(append([]string{dir}, names...)...)
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Succeed(t, os.WriteFile(path, []byte("entries"), 0o600))
		return path
	}
	gone := []string{file(ended, "000000000001.spool"), file(ended, "0011223344556677", "000000000001.spool"), file(ended, "8899aabbccddeeff", "000000000007.spool")}
	open := must.Get(spool.Open(spool.Config{Dir: filepath.Join(dir, used, "0011223344556677"), ID: "x"}))(t)
	kept := []string{
		file("000000000001.spool"), file("0011223344556677", "000000000001.spool"), file(m.partName(runs), "0011223344556677", "000000000001.spool"),
		filepath.Join(dir, used, "0011223344556677", "lock"),
	}
	m.SweepSpools(dir)
	for _, path := range gone {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, ended)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of the part is still there: %v", err)
	}
	for _, path := range kept {
		must.Get(os.Stat(path))(t)
	}
	must.Succeed(t, open.Close())
}
