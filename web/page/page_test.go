package page

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// maxBytes is how large the page may be in all, uPlot included. Its license is embedded too, but no
// page loads it.
const maxBytes = 120_000

// read returns the files by their names.
func read(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		out[strings.TrimPrefix(name, "static/")] = string(body)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSize: the page is small, with all that it loads, as it is served.
func TestSize(t *testing.T) {
	total := 0
	for path, f := range must.Get(load())(t) {
		if path != "/page/uplot/LICENSE" {
			total += len(f.body)
		}
	}
	if total > maxBytes {
		t.Errorf("the page has %d bytes: want at most %d", total, maxBytes)
	}
}

// uPlotSum is the SHA-256 of dist/uPlot.iife.min.js in uplot 1.6.32 of the npm registry.
const uPlotSum = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"

// TestVendored: the library is what its authors published, with its license.
func TestVendored(t *testing.T) {
	all := read(t)
	sum := sha256.Sum256([]byte(all["uplot/uPlot.iife.min.js"]))
	if got := hex.EncodeToString(sum[:]); got != uPlotSum {
		t.Errorf("uPlot.iife.min.js has the sum %s: want %s", got, uPlotSum)
	}
	if !strings.Contains(all["uplot/LICENSE"], "The MIT License") || !strings.Contains(all["uplot/uPlot.iife.min.js"][:100], "(v1.6.32)") {
		t.Error("the license of uPlot is not there, or its version is another one")
	}
}

// forbidden is what turns text into markup or code, or leaves the server.
var forbidden = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|setAttribute\("on|https?://|//[a-z]+\.[a-z]`)

// inline is what a Content-Security-Policy without unsafe-inline refuses.
var inline = regexp.MustCompile(`<style|\sstyle=|\son[a-z]+=|<script>|javascript:`)

// TestLean: the served text has the same lines as the files. Text of several lines, which would lose its
// indentation, is in none of them.
func TestLean(t *testing.T) {
	const body = "// One.\nlet x = 1; // two\n\tif (x) {\n\t\t// Three.\n\t\ty(\"//\\t\");\n\t}\n"
	if got, want := string(lean([]byte(body), ".js")), "\nlet x = 1; // two\nif (x) {\n\ny(\"//\\t\");\n}\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(lean([]byte("\t//\n"), ".css")); got != "//\n" {
		t.Errorf("%q", got)
	}
	served := must.Get(load())(t)
	for name, body := range read(t) {
		if path.Ext(name) != ".js" || strings.HasPrefix(name, "uplot/") {
			continue
		}
		if strings.Contains(body, "`") || strings.Contains(body, "\\\n") || strings.Count(body, "/*") != strings.Count(body, "*/\n") {
			t.Errorf("%s may have text, or a comment, of several lines", name)
		}
		if got, want := strings.Count(string(served["/page/"+name].body), "\n"), strings.Count(body, "\n"); got != want {
			t.Errorf("%s is served with %d lines, and has %d", name, got, want)
		}
	}
	if string(served["/page/uplot/uPlot.iife.min.js"].body) != read(t)["uplot/uPlot.iife.min.js"] {
		t.Error("the library is not served as it is")
	}
}

// TestOwnFiles: the page's own files have no way to make markup of text, and name no other server.
func TestOwnFiles(t *testing.T) {
	for name, body := range read(t) {
		if strings.HasPrefix(name, "uplot/") {
			continue
		}
		if found := forbidden.FindAllString(body, -1); len(found) > 0 {
			t.Errorf("%s: %q", name, found)
		}
		if strings.HasSuffix(name, ".html") {
			if found := inline.FindAllString(body, -1); len(found) > 0 {
				t.Errorf("%s: %q", name, found)
			}
		}
	}
}

var loaded = regexp.MustCompile(`(?:src|href)="(page/[^"]+)"|from "\./([^"]+)"`)

// TestServed: each file that a page or a script loads is served, with its type and the policy, under an
// address that a prefix may precede.
func TestServed(t *testing.T) {
	h := Handler()
	paths := map[string]bool{"/": true, "/fleet": true, "/page/uplot/LICENSE": true}
	for name, body := range read(t) {
		if !strings.HasPrefix(name, "uplot/") {
			for _, m := range loaded.FindAllStringSubmatch(body, -1) {
				if m[1] != "" {
					paths["/"+m[1]] = true
				} else {
					paths["/page/"+m[2]] = true
				}
			}
		}
		if strings.Contains(body, `"/`) && strings.HasSuffix(name, ".html") {
			t.Errorf("%s has an address from the root", name)
		}
	}
	if len(paths) < 12 {
		t.Errorf("only %d files are loaded: %v", len(paths), paths)
	}
	for path := range paths {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		head := w.Header()
		kind := map[bool]string{true: "text/javascript; charset=utf-8", false: "text/"}[strings.HasSuffix(path, ".js")]
		if w.Code != http.StatusOK || w.Body.Len() == 0 || !strings.HasPrefix(head.Get("Content-Type"), kind) ||
			head.Get("X-Content-Type-Options") != "nosniff" || head.Get("Content-Security-Policy") != policy {
			t.Errorf("%s: %d, %d bytes, %v", path, w.Code, w.Body.Len(), head)
		}
		again := httptest.NewRequest(http.MethodGet, path, nil)
		again.Header.Set("If-None-Match", head.Get("ETag"))
		w = httptest.NewRecorder()
		if h.ServeHTTP(w, again); w.Code != http.StatusNotModified {
			t.Errorf("%s again: %d", path, w.Code)
		}
	}
}

// TestRefused: nothing else is answered.
func TestRefused(t *testing.T) {
	h := Handler()
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/page/", http.StatusNotFound},
		{http.MethodGet, "/page/static/app.js", http.StatusNotFound},
		{http.MethodGet, "/page/../page.go", http.StatusNotFound},
		{http.MethodGet, "/index.html", http.StatusNotFound},
		{http.MethodPost, "/", http.StatusMethodNotAllowed},
		{http.MethodPut, "/page/app.js", http.StatusMethodNotAllowed},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Method, r.URL.Path = c.method, c.path
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, w.Code, c.want)
		}
	}
}

// TestPolicy: nothing is allowed but the page's own files and server.
func TestPolicy(t *testing.T) {
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %s", want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Error(policy)
	}
}
