package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one bug to be planted.
type mutant struct {
	name, says string
	test       []string // arguments of go test
	edits      []edit
	at         string // where it is written: FILE:LINE
}

// edit replaces a piece of one file. The paths are relative to the module.
type edit struct{ file, from, to string }

// load reads all mutants of a folder.
func load(folder string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	seen := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		some, err := parse(filepath.Base(file), string(text))
		if err != nil {
			return nil, err
		}
		for _, m := range some {
			if other := seen[m.name]; other != "" {
				return nil, fmt.Errorf("%s: %s is at %s, too", m.at, m.name, other)
			}
			seen[m.name] = m.at
		}
		all = append(all, some...)
	}
	return all, nil
}

// parse reads the mutants of one file. Lines before the first are a comment.
func parse(file, text string) ([]mutant, error) {
	var all []mutant
	var piece *string // that lines belong to
	for i, line := range strings.Split(text, "\n") {
		at := fmt.Sprintf("%s:%d", file, i+1)
		name, first := strings.CutPrefix(line, "== ")
		if first {
			if piece != nil {
				return nil, fmt.Errorf("%s: the end of the last one is missing before this line", at)
			}
			all = append(all, mutant{name: strings.TrimSpace(name), at: at})
			continue
		}
		if len(all) == 0 {
			continue
		}
		m := &all[len(all)-1]
		var err error
		if piece, err = m.take(line, piece); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	if piece != nil {
		return nil, fmt.Errorf("%s: --- end is missing at the end of the file", file)
	}
	for _, m := range all {
		if m.says == "" || len(m.test) == 0 || len(m.edits) == 0 {
			return nil, fmt.Errorf("%s: %s wants a sentence, tests and a file", m.at, m.name)
		}
	}
	return all, nil
}

// take adds a line to a mutant, and returns the piece that the next one belongs to.
func (m *mutant) take(line string, piece *string) (*string, error) {
	var last *edit
	if len(m.edits) > 0 {
		last = &m.edits[len(m.edits)-1]
	}
	file, isFile := strings.CutPrefix(line, "file: ")
	test, isTest := strings.CutPrefix(line, "test: ")
	switch {
	case line == "--- old" && last != nil:
		return &last.from, nil
	case line == "--- new" && last != nil && piece == &last.from:
		return &last.to, nil
	case line == "--- end" && last != nil && piece == &last.to:
		return nil, nil
	case piece != nil:
		*piece += line + "\n"
	case isFile:
		m.edits = append(m.edits, edit{file: strings.TrimSpace(file)})
	case isTest:
		m.test = strings.Fields(test)
	case strings.HasPrefix(line, "---"):
		return nil, fmt.Errorf("%q is out of place", line)
	case strings.TrimSpace(line) != "" && m.says != "":
		m.says += " " + strings.TrimSpace(line)
	default:
		m.says += strings.TrimSpace(line)
	}
	return piece, nil
}

// planted returns the changed files by their paths below root.
func (m *mutant) planted(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range m.edits {
		if _, ok := files[e.file]; !ok {
			text, err := os.ReadFile(filepath.Join(root, e.file))
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", m.at, m.name, err)
			}
			files[e.file] = string(text)
		}
		text, err := e.replace(files[e.file])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", m.at, m.name, err)
		}
		files[e.file] = text
	}
	return files, nil
}

// replace returns the text of a file with the piece replaced. Lines are compared
// without the white space around them.
func (e edit) replace(text string) (string, error) {
	lines, want := strings.SplitAfter(text, "\n"), strings.Split(strings.Trim(e.from, "\n"), "\n")
	found := -1
	for i := range lines[:max(len(lines)-len(want)+1, 0)] {
		if !same(lines[i:i+len(want)], want) {
			continue
		}
		if found >= 0 {
			return "", fmt.Errorf("%s has the text more than once, in lines %d and %d: give more of it", e.file, found+1, i+1)
		}
		found = i
	}
	if found < 0 {
		return "", fmt.Errorf("%s does not have the text", e.file)
	}
	return strings.Join(lines[:found], "") + e.to + strings.Join(lines[found+len(want):], ""), nil
}

func same(lines, want []string) bool {
	for i := range want {
		if strings.TrimSpace(lines[i]) != strings.TrimSpace(want[i]) {
			return false
		}
	}
	return true
}
