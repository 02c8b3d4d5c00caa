package process

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/lease"
)

// edit changes a piece of a source file: the program that is built has it, no file does.
type edit struct{ file, from, to string }

var (
	// unaware makes a process go on as if it had the lease for ever: only the target can
	// refuse what it sends.
	unaware = []edit{
		{"lease/guard.go", "func (k *Keeper) guard(c mongo.Caller) mongo.Caller {", "func (k *Keeper) guard(c mongo.Caller) mongo.Caller {\nif true { return c }"},
		{"lease/keeper.go", "func (k *Keeper) lose(err error) {", "func (k *Keeper) lose(err error) {\nif true { return }"},
	}
	// unfenced makes the target refuse nothing that a lane writes: each process has sessions
	// of its own, and a lane's document matches whatever its term and position are.
	unfenced = []edit{
		{"lease/lease.go", "id := SessionID(l.cfg.DB, l.cfg.ID, l.instance, name)", "id := SessionID(l.cfg.DB, l.cfg.ID, l.instance, name+l.cfg.Holder)"},
		{"checkpoint/lane.go", "dst = bsoncore.AppendInt64Element(dst, \"term\", l.link.lease.Term())\n\t\t\treturn appendPosition(dst, l.position)", "return dst"},
	}
)

// buildWith builds the program with these edits.
func buildWith(t testing.TB, edits []edit) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for i, e := range edits {
		name, err := filepath.Abs(filepath.Join("../..", e.file))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.from); n != 1 {
			t.Fatalf("%s has %d times: %s", e.file, n, e.from)
		}
		replace[name] = filepath.Join(dir, strconv.Itoa(i)+".go")
		if err := os.WriteFile(replace[name], []byte(strings.Replace(string(text), e.from, e.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path, list := filepath.Join(dir, "replicator"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", list, "-o", path, "github.com/oplogrep/replicator/cmd/replicator").CombinedOutput()
	if err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return path
}

// TestFenceAlone: a process that does not notice that it has lost its lease, not even when it
// resumes after it was suspended, is refused by the target. Without that, the witness of the
// rounds finds what it writes.
func TestFenceAlone(t *testing.T) {
	skipBig(t)
	t.Run("fenced", func(t *testing.T) {
		if err := resumeUnaware(t, buildWith(t, unaware), 1); err != nil {
			t.Error(err)
		}
	})
	t.Run("not fenced", func(t *testing.T) {
		// To the guard, sessions of a process's own are foreign.
		err := resumeUnaware(t, buildWith(t, append(slices.Clip(unaware), unfenced...)), 5, "--guard", "off")
		if err == nil {
			t.Error("a process wrote under a lease that it had lost, and nothing found that")
		}
		t.Logf("found: %v", err)
	})
}

// resumeUnaware suspends the leader while it waits for entries, and lets it go on, with the
// entries that it finds then, after another process has applied all of them. It returns what
// the witness finds, after as many tries at most.
func resumeUnaware(t *testing.T, program string, tries int, args ...string) error {
	r := startRounds(t, program, number(t, "REPLICATOR_SEED", 1), args...)
	r.await(nil, lease.Record{}, time.Now())
	r.within(far, "the link exists", r.exists)
	n := 0
	load := func() {
		const documents = 32
		for range 3 * documents {
			n++
			r.run("shop", bson.D{{Key: "update", Value: "counters"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: n % documents}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: n}}}}}, {Key: "upsert", Value: true},
			}}}})
		}
	}
	applied := func() {
		want := r.newest()
		r.within(patience, "all is applied", func() bool { return !r.reached().Before(want) })
	}
	for range tries {
		load()
		applied()
		leader, _ := r.await(nil, lease.Record{}, time.Now())
		leader.signal(syscall.SIGSTOP)
		load()
		r.await(leader, lease.Record{}, time.Now())
		applied()
		lost := func() int { return strings.Count(leader.said.String(), "the lease is lost, standing by") }
		before := lost()
		leader.signal(syscall.SIGCONT)
		r.within(far, "the former leader has been refused", func() bool { return lost() > before })
		applied()
		p, err := r.target.AwaitPrimary(t.Context())
		if err == nil {
			err = r.witness.read(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
