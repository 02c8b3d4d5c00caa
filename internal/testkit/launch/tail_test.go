package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if got := Tail(file); !strings.Contains(got, "no such file") {
		t.Errorf("a log that is not there: %q", got)
	}
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\ntwo\n")
	if got := Tail(file); got != "one\ntwo" {
		t.Errorf("a short log: %q", got)
	}
	write(strings.Repeat("0123456789\n", 1000) + "the end\n")
	got := Tail(file)
	if len(got) > tailBytes || !strings.HasPrefix(got, "0123456789\n") || !strings.HasSuffix(got, "\nthe end") {
		t.Errorf("a long log has %d bytes, from %.20q", len(got), got)
	}
}
