package scope

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// words returns all words of an alphabet with 1 to n letters.
func words(letters string, n int) []string {
	all := []string{}
	last := []string{""}
	for range n {
		var next []string
		for _, w := range last {
			for _, r := range letters {
				next = append(next, w+string(r))
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

// A part with wildcards matches the same names as the equivalent regular expression,
// before and after it is simplified.
func TestWildcards(t *testing.T) {
	names := append(words("ab.", 4), "é", "aéb", "\n")
	toExpression := strings.NewReplacer("*", "(?s:.*)", "?", "(?s:.)", ".", `\.`)
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.StringOfN(rapid.RuneFrom([]rune("ab.*?é")), 1, 6, -1).Draw(t, "part")
		re := regexp.MustCompile(`\A` + toExpression.Replace(part) + `\z`)
		for _, name := range names {
			if want := re.MatchString(name); wild(part, name) != want || wild(simplify(part), name) != want {
				t.Fatalf("%q, simplified %q, is for %q: %v and %v, want %v",
					part, simplify(part), name, wild(part, name), wild(simplify(part), name), want)
			}
		}
	})
}

func drawExpression(t *rapid.T) string {
	var draw func(depth int) string
	draw = func(depth int) string {
		kinds := []string{"a", "b", `\.`, ".", "[^a]", "[ab.]", "(?i:A)", `\b`, "^", "$", `\z`, "(?m:^)"}
		if depth > 0 {
			kinds = append(kinds, "seq", "seq", "seq", "alt", "star", "opt", "plus")
		}
		switch k := rapid.SampledFrom(kinds).Draw(t, "node"); k {
		case "seq":
			return draw(depth-1) + draw(depth-1)
		case "alt":
			return "(" + draw(depth-1) + "|" + draw(depth-1) + ")"
		case "star":
			return "(" + draw(depth-1) + ")*"
		case "opt":
			return "(" + draw(depth-1) + ")?"
		case "plus":
			return "(" + draw(depth-1) + ")+"
		default:
			return k
		}
	}
	// Most random expressions match no namespace at all.
	begin := rapid.SampledFrom([]string{"", "a", `a\.`, `[ab]+\.`, `(a|ba)\.`, ".*"}).Draw(t, "begin")
	end := rapid.SampledFrom([]string{"", ".*", "(a|b|.)+", `\z`, "(a.*|[^a].*)"}).Draw(t, "end")
	return begin + draw(3) + end
}

// The answers about an expression and a database are correct for all short names.
func TestExpressionsOnDatabases(t *testing.T) {
	colls := append(words("ab.", 4), "A", "aA", "\n", "~", "a~")
	var decided [2]int // may match, covers
	rapid.Check(t, func(t *rapid.T) {
		text := drawExpression(t)
		re := regexp.MustCompile(`(?s)\A(?:` + text + `)\z`)
		x, err := parseExpression(text)
		for _, db := range []string{"a", "b", "ba"} {
			matches := func(coll string) bool { return re.MatchString(db + "." + coll) }
			some, all := slices.ContainsFunc(colls, matches), !slices.ContainsFunc(colls, func(c string) bool { return !matches(c) })
			if err != nil {
				if some {
					t.Fatalf("/%s/: %v, and it matches something of %s", text, err, db)
				}
				continue
			}
			if may := x.mayMatchIn(db); some && !may {
				t.Fatalf("/%s/ matches something of %s, which is denied", text, db)
			} else if may {
				decided[0]++
			}
			if x.cover(db) {
				decided[1]++
				if !all {
					t.Fatalf("/%s/ does not match all of %s, which is claimed", text, db)
				}
			}
		}
	})
	if decided[0] == 0 || decided[1] == 0 {
		t.Errorf("nothing was tested: %v", decided)
	}
}

// The questions about databases are answered exactly for typical expressions.
func TestExpressionsAreDecided(t *testing.T) {
	for _, tt := range []struct {
		text        string
		mayMatch    bool // in shop
		coversAll   bool // shop
		otherMayBe  bool // other
		coversOther bool
	}{
		{`shop\..*`, true, true, false, false},
		{`^shop\..+$`, true, true, false, false},
		{`shop\.(orders|stock)`, true, false, false, false},
		{`.*`, true, true, true, true},
		{`.*\..*`, true, true, true, true},
		{`[a-s]+\.[^.]+`, true, false, false, false},
		{`(shop|other)\.(a.*|[^a].*)`, true, true, true, true},
		{`(?i)SHOP\.\S*`, true, false, false, false},
		{`(shop|log[0-9]{1,3})\..*`, true, true, false, false},
		{`.*\.tmp.*`, true, false, true, false},
	} {
		x := must.Get(parseExpression(tt.text))(t)
		if got := x.mayMatchIn("shop"); got != tt.mayMatch {
			t.Errorf("/%s/ may match in shop: %v", tt.text, got)
		}
		if got := x.cover("shop"); got != tt.coversAll {
			t.Errorf("/%s/ covers shop: %v", tt.text, got)
		}
		if got := x.mayMatchIn("other"); got != tt.otherMayBe {
			t.Errorf("/%s/ may match in other: %v", tt.text, got)
		}
		if got := x.cover("other"); got != tt.coversOther {
			t.Errorf("/%s/ covers other: %v", tt.text, got)
		}
	}
}

// A question that would take too long is answered with no.
func TestExpressionsTooLarge(t *testing.T) {
	x := must.Get(parseExpression(`shop\.(\pL|\PL)*\pL(\pL|\PL){9}\PL*(\pL|.){30}|shop\..*x.{14}|shop\..*y.{14}|.*`))(t)
	if x.cover("shop") {
		t.Error("decided; then this is no test")
	}
	if !x.mayMatchIn("shop") {
		t.Error("nothing matches")
	}
}

// universe is all namespaces of the random scopes.
func universe() []oplog.Namespace {
	var all []oplog.Namespace
	for _, db := range []string{"a", "b", "c", "d", "e", "local", "config", "admin", "meta"} {
		all = append(all, oplog.Namespace(db))
		for _, coll := range []string{
			"x", "y", "z", "x.y", "system.js", "system.views", "system.profile", "$cmd", "system.users",
			"system.buckets.x", "system.buckets.y", "system.buckets.z", "system.buckets.x.y", "tmp.agg_out.1", "tmpabcde.create", "system.buckets.tmp.agg_out.1",
		} {
			all = append(all, oplog.NewNamespace(db, coll))
		}
	}
	return all
}

func drawConfig(t *rapid.T) Config {
	pattern := rapid.SampledFrom([]string{
		"a", "b.*", "c", "a.x", "a.y", "b.x", "c.*y", "*.x", "?.z", "*", "a*.y*", "a.*", "a.?*", `/a\..*/`, `/[ab]\.x/`, `/.*\.y/`,
	})
	excluded := rapid.OneOf(pattern, rapid.SampledFrom([]string{"d", "e", "/[de].*/"}))
	renaming := rapid.SampledFrom([]string{
		"a=b", "b=a", "a=d", "b=d", "c=e", "a.x=b.x", "a.x=d.x", "b.y=a.x", "a.y=a.z", "a.z=a.y", "b.x=b.x", "c.*=a.*", "a=a", "c.x=d.x",
	})
	return Config{
		Include:       rapid.SliceOfN(pattern, 0, 3).Draw(t, "include"),
		Exclude:       rapid.SliceOfN(excluded, 0, 3).Draw(t, "exclude"),
		Map:           rapid.SliceOfN(renaming, 0, 3).Draw(t, "map"),
		UsersAndRoles: rapid.Bool().Draw(t, "users"),
		Reversed:      rapid.Bool().Draw(t, "reversed"),
		MetaDB:        "meta",
	}
}

// No two namespaces go to the same one, Source is the inverse of Target, nothing goes
// to a database of the server, and dependent namespaces follow.
func TestTargetsAreDifferent(t *testing.T) {
	all := universe()
	accepted, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(drawConfig(t))
		if err != nil {
			refused++
			t.Skip(err)
		}
		accepted++
		from := map[oplog.Namespace]oplog.Namespace{}
		for _, ns := range all {
			to, ok := s.Target(ns)
			if !ok {
				continue
			}
			if other, taken := from[to]; taken {
				t.Fatalf("%s and %s both go to %s", ns, other, to)
			}
			from[to] = ns
			if ns.IsPrivileges() {
				continue
			}
			if db := to.DB(); isSystemDB(db) || db == "meta" || s.isNever(ns.DB()) {
				t.Fatalf("%s goes to %s", ns, to)
			}
			if db, has := s.TargetDB(ns.DB()); !has || followsDB(ns.Collection()) && to.DB() != db {
				t.Fatalf("%s goes to %s, its database to %q, %v", ns, to, db, has)
			}
			if !slices.Contains(s.SourceDBs(to.DB()), ns.DB()) {
				t.Fatalf("%s goes to %s, whose database comes from %v", ns, to, s.SourceDBs(to.DB()))
			}
			if !slices.Contains(s.TargetDBs(ns.DB()), to.DB()) {
				t.Fatalf("%s goes to %s, its database to %v", ns, to, s.TargetDBs(ns.DB()))
			}
		}
		for _, ns := range all {
			got, ok := s.Source(ns)
			if want, wantOK := from[ns]; got != want || ok != wantOK {
				t.Fatalf("%s comes from %q, %v, want %q, %v", ns, got, ok, want, wantOK)
			}
		}
		for _, coll := range []string{"x", "y", "tmp.agg_out.1"} {
			ns := oplog.NewNamespace("a", coll)
			to, ok := s.Target(ns)
			buckets, okBuckets := s.Target(ns.Buckets())
			if ok != okBuckets || ok && buckets != to.Buckets() {
				t.Fatalf("%s goes to %q, its buckets to %q", ns, to, buckets)
			}
		}
	})
	if accepted == 0 || refused == 0 {
		t.Errorf("%d scopes accepted, %d refused", accepted, refused)
	}
}

