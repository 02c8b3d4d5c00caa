package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/request"
)

// configureCopy takes a setting of a copy:
//
//	copy               begin with one
//	spool=NAME         the folder for the log; links with the same NAME share it
//	relay=BYTES        the size of a relay log
//	workers=N range=BYTES ops=N clone=local indexes=before spool-bytes=N
//	drop-existing wait=DURATION copies=N
func (w *world) configureCopy(cfg *pipeline.Config, key, value string) error {
	c := &cfg.Copy
	n, _ := strconv.ParseInt(value, 10, 64)
	if c.SpoolDir == "" {
		c.SpoolDir, c.SpoolWriter = w.spool(""), &w.disk
	}
	switch key {
	case "copy":
		c.Wanted = true
	case "spool":
		c.SpoolDir = w.spool(value)
	case "relay":
		cfg.RelayBytes = n
	case "workers":
		c.Workers = int(n)
	case "range":
		c.RangeBytes = n
	case "ops":
		c.OpsPerSecond = n
	case "indexes":
		c.IndexesFirst = value == "before"
	case "spool-bytes":
		c.SpoolBytes = n
	case "copies":
		c.MaxCopies = n
	case "drop-existing":
		c.DropExisting = true
	case "wait":
		d, err := time.ParseDuration(value)
		c.SourceWait = d
		return err
	default:
		return fmt.Errorf("unknown setting %s", key)
	}
	return nil
}

// spool returns the folder of that name.
func (w *world) spool(name string) string {
	if w.spools == nil {
		w.spools = map[string]string{}
	}
	if w.spools[name] == "" {
		w.spools[name] = w.t.TempDir()
	}
	return w.spools[name]
}

// keep blocks a link when it announces the text to hold at.
func (w *world) keep(l *link, e event.Event) {
	line, _ := w.line(told{l.name, e, time.Time{}})
	w.mu.Lock()
	free := w.free
	if w.held == "" || line == "" || !strings.HasPrefix(line, w.held) {
		w.mu.Unlock()
		return
	}
	w.kept = free
	w.mu.Unlock()
	<-free
}

// hold releases a blocked link, and blocks the next one that announces text.
func (w *world) hold(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != "" {
		close(w.free)
	}
	w.held, w.free = text, make(chan struct{})
}

// release releases a blocked link.
func (w *world) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != "" {
		w.held = ""
		close(w.free)
	}
}

func (w *world) metadata() (*checkpoint.Store, error) {
	return checkpoint.New(checkpoint.Config{Target: w.target.conn, Link: "mirror"})
}

func (w *world) copyAct(verb string, args []string) (string, error) {
	ctx := w.t.Context()
	store, err := w.metadata()
	if err != nil {
		return "", err
	}
	switch verb {
	case "hold":
		w.hold(strings.Join(args, " "))
		return "", nil
	case "release":
		w.release()
		return "", nil
	case "limit":
		n, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return "", err
		}
		return "", request.New(store).Limit(ctx, 0, n)
	case "spools":
		left, err := filesIn(w.spool(""))
		return fmt.Sprintf("%d files on disk", len(left)), err
	case "damage":
		return "", damage(w.spool(""), strings.Join(args, " "))
	case "resync":
		return "", request.New(store).Resync(ctx, oplog.Namespace(args[0]))
	case "consistent":
		body, err := bson.Marshal(bson.D{{Key: "find", Value: "links"}, {Key: "filter", Value: bson.D{{Key: "_id", Value: "mirror"}}}})
		if err != nil {
			return "", err
		}
		reply, err := w.target.conn.Call(ctx, mongo.Command{DB: "replicator", Body: body})
		if err != nil {
			return "", err
		}
		is, ok := reply.Lookup("cursor", "firstBatch", "0", "consistent").BooleanOK()
		if !ok {
			return "", errors.New("the link does not say whether the target is consistent")
		}
		return fmt.Sprintf("consistent: %t", is), nil
	}
	return "", errors.New("unknown act")
}

// filesIn returns all files in a folder and in those in it.
func filesIn(dir string) (list []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, path)
		}
		return err
	})
	return list, err
}

// damage changes a byte of each file of a spool that has records: of the last record, which
// can be one that was being written, or of the first one.
func damage(dir, which string) error {
	files, err := filesIn(dir)
	if err != nil {
		return err
	}
	found := false
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		const magic, head = "\xf1rec", 76
		first := bytes.Index(data, []byte(magic))
		if first < 0 {
			continue
		}
		found = true
		switch which {
		case "first":
			data[first+head] ^= 0x55
		case "last":
			data[len(data)-1] ^= 0x55
		default:
			return fmt.Errorf("there is no %q record", which)
		}
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return err
		}
	}
	if !found {
		return errors.New("there is nothing to be damaged")
	}
	return nil
}

func (w *world) awaitCopied(number string) error {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return err
	}
	l := w.links["a"]
	return w.untilOf(l, number+" documents to be copied", func() bool {
		c := l.p.Snapshot().Copy
		return c != nil && c.Progress != nil && c.Progress.Docs >= n
	})
}

func (w *world) awaitResync(state, ns string) error {
	store, err := w.metadata()
	if err != nil {
		return err
	}
	return w.untilOf(w.links["a"], ns+" to be "+state, func() bool {
		requests, err := request.New(store).Read(w.t.Context())
		for _, r := range requests.Resync {
			if err == nil && r.NS == oplog.Namespace(ns) {
				return r.State == state
			}
		}
		return false
	})
}

// frozenDisk is a disk that may stand still. The zero frozenDisk does not.
type frozenDisk struct {
	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on; nil if it does not stand still
}

func (d *frozenDisk) set(frozen bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.frozen != nil {
		close(d.frozen)
		d.frozen = nil
	}
	if frozen {
		d.frozen = make(chan struct{})
	}
}

// WriteAt implements spool.Writer.
func (d *frozenDisk) WriteAt(f *os.File, b []byte, at int64) (int, error) {
	d.mu.Lock()
	frozen := d.frozen
	d.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
	return f.WriteAt(b, at)
}
