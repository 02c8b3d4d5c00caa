package browser

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The checker of accessibility, from npm's registry.
const (
	axeVersion = "4.14.1"
	axeSum     = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c" // of axe.min.js
)

// axe returns the script of axe-core, or why there is none.
var axe = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "page-axe-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	npm := exec.CommandContext(ctx, "npm", "pack", "--silent", "axe-core@"+axeVersion)
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack axe-core@%s: %w: %s", axeVersion, err, out)
	}
	archive, err := os.ReadFile(filepath.Join(dir, "axe-core-"+axeVersion+".tgz"))
	if err != nil {
		return "", err
	}
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(zip); ; {
		head, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("look for axe.min.js in axe-core: %w", err)
		}
		if head.Name == "package/axe.min.js" {
			text, err := io.ReadAll(files)
			return string(text), err
		}
	}
})

// looked are the states that axe looks at, and in which form: dark, and how wide. What differs in the others
// is text.
var looked = map[string]struct {
	dark  bool
	width int64
}{
	"steady": {false, 1280}, "copying": {false, 390}, "target-slow": {true, 1280}, "disconnected": {true, 390}, "older": {false, 1280},
}

// TestAccessible: axe finds nothing to mend on the page in its states, light and dark, wide and narrow, nor
// in a dialog, nor on the list of links.
func TestAccessible(t *testing.T) {
	t.Parallel()
	script, err := axe()
	if err != nil {
		t.Skipf("SKIP accessibility: axe-core cannot be had: %v", err)
	}
	if sum := sha256.Sum256([]byte(script)); hex.EncodeToString(sum[:]) != axeSum {
		t.Fatalf("axe-core %s is another file than it was", axeVersion)
	}
	for _, g := range states() {
		form, ok := looked[g.name]
		if !ok {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			f := serve(t, g.state)
			if g.history != nil {
				g.history(f.history)
			}
			b := open(t, f.URL)
			b.shown("link", "dr")
			b.wait(`document.querySelectorAll(".chart").length > 5`)
			if g.gone {
				f.stop()
				b.shown("live", "disconnected for")
			}
			b.look(form.dark, form.width)
			b.accessible(script)
			if g.name == "steady" {
				b.look(false, 390)
				b.click("throttle")
				b.accessible(script)
			}
		})
	}
	t.Run("fleet", func(t *testing.T) {
		f := serve(t, state())
		f.links = fleet()
		b := open(t, f.URL+"/fleet")
		b.wait(`document.querySelectorAll("#links tbody tr").length > 3`)
		for _, dark := range []bool{false, true} {
			b.look(dark, 1280)
			b.accessible(script)
		}
	})
}

// look sets the colours and the width.
func (b *tab) look(dark bool, width int64) {
	b.t.Helper()
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.t.Fatal(err)
	}
	b.run(chromedp.EmulateViewport(width, 900))
	eval[bool](b, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}

// accessible runs axe on the page as it is.
func (b *tab) accessible(script string) {
	b.t.Helper()
	b.wait(`document.readyState === "complete"`)
	eval[bool](b, script+"\n;true")
	found := eval[[]string](b, `axe.run().then((r) => r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + n.failureSummary).join(" | ")))`)
	if len(found) > 0 {
		b.t.Errorf("axe found:\n%s", strings.Join(found, "\n"))
	}
}
