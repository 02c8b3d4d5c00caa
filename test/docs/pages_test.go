package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages returns the text of every page, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/adr/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all[path] = string(text)
		}
	}
	if len(all) < 20 {
		t.Fatalf("found %d pages: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
	return all
}

// prose returns the lines of a page with its code blocks empty and its code spans
// removed: the text to be read. Lines keep their numbers.
func prose(text string) []string {
	lines := strings.Split(text, "\n")
	span := regexp.MustCompile("`[^`]*`")
	block := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			block = !block
		}
		if fence || block {
			lines[i] = ""
			continue
		}
		lines[i] = span.ReplaceAllString(line, "")
	}
	return lines
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile("(?m)^#+ (.*)$")
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names under which the headings of a page can be linked to.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		names[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// TestLinks: each link within the repository leads to a file, and to a heading if it
// names one.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for from, text := range all {
		for _, m := range link.FindAllStringSubmatch(strings.Join(prose(text), "\n"), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := from
			if target != "" {
				to = filepath.Join(filepath.Dir(from), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: the link %s leads nowhere", from, m[1])
				continue
			}
			if page, ok := all[to]; anchor != "" && ok && !anchors(page)[anchor] {
				t.Errorf("%s: %s has no heading for the link %s", from, to, m[1])
			}
		}
	}
}

// TestSpans: no code span is broken over two lines: a reader who copies it has to get all of it.
func TestSpans(t *testing.T) {
	t.Parallel()
	for path, text := range pages(t) {
		for i, line := range prose(text) {
			if strings.Contains(line, "`") {
				t.Errorf("%s:%d: a code span does not end on its line", path, i+1)
			}
		}
	}
}

// TestReadme: it stays a page that one reads to its end.
func TestReadme(t *testing.T) {
	t.Parallel()
	const most = 120
	if n := strings.Count(pages(t)["../../README.md"], "\n"); n == 0 || n > most {
		t.Errorf("README.md has %d lines; want 1 to %d", n, most)
	}
}

// TestReadmeNames: the README names each folder of the repository, in a line that begins with
// it, and links to each page of docs.
func TestReadmeNames(t *testing.T) {
	t.Parallel()
	text := pages(t)["../../README.md"]
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" {
			continue
		}
		if !strings.Contains(text, "\n| `"+e.Name()+"/` |") {
			t.Errorf("README.md has no line for the folder %s", e.Name())
		}
	}
	for path := range pages(t) {
		if name, ok := strings.CutPrefix(path, "../../docs/"); ok && !strings.Contains(name, "/") && !strings.Contains(text, "(docs/"+name+")") {
			t.Errorf("README.md has no link to docs/%s", name)
		}
	}
}

// oldWords stood for what the glossary in docs/design.md has one word for, or are no
// words of the field.
var oldWords = map[string]*regexp.Regexp{
	"request":                  regexp.MustCompile(`(?i)\bwish(es|ed)?\b`),
	"what is done":             regexp.MustCompile(`(?i)\bfates?\b`),
	"not read yet":             regexp.MustCompile(`(?i)\bunheard\b`),
	"next to, concurrently":    regexp.MustCompile(`(?i)\bbeside\b`),
	"what is done about":       regexp.MustCompile(`(?i)\bwhat is to become of\b`),
	"operations":               regexp.MustCompile(`(?i)\bstretch(es)?\b`),
	"a sentence in the active": regexp.MustCompile(`(?i)\bis looked at\b`),
}

// TestWords: pages use none of the old words.
func TestWords(t *testing.T) {
	t.Parallel()
	for path, text := range pages(t) {
		for i, line := range prose(text) {
			for better, old := range oldWords {
				if found := old.FindString(line); found != "" {
					t.Errorf("%s:%d: %q; better: %s", path, i+1, found, better)
				}
			}
		}
	}
}
