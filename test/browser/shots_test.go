package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestShots stores a screenshot of each state, in two widths, light and dark, in the folder PAGE_SHOTS. On
// the way it holds that no state makes the page wider than the screen.
func TestShots(t *testing.T) {
	dir := os.Getenv("PAGE_SHOTS")
	if dir == "" {
		t.Skip("PAGE_SHOTS names no folder for screenshots")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, g := range states() {
		t.Run(g.name, func(t *testing.T) {
			f := serve(t, g.state)
			if g.history != nil {
				g.history(f.history)
			}
			b := open(t, f.URL)
			b.wait(`document.getElementById("link").textContent === "dr" && document.querySelectorAll(".chart").length > 5`)
			if g.gone {
				f.stop()
				b.shown("live", "disconnected for")
			}
			b.shoot(dir, g.name)
		})
	}
	t.Run("fleet", func(t *testing.T) {
		f := serve(t, state())
		f.links = fleet()
		b := open(t, f.URL+"/fleet")
		b.wait(`document.querySelectorAll("#links tbody tr").length > 3`)
		b.shoot(dir, "fleet")
	})
}

// mayShoot stores screenshots if they are wanted.
func (b *tab) mayShoot(name string) {
	b.t.Helper()
	if dir := os.Getenv("PAGE_SHOTS"); dir != "" {
		b.shoot(dir, name)
	}
}

func (b *tab) shoot(dir, name string) {
	b.t.Helper()
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(scheme == "dark", width)
			png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
			if err != nil {
				b.t.Fatal(err)
			}
			if wide := eval[int64](b, `document.documentElement.scrollWidth`); wide > width {
				b.t.Errorf("%s is %d pixels wide on a screen of %d", name, wide, width)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), png, 0o644); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}