// What a link mirrors, a link the other way mirrors back to where it came from.
func TestReversed(t *testing.T) {
	all := universe()
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		s, err := New(cfg)
		if err != nil {
			t.Skip(err)
		}
		cfg.Reversed = !cfg.Reversed
		back := must.Get(New(cfg))(t)
		if back.Fingerprint() == s.Fingerprint() {
			t.Fatal("both ways have the same fingerprint")
		}
		for _, ns := range all {
			to, ok := s.Target(ns)
			from, is := back.Source(ns)
			if ok != is || to != from {
				t.Fatalf("%s goes to %q, %v, and the other way comes from %q, %v", ns, to, ok, from, is)
			}
			if again, ok := back.Target(to); to != "" && (!ok || again != ns) {
				t.Fatalf("%s goes to %s, and back to %q", ns, to, again)
			}
		}
	})
}

// Scopes with the same fingerprint decide the same, and order and repetition do not
// change it.
func TestFingerprint(t *testing.T) {
	all := universe()
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		s, err := New(cfg)
		if err != nil {
			t.Skip(err)
		}
		var said strings.Builder
		for _, ns := range all {
			to, _ := s.Target(ns)
			said.WriteString(string(to) + "\n")
		}
		mark := s.Fingerprint()
		if before, ok := seen[mark]; ok && before != said.String() {
			t.Fatalf("%+v has the fingerprint of one that means something else", cfg)
		}
		seen[mark] = said.String()
		slices.Reverse(cfg.Include)
		slices.Reverse(cfg.Exclude)
		cfg.Include = append(cfg.Include, cfg.Include...)
		cfg.Map = append(cfg.Map, cfg.Map...)
		again, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if again.Fingerprint() != mark || again.Describe() != s.Describe() {
			t.Fatalf("another order gives another fingerprint: %s, %s", s.Describe(), again.Describe())
		}
	})
}

