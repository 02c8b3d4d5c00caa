// Package style measures what a reader has to keep in mind at once: the length of
// files and of functions.
package style

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	maxFile     = 500
	maxFunction = 60
)

// longer are functions of tests, and their files, that were longer before there was a limit.
// Nothing is added to the list.
var longer = map[string]bool{
	"applier.TestPropertyForgetfulTarget func": true,
	"applier.TestPropertyRouting func":         true,
	"batcher.check":                            true,
	"batcher.entry":                            true,
	"batcher.play":                             true,
	"checkpoint.TestBeginFences func":          true,
	"progress.TestCopy":                        true,
	"checkpoint.TestLink":                      true,
	"checkpoint.TestMoveWith func":             true,
	"ddl_test.TestSideBySide":                  true,
	"ddl_test.scenario":                        true,
	"fetcher.answer":                           true,
	"inventory_test.TestNamesModel func":       true,
	"inventory_test.TestRecordings":            true,
	"main.TestBenchProcesses func":             true,
	"main.TestRunCopies":                       true,
	"main.TestRunMirrorsAndDrains":             true,
	"pipeline.TestErrorTable":                  true,
	"preflight_test.runScenario":               true,
	"request.TestLeaveOut":                     true,
	"syncsource.TestOverTheWire":               true,
	"syncsource.modelChoose":                   true,
	"syncsource.parseScenario":                 true,
	"txn.FuzzAdd func":                         true,
	"txn.TestCorpus func":                      true,
	"txn.run":                                  true,
	"update_test.TestComposeHistories func":    true,
}

// TestLengths: no file has more than 500 lines, and no function more than 60. The
// lines of a table (a composite literal) do not count; in tests a function literal
// is a function of its own, so that a test with subtests is not one long function.
func TestLengths(t *testing.T) {
	t.Parallel()
	files, known := 0, maps.Clone(longer)
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
			what := cmp.Or(name, path)
			if longer[what] && strings.HasSuffix(path, "_test.go") {
				delete(known, what)
				continue
			}
			t.Errorf("%s: %s has %d lines: cut it where its parts have names of their own", path, what, n)
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Fatal(files, err)
	}
	for what := range known {
		t.Logf("%s is within the limits: take it off the list", what)
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
