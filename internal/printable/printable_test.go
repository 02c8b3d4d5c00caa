package printable

import "testing"

// Data in a database must not control a terminal.
func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain ü 日本": "plain ü 日本", "\x1b[31m": `\x1b[31m`, "a\nb": `a\nb`, "\u202e": `\u202e`,
		"\x9b": "\uFFFD", "\u009b": `\u009b`, `"q" \`: `"q" \`,
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
