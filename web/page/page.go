package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// files are the page's files, as they are served.
//
//go:embed static
var files embed.FS

// policy lets the page load its own files and talk to its own server, and nothing else. Styles that
// scripts set on elements are not inline styles in its sense.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// types are those of the files by extension. The system's table of types may say something else.
var types = map[string]string{
	".html": "text/html; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	"":      "text/plain; charset=utf-8",
}

// file is a file in the form in which it is served.
type file struct {
	body       []byte
	tag, media string
}

// Handler serves the page: / and /fleet, and the files that they load below /page/. It answers GET
// and HEAD, and everything else below its paths with 404.
func Handler() http.Handler {
	served, err := load()
	if err != nil {
		panic(err) // invariant: the embedded files are there, and of known types
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are answered", http.StatusMethodNotAllowed)
			return
		}
		f, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Content-Type", f.media)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		// Another version of the program behind the same address must not meet old scripts.
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	})
}

// load returns the files by the path at which they are served.
func load() (map[string]file, error) {
	served := map[string]file{}
	err := fs.WalkDir(files, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		media, ok := types[path.Ext(name)]
		if !ok {
			return fmt.Errorf("page: serve %s: its type is not known", name)
		}
		if !strings.HasPrefix(name, "static/uplot/") {
			body = lean(body, path.Ext(name))
		}
		sum := sha256.Sum256(body)
		f := file{body: body, media: media, tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
		switch at := name[len("static/"):]; at {
		case "index.html":
			served["/"] = f
		case "fleet.html":
			served["/fleet"] = f
		default:
			served["/page/"+at] = f
		}
		return nil
	})
	return served, err
}

// lean returns a file without the parts for human readers: indentation, and lines of comment in
// scripts. Lines keep their numbers. No file has text of several lines.
func lean(body []byte, ext string) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(body) {
		line = bytes.TrimLeft(line, "\t")
		if ext == ".js" && bytes.HasPrefix(line, []byte("//")) {
			line = []byte("\n")
		}
		out.Write(line)
	}
	return out.Bytes()
}
