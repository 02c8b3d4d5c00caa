package applier

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// An attempt that is to leave an index build ends at once, whatever it waits for that build
// with. What it has handed to lanes is in the target, and the next attempt continues.
func TestBuildLeft(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(l *sourceLog, c *Config){
		"drain":   func(*sourceLog, *Config) {},
		"command": func(l *sourceLog, _ *Config) { l.alone(commandOp("db", bson.D{{Key: "create", Value: "last"}})) },
		"backlog": func(_ *sourceLog, c *Config) { c.KeptBytes = 90 * ownOverhead },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := hanging(t)
			leave := make(chan struct{})
			l.alone(buildOp("commitIndexBuild", 1, "x+y"))
			l.inserts(100)
			a := r.live(t, func(c *Config) {
				c.Leave = leave
				wait(l, c)
			})
			a.send(l, start)
			if name != "backlog" {
				a.awaitDocuments("db.b", 100)
			}
			if kept := a.Stats().KeptBack; len(kept) != 1 || kept[0].NS != "db.a" || kept[0].Commit != optimeOf(0) || time.Since(kept[0].Since) > time.Minute {
				t.Errorf("kept back: %v", kept)
			}
			if name == "command" {
				a.awaitWait("an index build")
			}
			close(leave)
			close(a.in)
			if err := a.ended(); !errors.Is(err, ErrLeft) {
				t.Fatalf("it ended with %v, want %v", err, ErrLeft)
			}
			if name == "drain" {
				if n := len(r.target.documents(t, "db.b")); n != 100 {
					t.Errorf("db.b has %d documents", n)
				}
			}
			a = r.live(t, nil)
			if kept := a.Stats().KeptBack; len(kept) != 1 || kept[0].Commit != optimeOf(0) {
				t.Errorf("kept back, after a restart: %v", kept)
			}
			a.send(l, start)
			a.awaitDocuments("db.b", 100)
			a.hasIndexes("x+y?")
			r.target.hang(t, false)
			a.reaches(l.optime())
			a.awaitDocuments("db.a", 101)
			a.drain()
			if kept := a.Stats().KeptBack; len(kept) > 0 {
				t.Errorf("kept back at the end: %v", kept)
			}
		})
	}
}

// A drain of an attempt that may be left waits for its lanes, not only for its builds.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	leave := make(chan struct{})
	close(leave)
	a := r.live(t, func(c *Config) { c.Leave, c.BuildWait = leave, time.Minute })
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(100)
	a.send(l, start)
	a.drain()
	if n := len(r.target.documents(t, "db.a")) + len(r.target.documents(t, "db.b")); n != 201 {
		t.Errorf("%d documents", n)
	}
}

// An attempt that abandons builds still running at the end of its input waits for a build before
// that, as for any barrier, because the entries after it must be applied.
func TestLastBuildLeft(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	at := func(c *Config) { c.LeaveLast = time.Millisecond }
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(100)
	a := r.live(t, at)
	a.send(l, start)
	a.awaitDocuments("db.b", 100)
	close(a.in)
	if err := a.ended(); !errors.Is(err, ErrLeft) {
		t.Fatalf("it ended with %v, want %v", err, ErrLeft)
	}

	l.alone(commandOp("db", bson.D{{Key: "create", Value: "last"}}))
	a = r.live(t, at)
	a.send(l, start)
	close(a.in)
	select {
	case err := <-a.done:
		t.Fatalf("it ended before the build: %v", err)
	case <-time.After(50 * time.Millisecond): // 50 times LeaveLast
	}
	r.target.hang(t, false)
	if err := a.ended(); err != nil {
		t.Fatalf("it ended with %v", err)
	}
	if n := len(r.target.documents(t, "db.a")); n != 101 {
		t.Errorf("db.a has %d documents", n)
	}
}

// ended returns the error that an attempt ends with.
func (l *live) ended() error {
	l.t.Helper()
	select {
	case err := <-l.done:
		return err
	case <-time.After(time.Minute):
		l.t.Fatal("it does not end")
		return nil
	}
}
