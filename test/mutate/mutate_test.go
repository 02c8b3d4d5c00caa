package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Every bug can still be planted in the code as it is.
func TestMutantsFit(t *testing.T) {
	all, err := load("mutants")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		files, err := m.planted("../..")
		if err != nil {
			t.Error(err)
		}
		for name, text := range files {
			if before, err := os.ReadFile("../../" + name); err != nil || string(before) == text {
				t.Errorf("%s: %s changes nothing in %s (%v)", m.at, m.name, name, err)
			}
		}
		if !strings.HasPrefix(m.test[0], "./") {
			t.Errorf("%s: %s: test: begins with %q, and not with a package", m.at, m.name, m.test[0])
		}
	}
	if len(all) < 60 {
		t.Errorf("there are %d mutants, want 60 or more", len(all))
	}
}

func TestParse(t *testing.T) {
	const good = "a comment\n== one\nIt is wrong.\nVery.\ntest: ./a -run X\nfile: a.go\n--- old\n\tx := 1\n--- new\n\tx := 2\n--- end\n"
	all, err := parse("f.txt", good)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	m := all[0]
	if m.says != "It is wrong. Very." || strings.Join(m.test, "|") != "./a|-run|X" || m.edits[0] != (edit{"a.go", "\tx := 1\n", "\tx := 2\n"}) {
		t.Errorf("got %+v", m)
	}
	for name, text := range map[string]string{
		"end is missing at the end":      strings.Replace(good, "--- end\n", "", 1),
		"the last one is missing before": strings.Replace(good, "--- end\n", "== two\n", 1),
		"wants a sentence":               strings.Replace(good, "test: ./a -run X\n", "", 1),
		"\"--- new\" is out of place":    strings.Replace(good, "--- old\n", "", 1),
	} {
		if _, err := parse("f.txt", text); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestReplace(t *testing.T) {
	e := edit{"a.go", "  if x {\n}\n", "y\n"}
	if got, err := e.replace("a\n\tif x {\n\t}\nb\n"); err != nil || got != "a\ny\nb\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := e.replace("if x {\n}\nif x {\n}\n"); err == nil || !strings.Contains(err.Error(), "lines 1 and 3") {
		t.Errorf("twice: %v", err)
	}
	if _, err := e.replace("if y {\n}\n"); err == nil || !strings.Contains(err.Error(), "does not have the text") {
		t.Errorf("not at all: %v", err)
	}
}

func TestJudge(t *testing.T) {
	failed := exec.Command("sh", "-c", "exit 1").Run()
	m := &mutant{says: "It is wrong."}
	for _, tt := range []struct {
		out  string
		err  error
		want outcome
	}{
		{"ok  \ta\t0.1s\n", nil, survived},
		{"--- FAIL: TestX (0.00s)\nFAIL\n", failed, caught},
		{"panic: test timed out after 1s\nFAIL\n", failed, hung},
		{"a.go:1:1: undefined: x\nFAIL\ta [build failed]\n", failed, broken},
		{"", errors.New("go is not there"), broken},
	} {
		if got, _ := judge(tt.out, tt.err, m); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.out, got, tt.want)
		}
	}
}
