package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The codes are fixed, and scripts depend on them: this holds the numbers and
// the page that promises them.
func TestExitCodesAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, meaning := range map[int]struct {
		got  int
		says string
	}{
		0: {exitOK, "Done"},
		1: {exitUnexpected, "An error that no other code stands for"},
		2: {exitUsage, "The command line is wrong"},
		3: {exitBadInput, "The input is bad"},
		4: {exitFailed, "A verification failed"},
	} {
		if meaning.got != code {
			t.Errorf("%q is %d, and must stay %d", meaning.says, meaning.got, code)
		}
		if row := fmt.Sprintf("| %d | %s", code, meaning.says); !strings.Contains(string(page), row) {
			t.Errorf("the page has no row that begins with %q", row)
		}
	}
}
