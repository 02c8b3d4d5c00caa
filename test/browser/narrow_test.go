package browser

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestHeadingsWhole: no heading breaks within a word, however narrow the screen is, and none makes the page wider.
func TestHeadingsWhole(t *testing.T) {
	f := serve(t, state())
	b := open(t, f.URL)
	b.wait(`document.getElementById("link").textContent === "dr" && document.querySelectorAll(".chart").length > 5`)
	for _, width := range []int64{1280, 720, 600, 500, 430, 390, 320} {
		b.look(false, width)
		broken := eval[string](b, `[...document.querySelectorAll("h1, h2, h3")].filter((h) => {
			const words = document.createRange();
			words.selectNodeContents(h);
			return !/\s/.test(h.textContent.trim()) && new Set([...words.getClientRects()].map((r) => Math.round(r.top))).size > 1;
		}).map((h) => h.textContent).join(", ")`)
		wide := eval[int64](b, `document.documentElement.scrollWidth`)
		if broken != "" || wide > width {
			t.Errorf("at %d pixels: broken headings %q, the page is %d wide", width, broken, wide)
		}
		if dir := os.Getenv("PAGE_SHOTS"); dir != "" && width == 500 {
			png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "narrow.png"), png, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