func TestFingerprintForms(t *testing.T) {
	base := Config{Include: []string{"shop", "a.b"}, Exclude: []string{"shop.x"}, Map: []string{"shop=store"}}
	mark := func(change func(*Config)) string {
		t.Helper()
		cfg := base
		change(&cfg)
		s := must.Get(New(cfg))(t)
		return s.Fingerprint()
	}
	want := mark(func(*Config) {})
	for name, change := range map[string]func(*Config){
		"another form": func(c *Config) { c.Include = []string{"a.b", "shop.**", "shop.?*"} },
		"superfluous":  func(c *Config) { c.Include = append(c.Include, "shop.k") },
		"no renaming":  func(c *Config) { c.Map = append(c.Map, "shop.k=store.k", "a.b=a.b") },
		"the default":  func(c *Config) { c.MetaDB = DefaultMetaDB },
	} {
		if mark(change) != want {
			t.Errorf("%s: another fingerprint", name)
		}
	}
	seen := map[string]string{want: "as it is"}
	for name, change := range map[string]func(*Config){
		"more included": func(c *Config) { c.Include = append(c.Include, "k") },
		"more excluded": func(c *Config) { c.Exclude = append(c.Exclude, "shop.y") },
		"exchanged":     func(c *Config) { c.Include, c.Exclude, c.Map = []string{"shop.x"}, []string{"a.b"}, nil },
		"renamed":       func(c *Config) { c.Map = []string{"shop=store2"} },
		"not renamed":   func(c *Config) { c.Map = nil },
		"users":         func(c *Config) { c.UsersAndRoles = true },
		"metadata":      func(c *Config) { c.MetaDB = "m" },
	} {
		got := mark(change)
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the fingerprint of %s", name, other)
		}
		seen[got] = name
	}
}
