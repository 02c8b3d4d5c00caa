package process

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// fleet is processes that share the links of a file.
type fleet struct {
	*harness
	file    string
	links   []string
	members map[string]*life
}

// assigned is a part of what replicator agent status prints.
type assigned struct {
	Links []struct {
		Link, Member string
		Holder       *struct{ Member string }
	}
}

// TestAgentsKilled: processes share links that are written to, two links each, and one after
// the other is killed and started again. Each time others work on its links soon, and at
// the end the target equals the source, each write applied once. REPLICATOR_AGENTS says how many
// processes, REPLICATOR_AGENT_KILLS how many are killed.
func TestAgentsKilled(t *testing.T) {
	skipBig(t)
	n, kills := number(t, "REPLICATOR_AGENTS", 3), number(t, "REPLICATOR_AGENT_KILLS", 1)
	f := startFleet(t, n, 2*n)
	began := time.Now()
	f.awaitEven()
	t.Logf("%d processes have %d links evenly after %s", n, len(f.links), time.Since(began).Round(time.Millisecond))
	f.awaitCreated()
	end := f.writeCounts()
	var moved []time.Duration
	for k := range kills {
		moved = append(moved, f.killOne(k)...)
	}
	f.awaitEven()
	written := end()
	for _, link := range f.links {
		f.awaitApplied(link, written[link])
	}
	for _, l := range f.members {
		l.end()
	}
	f.equal()
	t.Logf("%d processes, %d links, %d killed: a link of one that was killed is worked on by another after %s", n, len(f.links), kills, percentiles(moved))
}

func startFleet(t *testing.T, processes, links int) *fleet {
	t.Helper()
	set := func(seed int64) *mongosim.Set {
		return mongosim.StartTest(t, mongosim.Options{Seed: seed, Moods: mongosim.GentleMoods("the time is measured")})
	}
	h := &harness{TB: t, program: build(t), rnd: rand.New(rand.NewPCG(1, 18)), source: set(1), target: set(2)}
	h.from, h.to = connect(t, h.source), connect(t, h.target)
	f := &fleet{harness: h, file: filepath.Join(t.TempDir(), "links.yaml"), members: map[string]*life{}}
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, "defaults:\n  source: %s\n  target: %s\n  start-at: now\n  await: 1s\n  spool-dir: %s\nlinks:\n", h.source.URI(), h.target.URI(), t.TempDir())
	for i := range links {
		name := fmt.Sprintf("shop%d", i)
		f.links = append(f.links, name)
		_, _ = fmt.Fprintf(&text, "  %s:\n    include: [%s]\n", name, name)
	}
	must.Succeed(t, os.WriteFile(f.file, []byte(text.String()), 0o600))
	for i := range processes {
		f.begin(fmt.Sprintf("m%d", i))
	}
	return f
}

// begin starts the process of a name.
func (f *fleet) begin(name string) {
	f.Helper()
	l := &life{h: f.harness, ended: make(chan error, 1)}
	l.cmd = exec.CommandContext(f.Context(), f.program, "agent", "--links", f.file, "--member", name, "--max-links", "4", "--memory", "1GiB", "--log-format", "text")
	l.cmd.Stderr = &l.said
	must.Succeed(f, l.cmd.Start())
	go func() { l.ended <- l.cmd.Wait() }()
	f.members[name] = l
}

// status asks which member has which link.
func (f *fleet) status() (*assigned, error) {
	out, err := exec.CommandContext(f.Context(), f.program, "agent", "status", "--json", "--links", f.file).Output()
	if err != nil {
		return nil, err
	}
	var a assigned
	return &a, json.Unmarshal(out, &a)
}

// await waits until the status is as it should be.
func (f *fleet) await(what string, done func(*assigned) bool) {
	f.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		a, err := f.status()
		if err == nil && done(a) {
			return
		}
		if time.Since(began) > 3*far {
			f.Fatalf("%s: not in %s: %+v, %v", what, 3*far, a, err)
		}
	}
}

// awaitEven waits until each process works on two links.
func (f *fleet) awaitEven() {
	f.Helper()
	f.await("each has two links", func(a *assigned) bool {
		has := f.perMember(a)
		for name := range f.members {
			if has[name] != 2 {
				return false
			}
		}
		return true
	})
}

// awaitCreated waits until all links have been created. They copy nothing: documents written before would be missing.
func (f *fleet) awaitCreated() {
	f.Helper()
	f.await("all links exist", func(*assigned) bool { return f.count("replicator", "links") == len(f.links) })
}

// perMember counts the links that members work on.
func (f *fleet) perMember(a *assigned) map[string]int {
	has := map[string]int{}
	for _, l := range a.Links {
		if l.Holder != nil {
			has[l.Holder.Member]++
		}
	}
	return has
}

// writeCounts increments a counter of each link, in turn, until end is called, which returns how
// often each was.
func (f *fleet) writeCounts() (end func() map[string]int) {
	stop, counts := make(chan struct{}), map[string]int{}
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ; i++ {
			link := f.links[i%len(f.links)]
			f.run(link, bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}}, {Key: "upsert", Value: true},
			}}}})
			f.run(link, bson.D{{Key: "insert", Value: "all"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: counts[link]}}}}})
			counts[link]++
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond): // the pace of the load
			}
		}
	})
	return func() map[string]int {
		close(stop)
		writing.Wait()
		return counts
	}
}

// killOne kills a process, waits until others work on its links and apply new writes, and
// starts it again. It returns how long each of its links took.
func (f *fleet) killOne(k int) []time.Duration {
	f.Helper()
	name := fmt.Sprintf("m%d", k%len(f.members))
	var its []string
	f.await(name+" has links", func(a *assigned) bool {
		its = its[:0]
		for _, l := range a.Links {
			if l.Holder != nil && l.Holder.Member == name {
				its = append(its, l.Link)
			}
		}
		return len(its) > 0
	})
	f.members[name].kill()
	at := time.Now()
	took := map[string]time.Duration{}
	f.await("others have the links of "+name, func(a *assigned) bool {
		for _, l := range a.Links {
			if _, known := took[l.Link]; !known && slices.Contains(its, l.Link) && l.Holder != nil && l.Holder.Member != name {
				took[l.Link] = time.Since(at)
			}
		}
		return len(took) == len(its)
	})
	for _, link := range its {
		f.awaitApplied(link, f.count(link, "all")+1)
	}
	f.begin(name)
	var list []time.Duration
	for _, link := range its {
		list = append(list, took[link])
	}
	f.Logf("%s was killed: others have its %d links after %s", name, len(its), percentiles(slices.Clone(list)))
	return list
}

// awaitApplied waits until a link's target has so many documents.
func (f *fleet) awaitApplied(link string, want int) {
	f.Helper()
	for began := time.Now(); f.count(link, "all") < want; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 3*far {
			for name, l := range f.members {
				f.Logf("%s:\n%s", name, l.said.String())
			}
			f.Fatalf("%s: %d documents, want %d", link, f.count(link, "all"), want)
		}
	}
}
