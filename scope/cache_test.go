package scope

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func newScope(t testing.TB, cfg Config) *Scope {
	t.Helper()
	return must.Get(New(cfg))(t)
}

// Namespaces that are passed in are views into replies: they may change afterwards.
func TestTargetKeepsNoView(t *testing.T) {
	s := newScope(t, Config{})
	buf := []byte("shop.orders")
	to, ok := s.Target(oplog.Namespace(rawbson.View(buf)))
	copy(buf, "xxxx.xxxxxx")
	if to != "shop.orders" || !ok {
		t.Errorf("%s, %v", to, ok)
	}
	if to, _ := s.Target("shop.orders"); to != "shop.orders" {
		t.Errorf("asked again: %s", to)
	}
}

func TestCacheIsBounded(t *testing.T) {
	s := newScope(t, Config{})
	for i := range 5 * generation {
		s.Target(oplog.Namespace(fmt.Sprintf("shop.c%d", i)))
		if to, _ := s.Target("shop.often"); to != "shop.often" {
			t.Fatal(to)
		}
	}
	if n := len(s.cache.young) + len(s.cache.old); n > 2*generation {
		t.Errorf("%d answers are kept", n)
	}
	if _, ok := s.cache.young["shop.often"]; !ok {
		t.Error("what is asked for all the time was forgotten")
	}
}

func TestConcurrentUse(t *testing.T) {
	s := newScope(t, Config{Exclude: []string{"shop.c1*"}})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 3 * generation {
				ns := oplog.Namespace(fmt.Sprintf("shop.c%d", i))
				if _, ok := s.Target(ns); ok == strings.HasPrefix(ns.Collection(), "c1") {
					t.Errorf("%s: %v", ns, ok)
				}
			}
		})
	}
	wg.Wait()
}

func TestAllocs(t *testing.T) {
	s := newScope(t, Config{Include: []string{"shop"}, Map: []string{"shop=store"}})
	for _, ns := range []oplog.Namespace{"shop.orders", "other.a", "shop.system.buckets.w"} {
		s.Target(ns)
		if n := testing.AllocsPerRun(100, func() { s.Target(ns) }); n != 0 {
			t.Errorf("%s: %v allocations", ns, n)
		}
	}
}

func BenchmarkTarget(b *testing.B) {
	s := newScope(b, Config{Include: []string{"shop"}, Map: []string{"shop=store"}})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			s.Target("shop.orders")
		}
	})
}

func FuzzNew(f *testing.F) {
	f.Add("shop.*", "/shop\\..*/", "a=b", "shop.tmp.agg_out.1")
	f.Add("*?.??**", "", "a.x=b.y", "a.system.buckets.x")
	f.Fuzz(func(t *testing.T, include, exclude, rename, name string) {
		if len(include)+len(exclude) > 60 {
			t.Skip("patterns of more than 60 bytes take the fuzzer long and take no other paths")
		}
		cfg := Config{Include: []string{include}, Map: []string{rename}}
		if exclude != "" {
			cfg.Exclude = []string{exclude}
		}
		if rename == "" {
			cfg.Map = nil
		}
		s, err := New(cfg)
		if err != nil {
			return
		}
		ns := oplog.Namespace(name)
		to, ok := s.Target(ns)
		if from, back := s.Source(to); ok && (!back || from != ns) {
			t.Errorf("%q goes to %q, which comes from %q, %v", ns, to, from, back)
		}
		s.Describe()
		s.Fingerprint()
	})
}
