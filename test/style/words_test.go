package style

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// phrases are those that a comment must not have, and an example of the words in their place.
// ("There is no error" may be said.)
var phrases = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\b[Ww]hat (is|are|was|were|has|had)\b`), "name the thing: the entries not yet applied, the rest of the range"},
	{regexp.MustCompile(`\b(become|becomes|became) of\b`), "the outcome of a request"},
	{regexp.MustCompile(`\b(is|are|was|were|been) looked at\b`), "read, checked, examined"},
	{regexp.MustCompile(`(^|[^e]) is no (error|difference|divergence|number|reason)\b`), "is not an error"},
}

// quoted is text of which a comment speaks.
var quoted = regexp.MustCompile("\"[^\"]*\"|`[^`]*`")

// TestWords: comments, of tests too, name the things they are about.
func TestWords(t *testing.T) {
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
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range file.Comments {
			for _, found := range badPhrases(group) {
				at := fset.Position(group.Pos())
				t.Errorf("%s:%d: the comment says %s", filepath.ToSlash(strings.TrimPrefix(path, "../../")), at.Line, found)
			}
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Fatal(files, err)
	}
}

// badPhrases returns the phrases of a comment that it must not have, also over the end of a line.
func badPhrases(group *ast.CommentGroup) (found []string) {
	text := quoted.ReplaceAllString(strings.Join(strings.Fields(group.Text()), " "), "")
	for _, p := range phrases {
		for _, bad := range p.phrase.FindAllString(text, -1) {
			found = append(found, `"`+bad+`", in place of, for example: `+p.instead)
		}
	}
	return found
}

func TestBadPhrases(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"// Apply returns what\n// is left of the batch, and what has been applied.":     2,
		"// Ask prints what became of a request. It is no error if it failed.":           2,
		`// The message is "what is left"; there is no reason to wait for what follows.`: 0,
	} {
		group := &ast.CommentGroup{}
		for line := range strings.Lines(text) {
			group.List = append(group.List, &ast.Comment{Text: strings.TrimSuffix(line, "\n")})
		}
		if found := badPhrases(group); len(found) != want {
			t.Errorf("%q: %q, want %d", text, found, want)
		}
	}
}
