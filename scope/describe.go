package scope

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/oplog"
)

// Fingerprint is equal for all lists that differ in form only: in order, in
// repetitions, in redundant elements. If regular expressions differ, it differs, even
// if they are equivalent.
func (s *Scope) Fingerprint() string {
	var b []byte
	list := func(name string, texts []string) {
		b = fmt.Appendf(b, "%s %d\n", name, len(texts))
		for _, t := range texts {
			b = fmt.Appendf(b, "%q\n", t)
		}
	}
	list("include", s.include.texts)
	list("exclude", s.exclude.texts)
	list("map", s.maps.texts())
	if s.cfg.Reversed {
		b = append(b, "reversed\n"...)
	}
	b = fmt.Appendf(b, "users and roles %v\nmetadata %q\n", s.cfg.UsersAndRoles, s.cfg.MetaDB)
	const enough = 16 // bytes; there is no adversary who searches for collisions
	sum := sha256.Sum256(b)
	return "1:" + hex.EncodeToString(sum[:enough])
}

// Describe describes the mirrored namespaces in one line.
func (s *Scope) Describe() string {
	text := "everything"
	if !s.include.empty() {
		text = some(s.include.texts)
	}
	if !s.exclude.empty() {
		text += " except " + some(s.exclude.texts)
	}
	if m := s.maps.texts(); len(m) > 0 {
		text += ", renamed " + some(m)
	}
	if s.cfg.UsersAndRoles {
		text += ", with users and roles"
	}
	if s.cfg.Reversed && (!s.include.empty() || !s.exclude.empty() || len(s.maps.texts()) > 0) {
		text = "the other way of: " + text
	}
	return text
}

// Excluded returns the elements of Include of which nothing is mirrored, as Exclude takes all of it. Those of which that is
// undecided are not among them. All reports whether nothing else is included.
func (s *Scope) Excluded() (texts []string, all bool) {
	for _, text := range s.include.texts {
		p, err := parsePattern(text)
		if err != nil {
			continue
		}
		db, coll, one := p.names()
		switch {
		case slices.Contains(s.exclude.texts, text),
			one && s.exclude.cover(db), one && coll != "" && s.exclude.match(oplog.NewNamespace(db, coll)):
			texts = append(texts, text)
		}
	}
	return texts, len(texts) > 0 && len(texts) == len(s.include.texts) && !s.cfg.UsersAndRoles
}

// some lists the first few of the texts.
func some(texts []string) string {
	const few = 8
	if len(texts) <= few {
		return strings.Join(texts, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:few], " "), len(texts)-few)
}
