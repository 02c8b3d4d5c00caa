package servererr_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// serving are the folders whose code substitutes for a server, or tests such code.
var serving = []string{
	"internal/mongo/servererr", "mongosim", "internal/serverquery", "internal/serverupdate",
	"internal/mongo/driver/drivertest", "internal/mongo/errtest", "internal/testkit/mongotest", "internal/testkit/simcaller", "bench/ends/nullconn.go",
}

// TestNoCodesOutside: no code, and no label, is named outside of this package, except by
// substitutes for a server. Other code uses Classify, or one of this package's functions
// that return the meaning of a code for a command.
func TestNoCodesOutside(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	codes, labels := declared(t, fset)
	if len(codes) < 100 || len(labels) != 6 {
		t.Fatalf("%d codes, %d labels", len(codes), len(labels))
	}
	files := 0
	const root = "../../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "tools") {
			return fs.SkipDir
		}
		for _, s := range serving {
			if rel == s || strings.HasPrefix(rel, s+"/") {
				return nil
			}
		}
		if d.IsDir() || !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "test/") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		files++
		ast.Inspect(f, func(n ast.Node) bool {
			if what := named(n, codes, labels); what != "" {
				t.Errorf("%s: %s", fset.Position(n.Pos()), what)
			}
			return true
		})
		return nil
	})
	if err != nil || files < 200 {
		t.Errorf("%d files, %v", files, err)
	}
	for _, bad := range []string{
		`servererr.DuplicateKey`, `servererr.LabelTransient`, `servererr.Code(112)`, `[]servererr.Code{}`, `"RetryableWriteError"`,
		`e.Code == 11000`, `112 != e.Code`, `func() { switch e.Code { case 11000: } }`,
	} {
		expr, err := parser.ParseExpr(bad)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		ast.Inspect(expr, func(n ast.Node) bool {
			found = found || named(n, codes, labels) != ""
			return true
		})
		if !found {
			t.Errorf("%s is not noticed", bad)
		}
	}
}

// declared returns the names of this package's codes, and the labels.
func declared(t *testing.T, fset *token.FileSet) (codes, labels map[string]bool) {
	t.Helper()
	codes, labels = map[string]bool{}, map[string]bool{}
	for _, name := range []string{"code.go", "kind.go"} {
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				v := spec.(*ast.ValueSpec)
				switch typ, _ := v.Type.(*ast.Ident); {
				case typ != nil && typ.Name == "Code":
					codes[v.Names[0].Name] = true
				case strings.HasPrefix(v.Names[0].Name, "Label"):
					text, _ := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
					labels[text] = true
				}
			}
		}
	}
	return codes, labels
}

// named returns the code or label that a node names, empty for none.
func named(n ast.Node, codes, labels map[string]bool) string {
	ofPackage := func(e ast.Expr) string {
		if sel, ok := e.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "servererr" {
				return sel.Sel.Name
			}
		}
		return ""
	}
	isCode := func(e ast.Expr) bool {
		sel, ok := e.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Code"
	}
	isNumber := func(e ast.Expr) bool {
		lit, ok := e.(*ast.BasicLit)
		return ok && lit.Kind == token.INT && lit.Value != "0"
	}
	switch n := n.(type) {
	case *ast.SelectorExpr:
		if name := ofPackage(n); codes[name] || strings.HasPrefix(name, "Label") {
			return "it names " + name
		}
	case *ast.BasicLit:
		if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING && labels[text] {
			return "it names the label " + text
		}
	case *ast.CallExpr:
		if ofPackage(n.Fun) == "Code" && len(n.Args) == 1 && isNumber(n.Args[0]) {
			return "it makes a code"
		}
	case *ast.CompositeLit:
		if list, ok := n.Type.(*ast.ArrayType); ok && ofPackage(list.Elt) == "Code" {
			return "it has a list of codes"
		}
	case *ast.ValueSpec:
		if ofPackage(n.Type) == "Code" && len(n.Values) > 0 {
			return "it declares a code"
		}
	case *ast.BinaryExpr:
		if (n.Op == token.EQL || n.Op == token.NEQ) && (isCode(n.X) && isNumber(n.Y) || isNumber(n.X) && isCode(n.Y)) {
			return "it compares a code with a number"
		}
	case *ast.SwitchStmt:
		for _, c := range n.Body.List {
			for _, e := range c.(*ast.CaseClause).List {
				if n.Tag != nil && isCode(n.Tag) && isNumber(e) {
					return "it compares a code with a number"
				}
			}
		}
	}
	return ""
}
