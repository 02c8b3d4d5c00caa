// Package style holds files and functions to a length that a reader can keep in mind, and
// comments to the words of the house style.
package style

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFile     = 500
	maxFunction = 60
)

// TestLengths: no file has more than 500 lines, and no function more than 60. The
// lines of a table (a composite literal) do not count; in tests a function literal
// is a function of its own, so that a test with subtests is not one long function.
func TestLengths(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		path = filepath.ToSlash(strings.TrimPrefix(path, "../../"))
		found := longFunctions(t, path, source)
		if n := bytes.Count(source, []byte("\n")); n > maxFile {
			found[""] = n
		}
		for name, n := range found {
			t.Errorf("%s: %s has %d lines: cut it where its parts have names of their own", path, cmp.Or(name, "the file"), n)
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Fatal(files, err)
	}
}

// longFunctions returns the lines of the functions that have too many, by name.
func longFunctions(t *testing.T, path string, source []byte) map[string]int {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line }
	long := map[string]int{}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		note := func(name string, n int) {
			if n > maxFunction {
				long[name] = n
			}
		}
		var own func(n ast.Node) int
		own = func(body ast.Node) int {
			count := lines(body) + 1
			ast.Inspect(body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					count -= lines(n)
					return false
				case *ast.FuncLit:
					if n.Body == body || !strings.HasSuffix(path, "_test.go") {
						return true
					}
					inner := own(n.Body)
					note(file.Name.Name+"."+f.Name.Name+" func", inner)
					count -= lines(n)
					return false
				}
				return true
			})
			return count
		}
		note(file.Name.Name+"."+f.Name.Name, own(f.Body))
	}
	return long
}
