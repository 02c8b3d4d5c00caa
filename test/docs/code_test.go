package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	span = regexp.MustCompile("`([^`\n]+)`")
	// path is what looks like a file or a folder of the repository, with ways to say
	// several: a*.go, {a,b}/.
	path  = regexp.MustCompile(`^(\.\./)*[\w.-]+(/[\w.*-]+)*(/|\.(go|yml|mod|jsonl?|md|txt))$`)
	plain = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+$`)
	// built is what make makes.
	built = regexp.MustCompile(`^\.?bin/`)
	// name is a function: of a package, of a type, or of a package's type.
	name = regexp.MustCompile(`\b[A-Za-z]\w*(?:\.[A-Za-z]\w*){1,2}\b`)
	// methods is a list of methods of one type in a walk: Type.method, method.
	methods = regexp.MustCompile(`\b([A-Za-z]\w*)\.[a-z]\w*((?:, [a-z]\w*)+)(?:  |:|\n)`)
)

// elsewhere are paths that are not of the repository, but of a run, a recording or the driver.
var elsewhere = map[string]bool{"bench.json": true, "commands.jsonl": true, "x/": true}

// TestPaths: files and folders that pages name in code spans are there.
func TestPaths(t *testing.T) {
	t.Parallel()
	for page, text := range pages(t) {
		for _, m := range span.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join("../..", strings.Split(m[1], "/")[0]))
			folder := err == nil && plain.MatchString(m[1]) // one without a slash at its end
			if !path.MatchString(m[1]) && !folder || elsewhere[m[1]] || built.MatchString(m[1]) || isThere(t, page, m[1]) {
				continue
			}
			t.Errorf("%s: there is no %s", page, m[1])
		}
	}
}

// isThere reports whether a page may mean something by a path: from the root, from the
// page's folder, or, in a table of files of one folder, below any folder.
func isThere(t *testing.T, page, path string) bool {
	t.Helper()
	for _, root := range []string{"../..", filepath.Dir(page), "../../internal", "../../*", "../../*/*", "../../*/*/*"} {
		found, err := filepath.Glob(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return true
		}
	}
	return false
}

// TestWalks: the functions that docs/design.md follows an entry, a command and an error
// through are there under those names.
func TestWalks(t *testing.T) {
	t.Parallel()
	_, text, ok := strings.Cut(pages(t)["../../docs/design.md"], "\n## Three walks through the code\n")
	text, _, _ = strings.Cut(text, "\n## ")
	names := name.FindAllString(text, -1)
	if !ok || len(names) < 30 {
		t.Fatalf("the walks have %d names: %v", len(names), names)
	}
	known := functions(t)
	for _, list := range methods.FindAllStringSubmatch(text, -1) {
		for _, method := range strings.Split(list[2], ", ")[1:] {
			names = append(names, list[1]+"."+method)
		}
	}
	for _, n := range names {
		if !known[n] && !strings.HasSuffix(n, ".md") {
			t.Errorf("no function is called %s", n)
		}
	}
}

// functions returns the repository's functions: package.F, Type.F and package.Type.F.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if of := receiver(f); of != "" {
				known[of+"."+f.Name.Name], known[file.Name.Name+"."+of+"."+f.Name.Name] = true, true
			} else {
				known[file.Name.Name+"."+f.Name.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// receiver returns the type that a function is a method of, empty if it is none.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	id, _ := of.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}
