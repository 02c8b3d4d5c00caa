package mongosim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestTypesHaveNames: users can name every type that the API mentions. It looks for
// selectors of internal packages in exported signatures and fields.
func TestTypesHaveNames(t *testing.T) {
	for _, dir := range []string{".", "fault"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			if ast.FileExports(file) {
				seen += exportsOf(t, name, file)
			}
		}
		if seen == 0 {
			t.Errorf("nothing is exported by %s", dir)
		}
	}
}

// exportsOf counts the selectors of a file's exported declarations, of which none may be
// of an internal package.
func exportsOf(t *testing.T, name string, file *ast.File) (n int) {
	internal := map[string]string{}
	for _, i := range file.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil && strings.Contains(p, "/internal/") {
			internal[path.Base(p)] = p
		}
	}
	look := func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok {
			n++
			if x, ok := s.X.(*ast.Ident); ok && internal[x.Name] != "" {
				t.Errorf("%s: the API has a type of %s", name, internal[x.Name])
			}
		}
		return true
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			n++
			ast.Inspect(d.Type, look)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					n++
					ast.Inspect(s.Type, look)
				case *ast.ValueSpec:
					n++
					if s.Type != nil {
						ast.Inspect(s.Type, look)
					}
				}
			}
		}
	}
	return n
}
