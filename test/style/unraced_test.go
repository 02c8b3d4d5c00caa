package style

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnraced: make test runs each test that leaves something out with the race detector
// once more without it: the Makefile lists them, and no other way to skip is used.
func TestUnraced(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	makefile := strings.ReplaceAll(string(text), "\\\n", " ")
	value := func(name string) string {
		found := regexp.MustCompile(`(?m)^` + name + ` = (.*)$`).FindStringSubmatch(makefile)
		if found == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return found[1]
	}
	whole := regexp.MustCompile(strings.ReplaceAll(value("SEQUENTIAL"), "$$", "$"))
	names, packages := map[string]bool{}, map[string]bool{}
	for file, tests := range skipping(t) {
		if dir := path.Dir(file); !whole.MatchString("/" + dir) {
			packages[dir] = true
			for _, name := range tests {
				names[name] = true
			}
		}
	}
	for list, want := range map[string]map[string]bool{"UNRACED": names, "UNRACED_IN": packages} {
		if d := cmp.Diff(slices.Sorted(maps.Keys(want)), strings.Fields(value(list))); d != "" {
			t.Errorf("%s in the Makefile (+) differs from the tests that name race.Skip or race.One (-), which it must list in order:\n%s", list, d)
		}
	}
}

// skipping returns the tests that name race.Skip or race.One, by their files.
func skipping(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		file = filepath.ToSlash(strings.TrimPrefix(file, "../../"))
		if tests := skippingIn(t, file, parsed); tests != nil {
			all[file] = tests
		}
		return nil
	})
	if err != nil || len(all) < 5 {
		t.Fatal(all, err)
	}
	return all
}

func skippingIn(t *testing.T, file string, parsed *ast.File) []string {
	t.Helper()
	for _, group := range parsed.Comments {
		for _, line := range group.List {
			if strings.HasPrefix(line.Text, "//go:build") && strings.Contains(line.Text, "race") {
				t.Errorf("%s: with %s make test does not run it without the race detector: call race.Skip", file, line.Text)
			}
		}
	}
	var tests []string
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		skips := count(f.Body, "race", "Skip") + count(f.Body, "race", "One")
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				if count(n.Cond, "race", "Enabled") > 0 && count(n.Body, "t", "Skip") > 0 {
					t.Errorf("%s: %s skips where race.Enabled: call race.Skip", file, f.Name.Name)
				}
			case *ast.CaseClause:
				if slices.ContainsFunc(n.List, func(e ast.Expr) bool { return count(e, "race", "Enabled") > 0 }) &&
					slices.ContainsFunc(n.Body, func(s ast.Stmt) bool { return count(s, "t", "Skip") > 0 }) {
					t.Errorf("%s: %s skips where race.Enabled: call race.Skip", file, f.Name.Name)
				}
			}
			return true
		})
		switch {
		case skips > 0 && !strings.HasPrefix(f.Name.Name, "Test"):
			t.Errorf("%s: %s names race.Skip or race.One: only a test itself may", file, f.Name.Name)
		case skips > 0:
			tests = append(tests, f.Name.Name)
		}
	}
	return tests
}

// count counts how often a part of the code names pkg.name.
func count(in ast.Node, pkg, name string) int {
	n := 0
	ast.Inspect(in, func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok && s.Sel.Name == name {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
				n++
			}
		}
		return true
	})
	return n
}
